package extproc

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"google.golang.org/grpc"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tenant"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// digest answers with the hash of what the engine has got, and the length of its answer is the request's.
func digest(t *testing.T) string {
	return engine(t, func(w http.ResponseWriter, r *http.Request) {
		body := readRequest(r)
		w.Header().Set("X-Sum", fmt.Sprintf("%x", sha256.Sum256([]byte(body))))
		_, _ = io.WriteString(w, body)
	})
}

func large(n int) string { return `{"model":"m","prompt":"` + strings.Repeat("abcdefgh", n/8) + `"}` }

// Every body, of any size, is returned as streamed_response in pieces that Envoy takes, cut however it was sent.
func TestPitfall1_BodiesComeBackStreamed(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec(digest(t)))
	n := int64(0)
	for _, size := range []int{8, 61 << 10, 62000, 64 << 10, 1 << 20} {
		for seed := range uint64(4) {
			body := large(size)
			answer := h.envoy(envoytest.Options{Seed: seed}).post("/v1/completions", body)
			if text := read(t, answer); text != body || answer.Header.Get("X-Sum") != fmt.Sprintf("%x", sha256.Sum256([]byte(body))) {
				t.Errorf("%d bytes, seed %d: status %d, %d bytes come back", size, seed, answer.StatusCode, len(text))
			}
			n++
		}
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: n})
}

func TestPitfall2_TheEndOfABodyMayComeTwice(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec(digest(t)))
	for seed := range uint64(4) {
		body := large(1 << 20)
		answer := h.envoy(envoytest.Options{Seed: seed, DuplicateEnd: true}).post("/v1/completions", body)
		if text := read(t, answer); text != body {
			t.Errorf("seed %d: status %d, %d bytes", seed, answer.StatusCode, len(text))
		}
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 4})
	if n := h.picker.Stats()[0].Endpoints[0].Picks; n != 4 {
		t.Errorf("%d picks of 4 requests", n)
	}

	// The last piece of the answer can be sent twice as well.
	s := h.script()
	s.routed(completion)
	s.send(requestPiece(completion, true))
	s.send(responseHead(false, ":status", "200"), responsePiece("x", true), responsePiece("x", true))
	s.receive()
	s.receive()
	s.silent()
}

// Headers of either direction stay with the gateway: only what is ours is set.
func TestPitfall3_HeadersAreNotEchoed(t *testing.T) {
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Engine", "1")
		_, _ = io.WriteString(w, "ok")
	})
	h := newHouse(t, Options{}, ServeOptions{}, spec(e))
	s := h.script()
	head := append([]string{"x-client", "1", "x-request-id", "7", "transfer-encoding", "chunked", "content-length", "46"}, post...)
	s.send(requestHead(false, head...), requestPiece(completion, true))
	m := s.receive().GetRequestHeaders().GetResponse().GetHeaderMutation()
	if len(m.GetSetHeaders()) != 1 || m.GetSetHeaders()[0].GetHeader().GetKey() != destinationHeader || len(m.GetRemoveHeaders()) != 0 {
		t.Errorf("the request's headers are changed: %v", m)
	}
	s.receive()
	s.send(responseHead(false, ":status", "200", "transfer-encoding", "chunked", "x-engine", "1"))
	if m := s.receive().GetResponseHeaders(); m == nil || m.GetResponse().GetHeaderMutation() != nil {
		t.Errorf("the answer's headers are changed: %v", m)
	}
}

func TestPitfall4_TheLengthIsToldOnlyWhenItChanges(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
	body := `{"model":"other-name","prompt":[1]}`
	for name, tc := range map[string]struct {
		headers []string
		want    string
	}{
		"unchanged":                {[]string{"content-length", "34"}, ""},
		"changed":                  {[]string{"content-length", "34", "x-gateway-model-name-rewrite", "m"}, fmt.Sprint(len(body) - len("other-name") + 1)},
		"changed, length not told": {[]string{"x-llm-d-model-name-rewrite", "m"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := h.script()
			sent, want := body, strings.Replace(body, "other-name", "m", 1)
			if name == "unchanged" {
				sent = strings.Replace(body, "other-name", "alias     ", 1)
				sent = strings.Replace(sent, `"alias     "`, `"alias"     `, 1)
				want = sent
			}
			s.send(requestHead(false, append(tc.headers, post...)...), requestPiece(sent, true))
			got := ""
			m := s.receive().GetRequestHeaders()
			for _, o := range m.GetResponse().GetHeaderMutation().GetSetHeaders() {
				if o.GetHeader().GetKey() == "content-length" {
					got = string(o.GetHeader().GetRawValue())
				}
			}
			if got != tc.want {
				t.Errorf("content-length %q, want %q: %v", got, tc.want, m)
			}
			if b := s.receive().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse(); string(b.GetBody()) != want {
				t.Errorf("body %q, want %q", b.GetBody(), want)
			}
		})
	}
}

// Numbers, spaces, escapes and the order of keys pass, even where the model is renamed.
func TestPitfall5_BytesAreNotRewritten(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec(digest(t)))
	const body = "{ \"z\":1e400, \"prompt\" :\t\"\\u00e9\\ud83d\\ude00\",\"model\":\"%s\" ,\"a\":10000000000000000000001.0,\"a\":2}\n"
	for seed := range uint64(5) {
		g := h.envoy(envoytest.Options{Seed: seed})
		if text := read(t, g.post("/v1/completions", fmt.Sprintf(body, "m"))); text != fmt.Sprintf(body, "m") {
			t.Errorf("%q", text)
		}
		if text := read(t, g.post("/v1/completions", fmt.Sprintf(body, "gone"), "X-Gateway-Model-Name-Rewrite", "lora")); text != fmt.Sprintf(body, "lora") {
			t.Errorf("%q", text)
		}
	}
	// In a mode that keeps the body, too.
	g := h.envoy(envoytest.Options{Request: envoytest.WithMode(filter.ProcessingMode_BUFFERED)})
	if text := read(t, g.post("/v1/completions", fmt.Sprintf(body, "gone"), "X-Llm-D-Model-Name-Rewrite", "lora")); text != fmt.Sprintf(body, "lora") {
		t.Errorf("%q", text)
	}
}

// Gateways that send a body as one message can send as much as a pool takes; more is refused by the picker, not by gRPC.
func TestPitfall6_LargeMessages(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec(digest(t)))
	g := h.envoy(envoytest.Options{Request: envoytest.WithMode(filter.ProcessingMode_BUFFERED), MessageTimeout: patience})
	body := large(6 << 20)
	if text := read(t, g.post("/v1/completions", body)); text != body {
		t.Errorf("%d bytes", len(text))
	}
	if answer := g.post("/v1/completions", large(9<<20)); answer.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d", answer.StatusCode)
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
}

// What is held of bodies has a bound over all requests.
func TestPitfall6_BodiesHeldAreBounded(t *testing.T) {
	room := budget.New(576<<10, time.Now) // also of two connections
	h := newHouse(t, Options{Budget: room}, ServeOptions{}, spec("127.0.0.1:1"))
	one, two := h.script(), h.script()
	one.send(requestHead(false, post...), requestPiece(strings.Repeat(" ", 60<<10), false))
	eventually(t, "the first is held", func() bool { return room.Held(budget.Streams) > 60<<10 })
	before := room.Held(budget.Streams)
	two.send(requestHead(false, post...), requestPiece(strings.Repeat(" ", 60<<10), false), requestPiece(strings.Repeat(" ", 60<<10), false))
	if r := two.receive().GetImmediateResponse(); r.GetStatus().GetCode() != 503 {
		t.Errorf("%v", r)
	}
	eventually(t, "only the first is held", func() bool { return room.Held(budget.Streams) < before+20<<10 })
	one.cancel()
	two.cancel()
	h.idle()
}

// Headers count, too: streams that have sent them and wait take no more than a connection's share.
func TestHeadersHeldAreBounded(t *testing.T) {
	room := budget.New(1<<20, time.Now)
	h := newHouse(t, Options{Budget: room}, ServeOptions{}, spec("127.0.0.1:1"))
	large := append([]string{"x-large", strings.Repeat("x", 30<<10)}, post...)
	c, err := grpc.NewClient("passthrough:///"+h.address, plain)
	if err != nil {
		t.Fatal(err)
	}
	for range 40 {
		h.scriptOn(c).send(requestHead(false, large...))
	}
	eventually(t, "some are refused", func() bool { return room.Stats().Refused[budget.Streams] > 0 })
	if s := room.Stats(); s.Held > 1<<20*2/3 || s.Held < 1<<18 {
		t.Errorf("%+v", s)
	}
}

// The picker bounds the streams of a connection far above what the gateway's circuit breaker lets through, here at a quarter
// of Envoy's default.
func TestPitfall7_ManyStreamsAtOnce(t *testing.T) {
	const breaker, n = 256, 300
	hold := make(chan struct{})
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_ = readRequest(r)
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		<-hold
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"x\"}]}\n\n")
	})
	h := newHouse(t, Options{}, ServeOptions{}, spec(e))
	g := h.envoy(envoytest.Options{MaxRequests: breaker})
	var wait sync.WaitGroup
	statuses := make(chan int, n)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for range n {
		wait.Go(func() {
			answer, err := client.Post(g.url+"/v1/completions", "application/json", strings.NewReader(completion))
			if err != nil {
				statuses <- 0
				return
			}
			statuses <- answer.StatusCode
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		})
	}
	got := map[int]int{}
	for end := time.After(patience); len(statuses) < n && got[0] == 0; {
		select {
		case <-end:
			got[0]++ // some wait
		case <-time.After(time.Millisecond):
		}
	}
	for range len(statuses) {
		got[<-statuses]++
	}
	if got[200] != breaker || got[500] != n-breaker {
		t.Errorf("statuses %v, want the breaker's %d", got, breaker)
	}
	if s := h.server.Streams(); s != breaker {
		t.Errorf("%d streams open", s)
	}
	close(hold)
	wait.Wait()
	h.outcomes(map[picker.Outcome]int64{picker.Completed: breaker})
}

func TestPitfall8_ClientsCannotNameADestination(t *testing.T) {
	var mu sync.Mutex
	var seen http.Header
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = r.Header.Clone()
		_, _ = io.WriteString(w, "ours")
	})
	theirs := engine(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "theirs") })
	for name, o := range map[string]envoytest.Options{"by header": {}, "by metadata": {Balance: envoytest.ByMetadata}, "by list": {Balance: envoytest.ByList}} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, Options{}, ServeOptions{}, spec(e))
			answer := h.envoy(o).post("/v1/completions", completion,
				"X-Gateway-Destination-Endpoint", theirs, "X-Gateway-Destination-Endpoint-Subset", theirs,
				"X-Gateway-Destination-Endpoint-Served", theirs, "Test-Epp-Endpoint-Selection", theirs, "X-Data-Parallel-Rank", "3")
			if text := read(t, answer); text != "ours" {
				t.Errorf("answer %q", text)
			}
			mu.Lock()
			defer mu.Unlock()
			if seen.Get("X-Data-Parallel-Rank") != "" || seen.Get("X-Gateway-Destination-Endpoint-Subset") != "" {
				t.Errorf("the engine got %v", seen)
			}
		})
	}
}

func TestPitfall8_RanksAndKeysAreOurs(t *testing.T) {
	got := make(chan http.Header, 1)
	e := engine(t, func(w http.ResponseWriter, r *http.Request) { got <- r.Header.Clone() })
	s := spec(e)
	s.Endpoints[0].RankHeader, s.EngineAPIKey = 5, "sesame"
	h := newHouse(t, Options{}, ServeOptions{}, s)
	h.envoy(envoytest.Options{}).post("/v1/completions", completion, "X-Data-Parallel-Rank", "3", "Authorization", "Bearer client")
	if header := await(t, got); header.Get("X-Data-Parallel-Rank") != "5" || header.Get("Authorization") != "Bearer sesame" {
		t.Errorf("the engine got %v", header)
	}
}

func TestPitfall8_TheEngineChecksClientsThatNobodyElseHasChecked(t *testing.T) {
	for name, tc := range map[string]struct {
		pass    bool
		tenants *picker.TenantsSpec
		pool    string
		want    string
	}{
		"passed through":            {true, nil, "sesame", "Bearer client"},
		"replaced":                  {false, nil, "sesame", "Bearer sesame"},
		"a tenant's, replaced":      {true, &picker.TenantsSpec{Default: &tenant.Class{Weight: 1}}, "sesame", "Bearer sesame"},
		"a tenant's, taken off":     {true, &picker.TenantsSpec{Default: &tenant.Class{Weight: 1}}, "", ""},
		"of a tenant by its header": {true, &picker.TenantsSpec{Header: "x-tenant", Default: &tenant.Class{Weight: 1}}, "", "Bearer client"},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan http.Header, 1)
			s := spec(engine(t, func(w http.ResponseWriter, r *http.Request) { got <- r.Header.Clone() }))
			s.PassClientAuth, s.EngineAPIKey, s.Policy.Admission.Tenants = tc.pass, tc.pool, tc.tenants
			h := newHouse(t, Options{}, ServeOptions{}, s)
			h.envoy(envoytest.Options{}).post("/v1/completions", completion, "Authorization", "Bearer client")
			if key := await(t, got).Get("Authorization"); key != tc.want {
				t.Errorf("the engine has got %q, want %q", key, tc.want)
			}
		})
	}
}

func TestPitfall9_OneDestinationUnlessAListIsAskedFor(t *testing.T) {
	e := engine(t, says("second"))
	s := spec("127.0.0.1:1", e, "127.0.0.1:2")
	h := newHouse(t, Options{}, ServeOptions{}, s)
	if d := h.script().routed(completion); d != "127.0.0.1:1" {
		t.Errorf("destination %q, want one", d)
	}
	s.OrderedDestinations = true
	h = newHouse(t, Options{}, ServeOptions{}, s)
	if d := h.script().routed(completion); d != "127.0.0.1:1,"+e+",127.0.0.1:2" {
		t.Errorf("destinations %q, want all in order", d)
	}
	h = newHouse(t, Options{}, ServeOptions{}, s)
	answer := h.envoy(envoytest.Options{Balance: envoytest.ByList, Served: true}).post("/v1/completions", completion)
	if text := read(t, answer); text != "second" {
		t.Errorf("answer %q", text)
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
	if stats := h.picker.Stats()[0]; stats.Retries != 1 {
		t.Errorf("%d retries: the account did not move to the endpoint that has served", stats.Retries)
	}
	s.Endpoints[0].RankHeader = 0
	h = newHouse(t, Options{}, ServeOptions{}, s)
	if d := h.script().routed(completion); d != "127.0.0.1:1" {
		t.Errorf("destinations %q: one header cannot name the ranks of several", d)
	}
}

// Each way in which a request can end is counted, once, and nothing is left of it.
func TestPitfall10_EveryEndIsCountedOnce(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
	answered := []*pb.ProcessingRequest{
		responseHead(false, ":status", "200", "content-type", "application/json"), responsePiece("{}", true),
	}
	ends := map[string]struct {
		messages []*pb.ProcessingRequest
		closes   bool
		want     picker.Outcome
	}{
		"the end of the body, then a reset":      {answered, false, picker.Completed},
		"the end of the body, then a half-close": {answered, true, picker.Completed},
		"trailers": {[]*pb.ProcessingRequest{
			answered[0], responsePiece("{}", false), {Request: &pb.ProcessingRequest_ResponseTrailers{ResponseTrailers: &pb.HttpTrailers{}}},
		}, false, picker.Completed},
		"headers only":              {[]*pb.ProcessingRequest{responseHead(true, ":status", "204")}, false, picker.Completed},
		"a reset before the answer": {nil, false, picker.ClientGone},
		"a reset in the answer":     {answered[:1], false, picker.ClientGone},
		"a half-close in it":        {answered[:1], true, picker.ClientGone},
		"an engine's refusal":       {[]*pb.ProcessingRequest{responseHead(true, ":status", "422")}, false, picker.Rejected},
		"an engine's failure":       {[]*pb.ProcessingRequest{responseHead(true, ":status", "503")}, false, picker.Failed},
		"a failure in a stream": {[]*pb.ProcessingRequest{
			responseHead(false, ":status", "200", "content-type", "text/event-stream"), responsePiece("data: {\"error\":{}}\n\n", true),
		}, false, picker.Failed},
	}
	h.server.gateways.learn(route{host: "127.0.0.1"})
	want := map[picker.Outcome]int64{}
	for _, name := range slices.Sorted(maps.Keys(ends)) {
		s, tc := h.script(), ends[name]
		s.routed(completion)
		s.send(tc.messages...)
		for range tc.messages {
			s.receive()
		}
		if tc.closes {
			_ = s.stream.CloseSend()
			s.ended()
		}
		s.cancel()
		want[tc.want]++
		h.outcomes(want)
	}
	if n := h.picker.Stats()[0].Endpoints[0].Failures; n != 2 {
		t.Errorf("%d failures of the endpoint, want 2", n)
	}
}

// A gateway without a response phase takes its leave right after the pick: the load must not vanish with it.
func TestPitfall10_GatewaysThatShowNoAnswers(t *testing.T) {
	e := engine(t, says("ok"))
	for name, options := range map[string]envoytest.Options{"reset": {NoResponse: true}, "half-close": {NoResponse: true, HalfClose: true}} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, Options{}, ServeOptions{}, spec(e))
			g := h.envoy(options)
			for range 5 {
				if text := read(t, g.post("/v1/completions", completion)); text != "ok" {
					t.Errorf("answer %q", text)
				}
			}
			h.outcomes(map[picker.Outcome]int64{picker.Unreported: 5})
			if n := h.picker.Stats()[0].Endpoints[0].Load.InFlight; n != 5 {
				t.Errorf("%d in flight, want 5 for a while", n)
			}
		})
	}
}

package extproc

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
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
	room := budget.New(256<<10, time.Now)
	h := newHouse(t, Options{Budget: room}, ServeOptions{}, spec("127.0.0.1:1"))
	one, two := h.script(), h.script()
	one.send(requestHead(false, post...), requestPiece(strings.Repeat(" ", 60<<10), false))
	eventually(t, "the first is held", func() bool { return room.Stats().Held > 60<<10 })
	before := room.Stats().Held
	two.send(requestHead(false, post...), requestPiece(strings.Repeat(" ", 60<<10), false), requestPiece(strings.Repeat(" ", 60<<10), false))
	if r := two.receive().GetImmediateResponse(); r.GetStatus().GetCode() != 503 {
		t.Errorf("%v", r)
	}
	eventually(t, "only the first is held", func() bool { return room.Stats().Held < before+20<<10 })
	one.cancel()
	two.cancel()
	h.idle()
}

// Headers count, too: streams that have sent them and wait take no more than a connection's share.
func TestHeadersHeldAreBounded(t *testing.T) {
	room := budget.New(1<<20, time.Now)
	h := newHouse(t, Options{Budget: room}, ServeOptions{}, spec("127.0.0.1:1"))
	large := append([]string{"x-large", strings.Repeat("x", 30<<10)}, post...)
	for range 40 {
		h.script().send(requestHead(false, large...))
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

func TestPitfall11_BehindNginx(t *testing.T) {
	e := engine(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, readRequest(r)) })
	s := spec(e, "127.0.0.1:1")
	s.Policy.Strategy = policy.Config{Type: policy.LeastLoad}
	s.Endpoints[1].Ready = false
	h := newHouse(t, Options{}, ServeOptions{}, s)
	for name, open := range map[string]bool{"FailClose": false, "FailOpen": true} {
		t.Run(name, func(t *testing.T) {
			server := &envoytest.Nginx{Picker: h.address, Dial: []grpc.DialOption{plain}, FailOpen: open, Endpoints: []string{e}}
			g := &standIn{t: t, url: "http://" + engine(t, server.ServeHTTP)}
			chat := `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
			if text := read(t, g.post("/v1/chat/completions", chat)); text != chat {
				t.Errorf("answer %q", text)
			}
			// A refusal never reaches the client: closed it is a failure, open it is any pod.
			if answer := g.post("/v1/chat/completions", `{"model":`); (answer.StatusCode == 200) != open {
				t.Errorf("status %d for a refusal", answer.StatusCode)
			}
		})
	}
	h.outcomes(map[picker.Outcome]int64{picker.Unreported: 2})
	if models := h.seen.models; !slices.Equal(models, []string{"m", "m"}) {
		t.Errorf("picked for models %q", models)
	}
}

// Without a path the route follows from the body's shape, and a body of an unknown shape is routed by load.
func TestPitfall12_MissingAndUnknownPaths(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
	for name, tc := range map[string]struct {
		headers []string
		body    string
		model   string // "" when it goes by load
		status  int    // of a refusal
	}{
		"no path, a completion":  {nil, completion, "m", 0},
		"no path, a chat":        {nil, `{"model":"alias","messages":[]}`, "alias", 0},
		"no path, another shape": {nil, `{"model":"m","input":"x"}`, "", 0},
		"no path, broken":        {nil, `{"model":`, "", 400},
		"no path, no JSON":       {nil, "--boundary", "", 0},
		"a prefix":               {[]string{":path", "/llama/v1/completions?x=/v1/"}, completion, "m", 0},
		"an unknown path":        {[]string{":path", "/v1/audio/transcriptions"}, completion, "", 0},
		"a form":                 {[]string{":path", "/v1/completions", "content-type", "multipart/form-data; boundary=x"}, "--x", "", 0},
		"compressed":             {[]string{":path", "/v1/completions", "content-encoding", "gzip"}, "\x1f\x8b", "", 0},
		"another method":         {[]string{":method", "PUT", ":path", "/v1/completions"}, "x", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := h.script()
			s.send(requestHead(false, tc.headers...), requestPiece(tc.body, true))
			m := s.receive()
			if tc.status != 0 {
				if got := int(m.GetImmediateResponse().GetStatus().GetCode()); got != tc.status {
					t.Errorf("status %d", got)
				}
				return
			}
			if destinationOf(m) == "" {
				t.Fatalf("not routed: %v", m)
			}
			h.seen.mu.Lock()
			defer h.seen.mu.Unlock()
			if last := h.seen.models[len(h.seen.models)-1]; last != tc.model {
				t.Errorf("picked for model %q, want %q", last, tc.model)
			}
		})
	}
}

func TestPitfall16_APortMayServeOnePoolOnly(t *testing.T) {
	a, b := spec("127.0.0.1:1"), spec("127.0.0.1:2")
	b.Name, b.Model, b.Aliases, b.Adapters = "b", "b", nil, nil
	b.Endpoints[0].ID.Pod = "b"
	h := newHouse(t, Options{Pool: "default/b"}, ServeOptions{}, a, b)
	s := h.script()
	s.send(requestHead(true, ":method", "GET", ":path", "/v1/models"))
	if d := destinationOf(s.receive()); d != "127.0.0.1:2" {
		t.Errorf("destination %q", d)
	}
	s = h.script()
	s.send(requestHead(false, post...), requestPiece(completion, true))
	if r := s.receive().GetImmediateResponse(); r.GetStatus().GetCode() != 404 {
		t.Errorf("%v", r)
	}
	if d := h.script().routed(`{"model":"b","prompt":[1]}`); d != "127.0.0.1:2" {
		t.Errorf("destination %q", d)
	}
}

// A preflight has no key, by its specification: it reaches no engine, and the policy says what is answered.
func TestPitfall17_PreflightsAreAnswered(t *testing.T) {
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" {
			t.Error("a preflight has come to the engine")
		}
		w.WriteHeader(http.StatusAccepted)
	})
	for name, s := range map[string]picker.Spec{"everybody": spec(e), "tenants": keyed(t, e)} {
		t.Run(name, func(t *testing.T) {
			s.Policy.Admission.AllowedOrigins = []string{"https://example.com"}
			h := newHouse(t, Options{}, ServeOptions{}, s)
			g := h.envoy(envoytest.Options{})
			ask := func(header ...string) *http.Response {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, g.url+"/v1/chat/completions", http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				return g.do(r, header...)
			}
			r := ask("Origin", "https://example.com", "Access-Control-Request-Method", "POST")
			if r.StatusCode != http.StatusNoContent || r.Header.Get("Access-Control-Allow-Origin") != "https://example.com" {
				t.Errorf("status %d, header %v", r.StatusCode, r.Header)
			}
			r = ask("Origin", "https://other.example", "Access-Control-Request-Method", "POST")
			if r.StatusCode != http.StatusForbidden || r.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("another origin: status %d, header %v", r.StatusCode, r.Header)
			}
			want := http.StatusAccepted
			if name == "tenants" {
				want = http.StatusUnauthorized
			}
			if r := ask(); r.StatusCode != want {
				t.Errorf("OPTIONS that is no preflight: status %d, want %d", r.StatusCode, want)
			}
			h.idle()
		})
	}
}

func list(addresses ...string) *structpb.Value {
	l := &structpb.ListValue{}
	for _, a := range addresses {
		l.Values = append(l.Values, structpb.NewStringValue(a))
	}
	return structpb.NewListValue(l)
}

// A subset counts in every shape, on any message, and for requests without a body.
func TestPitfall18_SubsetsOfEveryShapeOnAnyMessage(t *testing.T) {
	const a, b, c = "10.0.0.1:8000", "10.0.0.2:8000", "[2001:db8::3]:8000"
	for name, tc := range map[string]struct {
		hint *structpb.Value
		want string // "" for a refusal
	}{
		"none":                    {nil, a},
		"a list":                  {list(b), b},
		"a list of several":       {list("10.9.9.9:1", c), c},
		"a string":                {structpb.NewStringValue(b), b},
		"a string of several":     {structpb.NewStringValue(" 10.9.9.9:1 , " + b + ","), b},
		"an address, any port":    {structpb.NewStringValue("10.0.0.2"), b},
		"IPv6, written otherwise": {list("[2001:0db8:0::3]:8000"), c},
		"IPv6, any port":          {list("2001:db8::3"), c},
		"IPv6 in brackets":        {list("[2001:db8::3]"), c},
		"an empty list":           {list(), ""},
		"an empty string":         {structpb.NewStringValue(""), ""},
		"none of ours":            {list("10.9.9.9:8000"), ""},
		"another port":            {list("10.0.0.2:9"), ""},
		"of an unexpected shape":  {structpb.NewNumberValue(3), ""},
	} {
		for place, messages := range map[string][]*pb.ProcessingRequest{
			"on headers":      {requestHead(false, post...), requestPiece(completion, true)},
			"on the body":     {requestHead(false, post...), requestPiece(completion, true)},
			"without a body":  {requestHead(true, ":method", "GET", ":path", "/v1/models")},
			"on an early one": {requestHead(false, post...), requestPiece("", false), requestPiece(completion, true)},
		} {
			t.Run(name+", "+place, func(t *testing.T) {
				h := newHouse(t, Options{}, ServeOptions{}, spec(a, b, c))
				if tc.hint != nil {
					at := map[string]int{"on the body": 1, "on an early one": 1}[place]
					withSubset(messages[at], tc.hint)
				}
				s := h.script()
				s.send(messages...)
				m := s.receive()
				if d := destinationOf(m); d != tc.want {
					t.Errorf("destination %q, want %q", d, tc.want)
				}
				if code := m.GetImmediateResponse().GetStatus().GetCode(); tc.want == "" && code != 503 {
					t.Errorf("status %d, want 503", code)
				}
			})
		}
	}
}

// Endpoints that no gateway can reach are not chosen.
func TestPitfall18_SocketsAreNoDestinations(t *testing.T) {
	s := spec("", "127.0.0.1:1")
	s.Endpoints[0].Socket = "/run/engine.sock"
	h := newHouse(t, Options{}, ServeOptions{}, s)
	for range 3 {
		if d := h.script().routed(completion); d != "127.0.0.1:1" {
			t.Errorf("destination %q", d)
		}
	}
}

// What an engine found in its cache is read from JSON and from streams, cut anywhere, and not from what is compressed.
func TestPitfall19_UsageIsReadFromAnswers(t *testing.T) {
	const usage = `"usage":{"prompt_tokens":3,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":2}}`
	answers := map[string]struct {
		header []string
		body   string
		want   int64
	}{
		"JSON":       {[]string{":status", "200", "content-type", "application/json"}, `{"choices":[],` + usage + `}`, 1},
		"events":     {[]string{":status", "200", "content-type", "text/event-stream"}, "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[]," + usage + "}\n\ndata: [DONE]\n\n", 1},
		"compressed": {[]string{":status", "200", "content-type", "application/json", "content-encoding", "gzip"}, `{` + usage + `}`, 0},
		"not told":   {[]string{":status", "200", "content-type", "application/json"}, `{"usage":{"prompt_tokens":3}}`, 0},
	}
	for name, tc := range answers {
		for _, size := range []int{1, 3, 50, 1 << 20} {
			t.Run(fmt.Sprintf("%s, %d bytes at a time", name, size), func(t *testing.T) {
				h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
				s := h.script()
				s.routed(completion)
				s.send(responseHead(false, tc.header...))
				s.receive()
				got := ""
				for rest := tc.body; ; {
					n := min(size, len(rest))
					s.send(responsePiece(rest[:n], false))
					got += string(s.receive().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody())
					if rest = rest[n:]; rest == "" {
						break
					}
				}
				s.send(responsePiece("", true))
				s.receive()
				s.cancel()
				h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
				hits := h.picker.Stats()[0].Hits
				if got != tc.body || hits.Answers != tc.want || hits.Delivered != 2*tc.want {
					t.Errorf("%q comes back, hits %+v", got, hits)
				}
			})
		}
	}
}

func TestPitfall20_IPv6(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 here")
	}
	server := &http.Server{Handler: says("six"), ReadHeaderTimeout: patience}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	h := newHouse(t, Options{}, ServeOptions{}, spec(l.Addr().String()))
	for _, hint := range []*structpb.Value{nil, list(l.Addr().String()), structpb.NewStringValue("::1")} {
		if text := read(t, h.envoy(envoytest.Options{Subset: hint}).post("/v1/completions", completion)); text != "six" {
			t.Errorf("answer %q", text)
		}
	}
}

// Gateways that do not say how they send, and those that always stream, get bodies back; both header and metadata name
// the destination, for those that read only one of them.
func TestPitfall21_BodiesAreAlwaysAnswered(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec(engine(t, says("ok"))))
	for name, o := range map[string]envoytest.Options{
		"no word of modes": {NoProtocolConfig: true, Seed: 3},
		"metadata":         {Balance: envoytest.ByMetadata},
		"header":           {Balance: envoytest.ByHeader},
		"half-closed":      {HalfClose: true},
		"like gRPC":        {},
	} {
		t.Run(name, func(t *testing.T) {
			if text := read(t, h.envoy(o).post("/v1/completions", completion)); text != "ok" {
				t.Errorf("answer %q", text)
			}
		})
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 5})
}

package extproc

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// The tests of this package are named by what they show. Those of the sequences of messages in the Endpoint Picker
// Protocol, (a) to (j), and of its pitfalls, 1 to 21, by letter and number:
//
//	a  body                   TestSequenceA
//	b  body and trailers      TestSequenceB
//	c  no body                TestSequenceC
//	d  refusal                TestSequenceD
//	e  JSON answer            TestSequenceE
//	f  event stream           TestSequenceF
//	g  answer without a body  TestSequenceG
//	h  answer with trailers   TestSequenceH
//	i  abort                  TestSequenceI
//	j  other body modes       TestSequenceJ
//
//	1  streamed_response      TestPitfall1      12 missing path           TestPitfall12
//	2  the end twice          TestPitfall2      13 all replicas active    TestPitfall13
//	3  nothing echoed         TestPitfall3      14 drain, ageing          TestPitfall14
//	4  content-length         TestPitfall4      15 TLS, health            TestPitfall15
//	5  bytes untouched        TestPitfall5      16 pool by port           TestPitfall16
//	6  large messages         TestPitfall6      17 preflights             TestPitfall17
//	7  many streams           TestPitfall7      18 subset anywhere        TestPitfall18
//	8  no client's choice     TestPitfall8      19 usage                  TestPitfall19
//	9  one destination        TestPitfall9      20 IPv6                   TestPitfall20
//	10 counted once           TestPitfall10     21 always streamed        TestPitfall21
//	11 refusals and NGINX     TestPitfall11
//
// All through test/envoytest, which adds Envoy's own rules to every one of them.

func TestSequenceA_ABodyIsRoutedAndPassesUnchanged(t *testing.T) {
	const body = `{ "model":"m",  "prompt":[1,2,3], "x": 1.50000000000000000001 }`
	got := make(chan string, 1)
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		got <- readRequest(r)
		_, _ = w.Write([]byte(`{"choices":[]}`))
	})
	h := newHouse(t, Options{}, ServeOptions{}, spec(e))
	answer := h.envoy(envoytest.Options{}).post("/v1/completions", body)
	if text := read(t, answer); answer.StatusCode != 200 || text != `{"choices":[]}` {
		t.Errorf("%d %q", answer.StatusCode, text)
	}
	if sent := await(t, got); sent != body {
		t.Errorf("the engine got %q", sent)
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
}

func TestSequenceA_NothingIsAnsweredBeforeTheBodyIsComplete(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
	s := h.script()
	s.send(requestHead(false, post...), requestPiece(completion[:10], false), requestPiece("", false))
	if n := h.seen.count(func(r *recorder) int { return r.picked }); n != 0 {
		t.Errorf("%d picks of half a body", n)
	}
	s.send(requestPiece(completion[10:], false), requestPiece("", true))
	if d := destinationOf(s.receive()); d != "127.0.0.1:1" {
		t.Errorf("destination %q", d)
	}
	piece := s.receive().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
	if string(piece.GetBody()) != completion || !piece.GetEndOfStream() {
		t.Errorf("the body comes back as %q, end %v", piece.GetBody(), piece.GetEndOfStream())
	}
}

func TestSequenceB_TrailersCompleteTheBody(t *testing.T) {
	got := make(chan string, 1)
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		body := readRequest(r)
		got <- body + " " + r.Trailer.Get("X-Sum")
		_, _ = io.WriteString(w, "ok")
	})
	h := newHouse(t, Options{}, ServeOptions{}, spec(e))
	for _, seed := range []uint64{0, 1, 2, 3} {
		g := h.envoy(envoytest.Options{Seed: seed})
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/v1/completions", io.NopCloser(strings.NewReader(completion)))
		if err != nil {
			t.Fatal(err)
		}
		r.Trailer = http.Header{"X-Sum": {"42"}}
		if text := read(t, g.do(r)); text != "ok" {
			t.Errorf("answer %q", text)
		}
		if sent := await(t, got); sent != completion+" 42" {
			t.Errorf("the engine got %q", sent)
		}
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 4})
}

func TestSequenceC_RequestsWithoutABodyGoByLoad(t *testing.T) {
	e := engine(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Method+" "+r.URL.String()) })
	h := newHouse(t, Options{}, ServeOptions{}, spec(e))
	g := h.envoy(envoytest.Options{})
	for _, path := range []string{"/v1/models", "/", "/tokenizer_info?x=1"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, g.url+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if text := read(t, g.do(r)); text != "GET "+path {
			t.Errorf("answer %q", text)
		}
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 3})

	s := h.script()
	s.send(requestHead(true, ":method", "GET", ":path", "/v1/models"))
	if d := destinationOf(s.receive()); d != e {
		t.Errorf("destination %q, want %q", d, e)
	}
	s.silent()
}

func TestSequenceD_Refusals(t *testing.T) {
	down := spec("127.0.0.1:1")
	down.Name, down.Model, down.Aliases, down.Adapters = "down", "down", nil, nil
	down.Endpoints[0].Ready = false
	down.Endpoints[0].ID.Pod = "down"
	small := spec("127.0.0.1:1")
	small.Name, small.Model, small.Aliases, small.Adapters, small.MaxRequestBody = "small", "small", nil, nil, 100
	small.Endpoints[0].ID.Pod = "small"
	h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"), down, small)
	g := h.envoy(envoytest.Options{Seed: 7})
	for name, tc := range map[string]struct {
		body, reason, code string
		status             int
		retry              string
	}{
		"not JSON":                 {`{"model":`, request.RefusedUnreadable, "invalid_request", 400, ""},
		"without a model":          {`{"prompt":"x"}`, request.RefusedUnreadable, "invalid_request", 400, ""},
		"another model":            {`{"model":"n","prompt":"x"}`, request.RefusedModel, "model_not_found", 404, ""},
		"too large for its pool":   {`{"model":"small","prompt":"` + strings.Repeat("x", 100) + `"}`, request.RefusedTooLarge, "request_too_large", 413, ""},
		"too large for any pool":   {`{"model":"m","prompt":"` + strings.Repeat("x", 8<<20) + `"}`, request.RefusedTooLarge, "request_too_large", 413, ""},
		"a pool without endpoints": {`{"model":"down","prompt":"x"}`, request.RefusedNoEndpoint, "no_endpoint", 503, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			before := h.seen.count(func(r *recorder) int { return r.refused[tc.reason] })
			answer := g.post("/v1/completions", tc.body)
			text := read(t, answer)
			if answer.StatusCode != tc.status || answer.Header.Get("Retry-After") != tc.retry || answer.Header.Get("Content-Type") != "application/json" {
				t.Errorf("status %d, header %v", answer.StatusCode, answer.Header)
			}
			if !strings.Contains(text, `"code":"`+tc.code+`"`) {
				t.Errorf("body %q", text)
			}
			if n := h.seen.count(func(r *recorder) int { return r.refused[tc.reason] }); n != before+1 {
				t.Errorf("%d refusals counted, want %d", n, before+1)
			}
		})
	}
	h.idle()
}

// After a refusal the picker goes on reading and says no more.
func TestSequenceD_AfterARefusalNothingFollows(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
	s := h.script()
	s.send(requestHead(false, post...), requestPiece("{", true))
	if s.receive().GetImmediateResponse().GetStatus().GetCode() != 400 {
		t.Fatal("not refused")
	}
	s.send(requestPiece(completion, false), requestPiece("", true))
	s.silent()
	s.cancel()

	// Not even to trailers, where each message waits for its answer.
	s = h.script()
	head := requestHead(false, post...)
	head.ProtocolConfig.RequestBodyMode = filter.ProcessingMode_BUFFERED
	s.send(head, requestPiece("{", false))
	s.receive()
	if s.receive().GetImmediateResponse() == nil {
		t.Fatal("not refused")
	}
	s.send(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestTrailers{RequestTrailers: &pb.HttpTrailers{}}})
	s.silent()
	s.cancel()
	h.idle()
}

func TestSequenceE_AnswersComeBackPieceByPiece(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
	s := h.script()
	s.routed(completion)
	s.send(responseHead(false, ":status", "200", "content-type", "application/json"))
	if s.receive().GetResponseHeaders() == nil { // at once: the client's headers wait for it
		t.Fatal("the headers are not answered")
	}
	for i, piece := range []string{`{"choices"`, ``, `:[]}`} {
		s.send(responsePiece(piece, i == 2))
		got := s.receive().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if string(got.GetBody()) != piece || got.GetEndOfStream() != (i == 2) {
			t.Errorf("%q comes back as %v", piece, got)
		}
	}
	s.cancel()
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
}

// Every event reaches the client before the next one is made.
func TestSequenceF_EventsAreNotHeldBack(t *testing.T) {
	next := make(chan bool)
	const events = 20
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_ = readRequest(r)
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range events {
			_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"text\":\"%d\"}]}\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-next
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	})
	h := newHouse(t, Options{}, ServeOptions{}, spec(e))
	for _, seed := range []uint64{0, 9} {
		answer := h.envoy(envoytest.Options{Seed: seed}).post("/v1/completions", `{"model":"m","prompt":[1],"stream":true}`)
		lines := bufio.NewReader(answer.Body)
		for i := range events {
			line, err := lines.ReadString('\n')
			if want := fmt.Sprintf("data: {\"choices\":[{\"text\":\"%d\"}]}\n", i); err != nil || line != want {
				t.Fatalf("%q, %v, want %q", line, err, want)
			}
			if i == 0 {
				eventually(t, "the first token is seen", func() bool { return h.seen.count(func(r *recorder) int { return r.first }) > 0 })
			}
			_, _ = lines.ReadString('\n')
			next <- true
		}
		if rest, err := io.ReadAll(lines); err != nil || string(rest) != "data: [DONE]\n\n" {
			t.Errorf("%q, %v", rest, err)
		}
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 2})
	if n := h.seen.count(func(r *recorder) int { return r.first }); n != 2 {
		t.Errorf("%d first tokens, want 2", n)
	}
}

func TestSequenceG_AnswersWithoutABody(t *testing.T) {
	e := engine(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })
	h := newHouse(t, Options{}, ServeOptions{}, spec(e))
	if answer := h.envoy(envoytest.Options{}).post("/v1/completions", completion); answer.StatusCode != http.StatusNoContent {
		t.Errorf("status %d", answer.StatusCode)
	}
	g := h.envoy(envoytest.Options{})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodHead, g.url+"/v1/models", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	g.do(r)
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 2})
}

func TestSequenceH_TrailersOfAnswersComeBack(t *testing.T) {
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_ = readRequest(r)
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = io.WriteString(w, "body")
		_ = http.NewResponseController(w).Flush()
		w.Header().Set("Grpc-Status", "0")
	})
	h := newHouse(t, Options{}, ServeOptions{}, spec(e))
	for _, seed := range []uint64{0, 4, 5} {
		answer := h.envoy(envoytest.Options{Seed: seed}).post("/v1/completions", completion)
		if text := read(t, answer); text != "body" || answer.Trailer.Get("Grpc-Status") != "0" {
			t.Errorf("%q, trailers %v", text, answer.Trailer)
		}
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 3})
}

// Wherever a stream is cut off, the request's account is closed, once.
func TestSequenceI_AbortsAtEveryPoint(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
	steps := []*pb.ProcessingRequest{
		requestHead(false, post...), requestPiece(completion[:9], false), requestPiece(completion[9:], true),
		responseHead(false, ":status", "200", "content-type", "text/event-stream"),
		responsePiece("data: {\"choices\":[{\"text\":\"a\"}]}\n\n", false), responsePiece("", true),
	}
	answers := []int{0, 0, 2, 1, 1, 1} // to each step
	for n := len(steps); n >= 0; n-- { // the complete sequence first, so that it is known that this gateway shows answers
		s := h.script()
		for i, step := range steps[:n] {
			s.send(step)
			for range answers[i] {
				s.receive()
			}
		}
		s.cancel()
		eventually(t, "the stream has ended", func() bool { return h.server.Streams() == 0 })
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 1, picker.ClientGone: 3})
}

func TestSequenceI_ClientsAndEnginesThatBreakOff(t *testing.T) {
	entered, leave := make(chan bool), make(chan bool)
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_ = readRequest(r)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"a\"}]}\n\n")
		_ = http.NewResponseController(w).Flush()
		entered <- true
		if <-leave {
			panic(http.ErrAbortHandler)
		}
		<-r.Context().Done()
	})
	h := newHouse(t, Options{}, ServeOptions{}, spec(e))
	g := h.envoy(envoytest.Options{})
	for _, engineBreaks := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/completions", strings.NewReader(completion))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		<-entered
		leave <- engineBreaks
		if engineBreaks {
			if _, err := io.ReadAll(answer.Body); err == nil {
				t.Error("the client was not told that the answer is not whole")
			}
		}
		cancel()
		_ = answer.Body.Close()
	}
	h.outcomes(map[picker.Outcome]int64{picker.ClientGone: 2})
}

// Gateways that wait for the answer to the headers get it, and the destination as soon as it can be known.
func TestSequenceJ_ModesThatWaitForEachAnswer(t *testing.T) {
	got := make(chan string, 1)
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		got <- readRequest(r)
		_, _ = io.WriteString(w, "answer")
	})
	modes := map[string]filter.ProcessingMode_BodySendMode{
		"buffered": filter.ProcessingMode_BUFFERED, "partial": filter.ProcessingMode_BUFFERED_PARTIAL,
		"streamed": filter.ProcessingMode_STREAMED, "none": filter.ProcessingMode_NONE,
	}
	body := `{"model":"m","prompt":"` + strings.Repeat("long ", 1000) + `"}`
	for _, request := range slices.Sorted(maps.Keys(modes)) {
		for _, response := range []string{"none", "streamed", "buffered"} {
			t.Run(request+", "+response, func(t *testing.T) {
				h := newHouse(t, Options{}, ServeOptions{}, spec(e))
				g := h.envoy(envoytest.Options{
					Request: envoytest.WithMode(modes[request]), Response: envoytest.WithMode(modes[response]), MessageTimeout: 5 * time.Second,
				})
				if text := read(t, g.post("/v1/completions", body)); text != "answer" {
					t.Fatalf("answer %q", text) // the engine might have received nothing
				}
				if sent := await(t, got); sent != body {
					t.Errorf("the engine got %d bytes", len(sent))
				}
				want := "m" // the body was read before the pick
				if request == "streamed" || request == "none" {
					want = ""
				}
				if models := h.seen.models; len(models) != 1 || models[0] != want {
					t.Errorf("picked for models %q, want %q", models, want)
				}
			})
		}
	}
	t.Run("full duplex, answers one by one", func(t *testing.T) {
		h := newHouse(t, Options{}, ServeOptions{}, spec(e))
		g := h.envoy(envoytest.Options{Response: envoytest.WithMode(filter.ProcessingMode_STREAMED)})
		if text := read(t, g.post("/v1/completions", body)); text != "answer" {
			t.Errorf("answer %q", text)
		}
		await(t, got)
	})
	t.Run("buffered, refused", func(t *testing.T) {
		h := newHouse(t, Options{}, ServeOptions{}, spec(e))
		g := h.envoy(envoytest.Options{Request: envoytest.WithMode(filter.ProcessingMode_BUFFERED)})
		if answer := g.post("/v1/completions", `{`); answer.StatusCode != 400 {
			t.Errorf("status %d", answer.StatusCode)
		}
	})
}

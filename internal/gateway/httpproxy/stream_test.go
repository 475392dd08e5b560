package httpproxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

const (
	streamed = `{"model":"m","prompt":[` + ids64 + `],"stream":true}`
	ids64    = `1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,` +
		`33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59,60,61,62,63,64`
)

func token(text string) string {
	return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"text\":%q,\"finish_reason\":null}]}\n\n", text)
}

// say sends a piece of an answer at once.
func say(w http.ResponseWriter, text string) {
	_, _ = io.WriteString(w, text)
	_ = http.NewResponseController(w).Flush()
}

func eventStream(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
}

func TestPiecesPassAsTheyCome(t *testing.T) {
	cases := map[string]struct {
		kind   string
		pieces []string
	}{
		"events":                  {"text/event-stream", []string{token("a"), token("b"), "data: [DONE]\n\n"}},
		"parts of events":         {"text/event-stream", []string{"da", "ta: {\"choices\":[{\"te", "xt\":\"a\"}]}\r\n\r", "\n", ": ping\n\n"}},
		"JSON of unknown length":  {"application/json", []string{`{"id":`, `"x"`, `}`}},
		"neither JSON nor events": {"", []string{"\x00\xff", "\n\n", "data: [DONE]"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			step := make(chan struct{})
			address := engine(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if tc.kind != "" {
					w.Header().Set("Content-Type", tc.kind)
				}
				for _, piece := range tc.pieces {
					say(w, piece)
					<-step // until the client has it
				}
			})
			h := newHouse(t, Options{Hold: time.Millisecond}, spec(address))
			r := h.post("/v1/completions", streamed)
			for i, piece := range tc.pieces {
				got := make([]byte, len(piece))
				if _, err := io.ReadFull(r.Body, got); err != nil || string(got) != piece {
					t.Fatalf("piece %d: %q %v, want %q", i, got, err, piece)
				}
				step <- struct{}{}
			}
			if rest := read(t, r); rest != "" {
				t.Errorf("%q follows", rest)
			}
			h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
		})
	}
}

// TestAHeaderIsHeldForAWhileOnly: the engine sends no event before the client has the header.
func TestAHeaderIsHeldForAWhileOnly(t *testing.T) {
	arrived := make(chan struct{})
	address := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		eventStream(w)
		<-arrived
		say(w, token("a"))
	})
	h := newHouse(t, Options{Hold: time.Millisecond}, spec(address))
	r := h.post("/v1/completions", streamed)
	close(arrived)
	if got := read(t, r); got != token("a") {
		t.Errorf("%q", got)
	}
}

func TestFirstTokenAndUsageAreTold(t *testing.T) {
	usage := "\"usage\":{\"prompt_tokens\":64,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":48}}"
	hold := make(chan struct{})
	address := engine(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(body), `"stream":true`) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"choices":[],`+usage+`}`)
			return
		}
		eventStream(w)
		say(w, token("a"))
		<-hold
		say(w, token("b")+"data: {\"choices\":[],"+usage+"}\n\ndata: [DONE]\n\n")
	})
	h := newHouse(t, Options{}, spec(address))
	r := h.post("/v1/completions", streamed)
	eventually(t, "the first token is reported while the stream goes on", func() bool {
		return h.seen.count(func(r *recorder) int { return r.first }) == 1
	})
	if load := h.picker.Stats()[0].Endpoints[0].Load; load.InFlight != 1 || load.Decoding != 1 {
		t.Errorf("load while decoding: %+v", load)
	}
	eventually(t, "the request's body is given back while the stream goes on", func() bool { return h.proxy.budget.Held(budget.Bodies) == 0 })
	close(hold)
	read(t, r)
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
	read(t, h.post("/v1/completions", strings.Replace(streamed, "true", "false", 1)))
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 2})

	hits := h.picker.Stats()[0].Hits
	if hits.Answers != 2 || hits.PromptTokens != 128 || hits.Delivered != 96 {
		t.Errorf("hits: %+v", hits)
	}
	if n := h.seen.count(func(r *recorder) int { return r.first }); n != 1 {
		t.Errorf("%d first tokens, want 1: an answer that is not streamed has none", n)
	}
}

func TestAClientThatLeavesStopsTheEngine(t *testing.T) {
	cases := map[string]func(w http.ResponseWriter){
		"before the header":      func(http.ResponseWriter) {},
		"before the first token": eventStream,
		"in the middle":          func(w http.ResponseWriter) { eventStream(w); say(w, token("a")) },
	}
	for name, begin := range cases {
		t.Run(name, func(t *testing.T) {
			begun, stopped := make(chan struct{}), make(chan struct{})
			address := engine(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				begin(w)
				close(begun)
				<-r.Context().Done()
				close(stopped)
			})
			h := newHouse(t, Options{}, spec(address, address))
			ctx, leave := context.WithCancel(context.Background())
			defer leave()
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"/v1/completions", strings.NewReader(streamed))
			if err != nil {
				t.Fatal(err)
			}
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				r, err := http.DefaultTransport.RoundTrip(request)
				if err == nil {
					_, err = io.ReadAll(r.Body)
					_ = r.Body.Close()
				}
				if err == nil {
					t.Error("the answer ended as if it were whole")
				}
			}()
			await(t, "the engine is asked", begun)
			leave()
			await(t, "the client leaves", gone)
			await(t, "the engine sees the end", stopped)
			h.outcomes(map[picker.Outcome]int64{picker.ClientGone: 1})
			if s := h.picker.Stats()[0]; s.Retries != 0 || s.Endpoints[0].Failures != 0 {
				t.Errorf("the endpoint was blamed: %+v", s)
			}
		})
	}
}

func TestAnEngineThatBreaksOffIsNoticed(t *testing.T) {
	breakOff := func(w http.ResponseWriter) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	}
	cases := map[string]struct {
		answer func(w http.ResponseWriter)
		// retries that the request had. The client does not see them.
		retries int64
	}{
		"a stream after its first token":  {func(w http.ResponseWriter) { eventStream(w); say(w, token("a")); breakOff(w) }, 0},
		"a stream before its first token": {func(w http.ResponseWriter) { eventStream(w); breakOff(w) }, 1},
		"JSON of known length": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			say(w, `{"id":`)
			breakOff(w)
		}, 1},
		"JSON too long to be held back": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", fmt.Sprint(holdJSON+1))
			say(w, `{"id":`)
			breakOff(w)
		}, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			address := engine(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				tc.answer(w)
			})
			s := spec(address, address)
			h := newHouse(t, Options{}, s)
			r := h.post("/v1/completions", streamed)
			b, err := io.ReadAll(r.Body)
			if whole := err == nil; whole != (tc.retries > 0) || whole && r.StatusCode != http.StatusBadGateway {
				t.Errorf("status %d, error %v: %q", r.StatusCode, err, b)
			}
			h.outcomes(map[picker.Outcome]int64{picker.Failed: 1})
			if s := h.picker.Stats()[0]; s.Retries != tc.retries || s.Endpoints[0].Failures != 1 {
				t.Errorf("%d retries, %d failures", s.Retries, s.Endpoints[0].Failures)
			}
		})
	}
}

func TestErrorsInsideAStreamCount(t *testing.T) {
	cases := map[string]string{
		"an error event":     "data: {\"error\":{\"message\":\"dead\",\"type\":\"x\",\"code\":500}}\n\ndata: [DONE]\n\n",
		"an aborted request": "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"abort\"}]}\n\ndata: [DONE]\n\n",
	}
	for name, end := range cases {
		t.Run(name, func(t *testing.T) {
			seen := make(chan struct{})
			address := engine(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				eventStream(w)
				say(w, token("a"))
				<-seen
				say(w, end)
			})
			h := newHouse(t, Options{}, spec(address))
			r := h.post("/v1/completions", streamed)
			first := make([]byte, len(token("a")))
			if _, err := io.ReadFull(r.Body, first); err != nil {
				t.Fatal(err)
			}
			close(seen)
			if got := read(t, r); got != end {
				t.Errorf("%q", got)
			}
			h.outcomes(map[picker.Outcome]int64{picker.Failed: 1})
			if n := h.picker.Stats()[0].Endpoints[0].Failures; n != 1 {
				t.Errorf("%d failures", n)
			}
		})
	}
}

func TestASlowReaderHoldsTheEngineBackAndIsGivenUp(t *testing.T) {
	stopped := make(chan struct{})
	address := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		defer close(stopped)
		w.Header().Set("Content-Type", "text/event-stream")
		for event := token(strings.Repeat("x", 1<<16)); r.Context().Err() == nil; {
			if _, err := io.WriteString(w, event); err != nil {
				return
			}
		}
	})
	h := newHouse(t, Options{Stall: 200 * time.Millisecond}, spec(address))
	r := h.post("/v1/completions", streamed)
	if _, err := bufio.NewReader(r.Body).Peek(1); err != nil {
		t.Fatal(err)
	}
	await(t, "the engine sees the end, since the client reads no more", stopped)
	h.outcomes(map[picker.Outcome]int64{picker.ClientGone: 1})
}

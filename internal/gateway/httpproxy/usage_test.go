package httpproxy

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// asking is an engine that streams as vLLM does: it reports the usage to requests that ask for it, or to all.
type asking struct {
	forced, packed, framed bool
	several                bool   // it streams two answers
	print                  string // its fingerprint: of the usage event or, without one, of the last event of each answer
	end                    string // of a line
	pieces                 int    // bytes that are sent at once, at most
	asked                  atomic.Int64
	accepts                atomic.Value // what the last request accepts
}

// stream is what it sends.
func (a *asking) stream(usage bool) string {
	last, of := "", ""
	if a.print != "" {
		of = `,"system_fingerprint":"` + a.print + `"`
	}
	if !usage {
		last = of
	}
	lines := `data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n" + ": ping\n\n"
	if a.several {
		lines += `data: {"id":"x","choices":[{"index":1,"delta":{"content":"hé"},"finish_reason":"stop"}]` + last + "}\n\n"
	}
	lines += `data: {"id":"x","choices":[{"index":0,"delta":{"content":"h}"},"finish_reason":"stop"}]` + last + "}\n\n"
	if usage {
		lines += `data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":` +
			`{"prompt_tokens":9,"total_tokens":11,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}` + of + "}\n\n"
	}
	return strings.ReplaceAll(lines+"data: [DONE]\n\n", "\n", a.end)
}

func (a *asking) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Options struct {
			Include bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	raw, _ := io.ReadAll(r.Body)
	if json.Unmarshal(raw, &body) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if body.Options.Include {
		a.asked.Add(1)
	}
	a.accepts.Store(r.Header.Get("Accept-Encoding"))
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	text := a.stream(a.forced || body.Options.Include)
	if a.packed {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, text)
		_ = z.Close()
		return
	}
	if a.framed {
		w.Header().Set("Content-Length", fmt.Sprint(len(text)))
	}
	for a.pieces > 0 && len(text) > 0 {
		n := min(len(text), 1+rand.IntN(a.pieces))
		_, _ = io.WriteString(w, text[:n])
		w.(http.Flusher).Flush()
		text = text[n:]
	}
	_, _ = io.WriteString(w, text)
}

func asksUsage(address ...string) picker.Spec {
	s := spec(address...)
	s.Policy.AsksUsage = true
	return s
}

const streamOfChat = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]`

// TestClientsGetTheStreamThatTheyAskedFor: whatever the engine does and however its answer arrives, the client's stream is that
// of the engine without the picker, byte for byte, and the picker knows what the engine has found.
func TestClientsGetTheStreamThatTheyAskedFor(t *testing.T) {
	for name, tc := range map[string]struct {
		engine *asking
		off    bool // by the policy
		more   string
		told   int64 // of five answers
		asked  int64
	}{
		"an engine that reports on request": {engine: &asking{}, told: 4, asked: 4},
		"in small pieces":                   {engine: &asking{pieces: 7}, told: 4, asked: 4},
		"with carriage returns":             {engine: &asking{pieces: 50, end: "\r\n"}, told: 4, asked: 4},
		"with a length":                     {engine: &asking{framed: true}, told: 4, asked: 4},
		"an engine with a fingerprint":      {engine: &asking{print: "v-1"}, told: 4, asked: 4},
		"a fingerprint in small pieces":     {engine: &asking{print: "v-1", pieces: 7, end: "\r\n"}, told: 4, asked: 4},
		"several answers":                   {engine: &asking{several: true, print: "v-1"}, more: `,"n":2`},
		"usage that is not wanted":          {engine: &asking{}, more: `,"stream_options":{"include_usage":false}`, told: 4, asked: 4},
		"no options":                        {engine: &asking{}, more: `,"stream_options":null`, told: 4, asked: 4},
		"usage that is asked for":           {engine: &asking{}, more: `,"stream_options":{"include_usage":true}`, told: 5, asked: 5},
		"other options":                     {engine: &asking{}, more: `,"stream_options":{"continuous_usage_stats":true}`},
		"an engine that always reports":     {engine: &asking{forced: true}, told: 5},
		"an engine that compresses":         {engine: &asking{packed: true}},
		"a policy that asks for nothing":    {engine: &asking{}, off: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.engine.end == "" {
				tc.engine.end = "\n"
			}
			s := asksUsage(engine(t, tc.engine.ServeHTTP))
			s.Policy.AsksUsage = !tc.off
			h := newHouse(t, Options{}, s)
			wanted := tc.engine.forced || strings.Contains(tc.more, `"include_usage":true`)
			for i := range 5 {
				answer := h.post("/v1/chat/completions", streamOfChat+tc.more+"}", "Accept-Encoding", "gzip, deflate")
				body := io.Reader(answer.Body)
				if tc.engine.packed {
					z, err := gzip.NewReader(answer.Body)
					if err != nil {
						t.Fatal(err)
					}
					body = z
				}
				got, err := io.ReadAll(body)
				if want := tc.engine.stream(wanted); err != nil || string(got) != want {
					t.Fatalf("stream %d (%v):\ngot  %q\nwant %q", i, err, got, want)
				}
			}
			eventually(t, "the end of the requests", func() bool { return h.picker.Stats()[0].Outcomes[picker.Completed] == 5 })
			if told := 5 - h.picker.Stats()[0].Hits.Silent; told != tc.told || tc.engine.asked.Load() != tc.asked {
				t.Errorf("%d answers have told, %d requests have asked; want %d, %d", told, tc.engine.asked.Load(), tc.told, tc.asked)
			}
			accepts := "gzip, deflate"
			if tc.asked == 4 {
				accepts = "identity"
			}
			if got := tc.engine.accepts.Load(); got != accepts {
				t.Errorf("the engine is asked for the encoding %q, want %q", got, accepts)
			}
		})
	}
}

// TestAnEngineThatReportsInPlaceOfAnotherIsLeftAlone: a request that was made to ask goes to a fallback that always reports.
func TestAnEngineThatReportsInPlaceOfAnotherIsLeftAlone(t *testing.T) {
	forced := &asking{forced: true, end: "\n"}
	var broken atomic.Bool
	silent := &asking{end: "\n"}
	first := engine(t, func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			panic(http.ErrAbortHandler)
		}
		silent.ServeHTTP(w, r)
	})
	s := asksUsage(first, engine(t, forced.ServeHTTP))
	h := newHouse(t, Options{}, s)
	for range 4 { // in turns: both are known now
		read(t, h.post("/v1/chat/completions", streamOfChat+"}"))
	}
	if silent.asked.Load() != 1 || forced.asked.Load() != 0 {
		t.Fatalf("asked %d and %d times, want 1 and 0", silent.asked.Load(), forced.asked.Load())
	}
	broken.Store(true)
	if got, want := read(t, h.post("/v1/chat/completions", streamOfChat+"}")), forced.stream(true); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if forced.asked.Load() != 1 {
		t.Errorf("the fallback was asked %d times, want once", forced.asked.Load())
	}
}

// TestAnEngineThatFailedIsLearnedAgain: the engine at an address can be started again with other flags.
func TestAnEngineThatFailedIsLearnedAgain(t *testing.T) {
	e := &asking{end: "\n"}
	var broken atomic.Bool
	h := newHouse(t, Options{}, asksUsage(engine(t, func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			panic(http.ErrAbortHandler)
		}
		e.ServeHTTP(w, r)
	})))
	for range 2 {
		read(t, h.post("/v1/chat/completions", streamOfChat+"}"))
	}
	broken.Store(true)
	h.post("/v1/chat/completions", streamOfChat+"}")
	broken.Store(false)
	e.forced = true
	for range 3 {
		if got, want := read(t, h.post("/v1/chat/completions", streamOfChat+"}")), e.stream(true); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}

// TestAStreamThatBreaksOffLosesNothing: what was sent of the last event reaches the client, as it would without the picker.
func TestAStreamThatBreaksOffLosesNothing(t *testing.T) {
	whole := &asking{end: "\n"}
	var broken atomic.Bool
	const half = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\ndata: {\"choi"
	h := newHouse(t, Options{}, asksUsage(engine(t, func(w http.ResponseWriter, r *http.Request) {
		if !broken.Load() {
			whole.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, half)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})))
	read(t, h.post("/v1/chat/completions", streamOfChat+"}"))
	broken.Store(true)
	answer := h.post("/v1/chat/completions", streamOfChat+"}")
	if got, err := io.ReadAll(answer.Body); string(got) != half || err == nil {
		t.Errorf("%q, %v", got, err)
	}
}

package httpproxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// party is a stand-in engine of a pool with roles. It keeps the requests that it gets.
type party struct {
	address string

	mu    sync.Mutex
	got   []map[string]any
	ids   []string
	serve http.HandlerFunc // in place of what it does
}

func newParty(t *testing.T, name string) *party {
	p := &party{}
	p.address = engine(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var fields map[string]any
		if err := json.Unmarshal(body, &fields); err != nil {
			t.Errorf("%s got %q", name, body)
		}
		p.mu.Lock()
		p.got, p.ids = append(p.got, fields), append(p.ids, r.Header.Get("X-Request-Id"))
		serve := p.serve
		p.mu.Unlock()
		params, _ := fields["kv_transfer_params"].(map[string]any)
		switch {
		case serve != nil:
			serve(w, r)
		case params["do_remote_decode"] == true:
			answerJSON(w, 200, fmt.Sprintf(`{"choices":[{"index":0,"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":100,`+
				`"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}},"kv_transfer_params":{"do_remote_prefill":true,`+
				`"do_remote_decode":false,"remote_host":%q,"odd":[[1,2],[]]}}`, name))
		default:
			answerJSON(w, 200, fmt.Sprintf(`{"choices":[{"index":0,"text":"of %s","finish_reason":"length"}],"usage":{"prompt_tokens":100,"completion_tokens":5}}`, name))
		}
	})
	return p
}

func answerJSON(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

func (p *party) does(f http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serve = f
}

// latest is the last request that it got.
func (p *party) latest() map[string]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.got[len(p.got)-1]
}

func (p *party) requests() []map[string]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.got
}

// withRoles is a proxy of a pool of two engines that prefill, in this order, and two that decode.
func withRoles(t *testing.T) (h *house, p, d [2]*party) {
	t.Helper()
	return withRolesOf(t, Options{}, func(*picker.Spec) {})
}

// withRolesOf is withRoles with options and a change of the pool.
func withRolesOf(t *testing.T, o Options, change func(*picker.Spec)) (h *house, p, d [2]*party) {
	t.Helper()
	for i := range p {
		p[i], d[i] = newParty(t, fmt.Sprint("p", i)), newParty(t, fmt.Sprint("d", i))
	}
	s := spec(p[0].address, p[1].address, d[0].address, d[1].address)
	for i := range s.Endpoints {
		s.Endpoints[i].Role = []endpoint.Role{endpoint.Prefill, endpoint.Prefill, endpoint.Decode, endpoint.Decode}[i]
	}
	s.Policy.Handoffs = picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: 64}
	s.Policy.AnswerHeaders = "Always"
	change(&s)
	return newHouse(t, o, s), p, d
}

// prompted is a request with a prompt of 100 tokens.
func prompted(more string) string {
	return `{"model":"m","prompt":[` + strings.TrimSuffix(strings.Repeat("7,", 100), ",") + `]` + more + `}`
}

// handoffs waits until nothing is under way, and returns the outcomes of hand-offs.
func (h *house) handoffs() map[string]int64 {
	h.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		held := h.proxy.budget.Stats().Held // by requests whose hand-offs are not counted yet, though their load is gone
		stats, busy := h.picker.Stats()[0], 0
		for _, e := range stats.Endpoints {
			busy += e.Load.InFlight
		}
		if busy == 0 && stats.Speculating == 0 && held == 0 {
			out := map[string]int64{}
			for outcome, n := range stats.Handoffs {
				if n > 0 {
					out[outcome.String()] = n
				}
			}
			return out
		}
		if time.Now().After(end) {
			h.t.Fatalf("%d requests are under way, %d speculate, %d bytes are held", busy, stats.Speculating, held)
		}
	}
}

func TestAPromptIsHandedOver(t *testing.T) {
	h, p, d := withRoles(t)
	answer := h.post("/v1/completions", prompted(`,"stream":false,"max_tokens":50,"min_tokens":5`), "X-Request-Id", "mine")
	body, _ := io.ReadAll(answer.Body)
	if answer.StatusCode != 200 || !strings.Contains(string(body), `"of d`) {
		t.Fatalf("status %d: %s", answer.StatusCode, body)
	}
	if got := answer.Header.Get("X-Kvasir-Prefill-Endpoint"); got != "pod-0/0" && got != "pod-1/0" {
		t.Errorf("prefilled by %q", got)
	}
	first, second := append(p[0].requests(), p[1].requests()...), append(d[0].requests(), d[1].requests()...)
	if len(first) != 1 || len(second) != 1 {
		t.Fatalf("%d requests to prefill, %d to decode", len(first), len(second))
	}
	if f := first[0]; f["stream"] != false || f["max_tokens"] != 1. || f["min_tokens"] != nil || f["max_completion_tokens"] != nil {
		t.Errorf("the first leg: %v", f)
	}
	params, _ := json.Marshal(second[0]["kv_transfer_params"])
	if s := second[0]; s["max_tokens"] != 50. || s["min_tokens"] != 5. || !strings.Contains(string(params), `"odd":[[1,2],[]]`) {
		t.Errorf("the second leg: %v", s)
	}
	ids := append(append(append(p[0].ids, p[1].ids...), d[0].ids...), d[1].ids...)
	if len(ids) != 2 || ids[0] != ids[1] {
		t.Errorf("request ids %q", ids)
	}
	if got := h.handoffs(); got["completed"] != 1 || len(got) != 1 {
		t.Errorf("hand-offs %v", got)
	}
}

func TestClientsNameNoBlocks(t *testing.T) {
	h, p, d := withRoles(t)
	answer := h.post("/v1/completions", prompted(`,"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"10.0.0.1"}`))
	if n := len(p[0].requests()) + len(p[1].requests()) + len(d[0].requests()) + len(d[1].requests()); answer.StatusCode != 400 || n != 0 {
		t.Errorf("status %d, %d requests to engines", answer.StatusCode, n)
	}
}

func TestHandoffsThatFailAreServedAllTheSame(t *testing.T) {
	broken := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	fails := func(w http.ResponseWriter, _ *http.Request) {
		answerJSON(w, 500, `{"error":{"message":"x","code":500}}`)
	}
	both := func(list [2]*party, f http.HandlerFunc) {
		list[0].does(f)
		list[1].does(f)
	}
	for name, tc := range map[string]struct {
		make func(p, d [2]*party)
		want map[string]int64
	}{
		"one prefill fails":        {func(p, _ [2]*party) { p[0].does(fails) }, map[string]int64{"completed": 1}},
		"one prefill breaks":       {func(p, _ [2]*party) { p[0].does(broken) }, map[string]int64{"completed": 1}},
		"all prefills fail":        {func(p, _ [2]*party) { both(p, fails) }, map[string]int64{"prefill_failed": 1}},
		"a queue is full":          {func(p, _ [2]*party) { both(p, full) }, map[string]int64{"prefill_failed": 1}},
		"no parameters":            {func(p, _ [2]*party) { both(p, plain) }, map[string]int64{"no_parameters": 1}},
		"an answer without an end": {func(p, _ [2]*party) { both(p, endless) }, map[string]int64{"no_memory": 1}},
		"a prefill is given up":    {func(p, _ [2]*party) { both(p, aborted) }, map[string]int64{"prefill_failed": 1}},
		"one decode breaks":        {func(_, d [2]*party) { both(d, breaksOnce()) }, map[string]int64{"decode_failed": 1}},
		"parameters are refused":   {func(_, d [2]*party) { d[0].refuses(); d[1].refuses() }, map[string]int64{"decode_failed": 1}},
		"no decode can load":       {func(_, d [2]*party) { d[0].cannotLoad(); d[1].cannotLoad() }, map[string]int64{"decode_failed": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			h, p, d := withRoles(t)
			tc.make(p, d)
			answer := h.post("/v1/completions", prompted(""))
			body, _ := io.ReadAll(answer.Body)
			if answer.StatusCode != 200 || !strings.Contains(string(body), `"of d`) {
				t.Errorf("status %d: %.200s", answer.StatusCode, body)
			}
			got := h.handoffs()
			if fmt.Sprint(got) != fmt.Sprint(tc.want) {
				t.Errorf("hand-offs %v, want %v", got, tc.want)
			}
			if n, _ := withParameters(d); n > 1 { // blocks are free once they are read
				t.Errorf("parameters were sent %d times", n)
			}
		})
	}
}

// breaksOnce breaks the connection of the first request, and answers others.
func breaksOnce() http.HandlerFunc {
	broke := new(atomic.Bool)
	return func(w http.ResponseWriter, _ *http.Request) {
		if !broke.Swap(true) {
			panic(http.ErrAbortHandler)
		}
		answerJSON(w, 200, `{"choices":[{"text":"of d","finish_reason":"length"}],"usage":{"prompt_tokens":100,"completion_tokens":5}}`)
	}
}

func full(w http.ResponseWriter, _ *http.Request) { answerJSON(w, 429, `{}`) }

func plain(w http.ResponseWriter, _ *http.Request) {
	answerJSON(w, 200, `{"choices":[{"text":"a","finish_reason":"length"}],"kv_transfer_params":null}`)
}

func aborted(w http.ResponseWriter, _ *http.Request) {
	answerJSON(w, 200, `{"choices":[{"text":"","finish_reason":"abort"}],"usage":{"prompt_tokens":100,"completion_tokens":0}}`)
}

func endless(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"choices":[{"text":"a","finish_reason":"length"}],"x":"`)
	for r.Context().Err() == nil {
		if _, err := io.WriteString(w, strings.Repeat("x", 1<<16)); err != nil {
			return
		}
	}
}

func TestAClientThatLeavesEndsBothLegs(t *testing.T) {
	for name, role := range map[string]string{"during the prefill": "p", "during the decode": "d"} {
		t.Run(name, func(t *testing.T) {
			h, p, d := withRoles(t)
			begun, gone := make(chan struct{}, 2), make(chan struct{}, 2)
			hangs := func(_ http.ResponseWriter, r *http.Request) {
				begun <- struct{}{}
				<-r.Context().Done()
				gone <- struct{}{}
			}
			for i := range p {
				if role == "p" {
					p[i].does(hangs)
				} else {
					d[i].does(hangs)
				}
			}
			r, err := http.NewRequest(http.MethodPost, h.url+"/v1/completions", strings.NewReader(prompted("")))
			if err != nil {
				t.Fatal(err)
			}
			client := &http.Client{Transport: &http.Transport{}, Timeout: 0}
			defer client.CloseIdleConnections()
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() {
				defer close(done)
				if answer, err := client.Do(r.WithContext(ctx)); err == nil {
					_ = answer.Body.Close()
				}
			}()
			<-begun
			cancel()
			<-gone
			<-done
			if got := h.handoffs(); got["client_gone"] != 1 || len(got) != 1 {
				t.Errorf("hand-offs %v", got)
			}
			if role == "p" && len(d[0].requests())+len(d[1].requests()) != 0 {
				t.Error("the second leg was sent")
			}
		})
	}
}

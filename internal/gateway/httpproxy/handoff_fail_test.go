package httpproxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// cannotLoad serves a prompt alone, but answers an error to requests with parameters, as engines do that load no blocks of
// an engine that has died.
func (p *party) cannotLoad() { p.answersParameters(500) }

// refuses answers requests with parameters as invalid.
func (p *party) refuses() { p.answersParameters(400) }

func (p *party) answersParameters(status int) {
	p.does(func(w http.ResponseWriter, _ *http.Request) {
		if p.latest()["kv_transfer_params"] != nil {
			answerJSON(w, status, fmt.Sprintf(`{"error":{"message":"x","code":%d}}`, status))
			return
		}
		answerJSON(w, 200, `{"choices":[{"text":"of d alone","finish_reason":"length"}],"usage":{"prompt_tokens":100,"completion_tokens":5}}`)
	})
}

// Many requests whose blocks are lost at once are all served: those that can load nothing have computed nothing, so that the
// retry budget has no part in it.
func TestBlocksThatAreLostCostNoRequest(t *testing.T) {
	const n = 60
	h, p, d := withRoles(t)
	var prefilled sync.WaitGroup // all of them, before one is to be decoded: no endpoint is left out before
	prefilled.Add(n)
	for i := range 2 {
		d[i].cannotLoad()
		p[i].does(func(w http.ResponseWriter, _ *http.Request) {
			prefilled.Done()
			prefilled.Wait()
			answerJSON(w, 200, `{"choices":[{"index":0,"text":"a","finish_reason":"length"}],"kv_transfer_params":{"do_remote_prefill":true}}`)
		})
	}
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			answer := h.post("/v1/completions", prompted(""))
			if body, _ := io.ReadAll(answer.Body); answer.StatusCode != 200 || !strings.Contains(string(body), "of d alone") {
				t.Errorf("status %d: %.200s", answer.StatusCode, body)
			}
		})
	}
	all.Wait()
	if got := h.handoffs(); fmt.Sprint(got) != fmt.Sprint(map[string]int64{"decode_failed": n}) {
		t.Errorf("hand-offs %v", got)
	}
	if got := len(d[0].requests()) + len(d[1].requests()); got != 2*n {
		t.Errorf("%d requests to endpoints that decode, want two for each", got)
	}
}

// The answer of a prefill shows its speed without events.
func TestThePrefillShowsItsSpeed(t *testing.T) {
	h, p, _ := withRoles(t)
	for i := range p {
		p[i].does(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(5 * time.Millisecond) // the prefill
			answerJSON(w, 200, `{"choices":[{"index":0,"text":"a","finish_reason":"length"}],"kv_transfer_params":{"do_remote_prefill":true}}`)
		})
	}
	for i := range 20 {
		body := `{"model":"m","prompt":[` + strings.TrimSuffix(strings.Repeat(fmt.Sprintf("%d,", i), 1000), ",") + `]}`
		if answer := h.post("/v1/completions", body); answer.StatusCode != 200 {
			t.Fatalf("status %d", answer.StatusCode)
		}
	}
	h.handoffs()
	learned := 0
	for _, e := range h.picker.Stats()[0].Endpoints[:2] {
		if e.Load.Rate > 0 {
			learned++
		}
	}
	if learned == 0 {
		t.Error("no speed was learned")
	}
}

// A prefill that is done does not wait for room at an endpoint that decodes: one that has refused it lets go of the blocks. The request
// goes alone, and waits for room where the policy lets requests wait.
func TestAPrefillThatFindsNoRoomGoesAlone(t *testing.T) {
	for name, tc := range map[string]struct {
		waits   bool
		refused int64 // requests at first
	}{"requests wait": {true, 3}, "requests do not wait": {false, 1}} {
		t.Run(name, func(t *testing.T) {
			h, p, d := withRolesOf(t, Options{}, func(s *picker.Spec) {
				s.Policy.Admission.Queue, s.Policy.Admission.WaitBudget = tc.waits, time.Hour
				s.Policy.Admission.Limits.Requests, s.Policy.Admission.Limits.Bytes = 1000, 1<<20
				s.Policy.Admission.Limits.TTL, s.Policy.Admission.Limits.Hold = time.Hour, time.Hour
			})
			var refused atomic.Int64
			for i := range d {
				d[i].does(func(w http.ResponseWriter, _ *http.Request) {
					if refused.Add(1) <= tc.refused {
						full(w, nil)
						return
					}
					answerJSON(w, 200, `{"choices":[{"text":"of d","finish_reason":"length"}],"usage":{"prompt_tokens":100,"completion_tokens":5}}`)
				})
			}
			answer := h.post("/v1/completions", prompted(""))
			if body, _ := io.ReadAll(answer.Body); answer.StatusCode != 200 || !strings.Contains(string(body), "of d") {
				t.Errorf("status %d: %.200s", answer.StatusCode, body)
			}
			if got := h.handoffs(); fmt.Sprint(got) != fmt.Sprint(map[string]int64{"no_decode": 1}) {
				t.Errorf("hand-offs %v", got)
			}
			if n := len(p[0].requests()) + len(p[1].requests()); n != 1 {
				t.Errorf("%d prefills", n)
			}
			if with, all := withParameters(d); with != 1 || all != int(tc.refused)+1 {
				t.Errorf("%d of %d requests have parameters", with, all)
			}
		})
	}
}

// withParameters counts the requests that have the parameters of a hand-off, and all.
func withParameters(d [2]*party) (with, all int) {
	for i := range d {
		for _, r := range d[i].requests() {
			if all++; r["kv_transfer_params"] != nil {
				with++
			}
		}
	}
	return with, all
}

// A prefill that does not end in time is not begun again elsewhere.
func TestAPrefillThatHangsGoesAlone(t *testing.T) {
	t.Parallel()
	h, p, d := withRolesOf(t, Options{}, func(s *picker.Spec) { s.Policy.FirstByte = inTime })
	for i := range p {
		p[i].does(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	}
	answer := h.post("/v1/completions", prompted(""))
	if body, _ := io.ReadAll(answer.Body); answer.StatusCode != 200 || !strings.Contains(string(body), "of d") {
		t.Errorf("status %d: %.200s", answer.StatusCode, body)
	}
	if got := h.handoffs(); fmt.Sprint(got) != fmt.Sprint(map[string]int64{"prefill_failed": 1}) {
		t.Errorf("hand-offs %v", got)
	}
	if n, m := len(p[0].requests())+len(p[1].requests()), len(d[0].requests())+len(d[1].requests()); n != 1 || m != 1 {
		t.Errorf("%d prefills, %d requests alone", n, m)
	}
}

// hangs answers requests without parameters only, as an engine does whose blocks do not come.
func (p *party) hangs() {
	p.does(func(w http.ResponseWriter, r *http.Request) {
		if p.latest()["kv_transfer_params"] != nil {
			<-r.Context().Done()
			return
		}
		answerJSON(w, 200, `{"choices":[{"text":"of d alone","finish_reason":"length"}],"usage":{"prompt_tokens":100,"completion_tokens":5}}`)
	})
}

// Blocks that do not come are not waited for at another endpoint, and are not the fault of the one that waits for them.
func TestADecodeThatHangsGoesAlone(t *testing.T) {
	t.Parallel()
	h, _, d := withRolesOf(t, Options{}, func(s *picker.Spec) { s.Policy.FirstByte = inTime })
	d[0].hangs()
	d[1].hangs()
	const n = 3
	for i := range n {
		answer := h.post("/v1/completions", strings.ReplaceAll(prompted(""), "7", strconv.Itoa(i)))
		if body, _ := io.ReadAll(answer.Body); answer.StatusCode != 200 || !strings.Contains(string(body), "of d alone") {
			t.Errorf("status %d: %.200s", answer.StatusCode, body)
		}
	}
	if got := h.handoffs(); fmt.Sprint(got) != fmt.Sprint(map[string]int64{"decode_failed": n}) {
		t.Errorf("hand-offs %v", got)
	}
	if got := len(d[0].requests()) + len(d[1].requests()); got != 2*n {
		t.Errorf("%d requests to endpoints that decode, want two for each", got)
	}
	if stats := h.picker.Stats()[0].Endpoints; stats[2].Failures+stats[3].Failures != 0 {
		t.Errorf("endpoints that decode have failed %d and %d times", stats[2].Failures, stats[3].Failures)
	}
}

// A prefill on which two engines crash is counted, and its request is not sent to a third.
func TestAPrefillThatCrashesEnginesIsCounted(t *testing.T) {
	h, p, d := withRoles(t)
	for i := range p {
		p[i].does(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	}
	if answer := h.post("/v1/completions", prompted("")); answer.StatusCode != 502 {
		t.Errorf("status %d", answer.StatusCode)
	}
	if got := h.handoffs(); fmt.Sprint(got) != fmt.Sprint(map[string]int64{"prefill_failed": 1}) {
		t.Errorf("hand-offs %v", got)
	}
	if n := len(d[0].requests()) + len(d[1].requests()); n != 0 {
		t.Errorf("%d requests to endpoints that decode", n)
	}
}

// A failure asks the retry budget once.
func TestARetryIsRefusedOnce(t *testing.T) {
	h, _, d := withRoles(t)
	for i := range d {
		d[i].does(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	}
	decision, err := h.picker.Pick(t.Context(), &picker.Request{Route: openai.Completions, Body: []byte(prompted(""))})
	if err != nil {
		t.Fatal(err)
	}
	for decision.MayRetry() { // until the budget is used up
	}
	decision.End(picker.ClientGone)
	before := h.picker.Stats()[0].Unretried
	if answer := h.post("/v1/completions", prompted("")); answer.StatusCode != 502 {
		t.Errorf("status %d", answer.StatusCode)
	}
	if n := h.picker.Stats()[0].Unretried - before; n != 1 {
		t.Errorf("%d retries were refused", n)
	}
}

// A stream is handed over: the first leg is not streamed, and the client sees the events of the engine that serves it.
func TestAStreamIsHandedOver(t *testing.T) {
	const failed = "data: {\"error\":{\"message\":\"x\",\"code\":500}}\n\n"
	for name, tc := range map[string]struct {
		loads, alone string // the events of requests with parameters and without
		later        string // events of a request with parameters, once the client has the others
		answer       string
		want         map[string]int64
		failures     int64 // of endpoints that decode
	}{
		"a stream":                        {token("a"), "", doneOnly, token("a") + doneOnly, map[string]int64{"completed": 1}, 0},
		"an error in place of the stream": {failed + doneOnly, token("b") + doneOnly, "", token("b") + doneOnly, map[string]int64{"decode_failed": 1}, 0},
		"an error after a token":          {token("a"), "", failed + doneOnly, token("a") + failed + doneOnly, map[string]int64{"completed": 1}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			h, p, d := withRoles(t)
			came := make(chan struct{}) // the first token, to the client
			for i := range d {
				d[i].does(func(w http.ResponseWriter, r *http.Request) {
					if d[i].latest()["kv_transfer_params"] == nil {
						saying(tc.alone)(w, r)
						return
					}
					saying(tc.loads)(w, r)
					if tc.later != "" {
						<-came
						say(w, tc.later)
					}
				})
			}
			answer := h.post("/v1/completions", prompted(`,"stream":true`))
			begin := make([]byte, len(token("a")))
			if _, err := io.ReadFull(answer.Body, begin); err != nil {
				t.Error(err)
			}
			close(came)
			if got := string(begin) + read(t, answer); answer.StatusCode != 200 || got != tc.answer {
				t.Errorf("status %d: %q, want %q", answer.StatusCode, got, tc.answer)
			}
			if got := h.handoffs(); fmt.Sprint(got) != fmt.Sprint(tc.want) {
				t.Errorf("hand-offs %v, want %v", got, tc.want)
			}
			stats := h.picker.Stats()[0].Endpoints
			if n := stats[2].Failures + stats[3].Failures; n != tc.failures {
				t.Errorf("%d failures of endpoints that decode, want %d", n, tc.failures)
			}
			if n := stats[0].Failures + stats[1].Failures; n != 0 {
				t.Errorf("%d failures of endpoints that prefill", n)
			}
			for _, r := range append(p[0].requests(), p[1].requests()...) {
				if r["stream"] != false {
					t.Errorf("a prefill is streamed: %v", r["stream"])
				}
			}
		})
	}
}

// TestABodyWithParametersIsReleasedBeforeAnotherPick: a hand-off that is picked then has another one in its place, and a request that waits
// keeps no memory for what has failed.
func TestABodyWithParametersIsReleasedBeforeAnotherPick(t *testing.T) {
	h := newHouse(t, Options{}, spec("127.0.0.1:1"))
	r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{"model":"m","prompt":[1,2,3]}`))
	out := &client{ResponseWriter: httptest.NewRecorder(), stall: patience}
	out.control = http.NewResponseController(out.ResponseWriter)
	b, refused := h.proxy.readBody(out, r)
	if refused != nil {
		t.Fatal(refused)
	}
	in := picker.Request{Route: openai.Completions, Body: b.Bytes, Splits: true}
	d, err := h.picker.Pick(t.Context(), &in)
	if err != nil {
		t.Fatal(err)
	}
	e := &exchange{proxy: h.proxy, client: out, request: r, body: b, decision: d, pick: in}
	before := h.proxy.budget.Stats().Held
	e.handed = &handedOver{body: e.legBody(1000, func(dst []byte) []byte { return dst })}
	if err := e.pickAgain(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if held := h.proxy.budget.Stats().Held; held != before {
		t.Errorf("%d bytes are held, %d before", held, before)
	}
	e.decision.End(picker.Failed)
	e.dropBody()
}

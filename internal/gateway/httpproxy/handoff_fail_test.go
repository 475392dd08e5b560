package httpproxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// cannotLoad serves a prompt alone, but answers an error to requests with parameters, as engines do that load no blocks of
// an engine that has died.
func (p *party) cannotLoad() {
	p.does(func(w http.ResponseWriter, r *http.Request) {
		if p.latest()["kv_transfer_params"] != nil {
			answerJSON(w, 500, `{"error":{"message":"x","code":500}}`)
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

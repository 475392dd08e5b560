package picker

import (
	"bytes"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/load"
)

// Behind a gateway that shows no answers nothing is learned of an engine's speed, and a request counts as a prefill for
// seconds that took the engine a millisecond. Its reports say that it is idle, so its pool is not full: requests wait only
// until the first reports have shown how far the engines are ahead.
func TestFastEnginesAreNotFullWhereNothingIsLearned(t *testing.T) {
	const (
		rate     = 440              // requests per second
		warm     = 2 * time.Second  // in which some requests can wait
		life     = 20 * time.Second // of the load
		reports  = 500 * time.Millisecond
		endpoint = 4
	)
	synctest.Test(t, func(t *testing.T) {
		spec := queueing(t, endpoint)
		spec.Policy.Admission.WaitBudget = 5 * time.Second
		spec.Policy.Admission.Limits = admission.Limits{Requests: 10_000, Bytes: 1 << 30, TTL: time.Minute, Hold: time.Minute}
		p := started(t, spec)
		body := bytes.Repeat([]byte("x"), 32<<10)
		var requests sync.WaitGroup
		early := int64(0)
		for from := time.Now(); time.Since(from) < life; {
			if time.Since(from) <= warm {
				early = p.Stats()[0].Admission.Waited
			}
			for i := range spec.Endpoints {
				p.Observe(spec.Endpoints[i].ID, time.Now(), load.Report{KVTokens: 1 << 20})
			}
			for range int(rate * reports / time.Second) {
				requests.Go(func() {
					d, err := p.Pick(t.Context(), &Request{Unparsed: true, Body: body, Header: func(string) string { return "" }})
					if err != nil {
						t.Error(err)
						return
					}
					d.Leave(Unreported)
				})
				time.Sleep(time.Second / rate)
			}
		}
		requests.Wait()
		s := p.Stats()[0]
		if n := s.Outcomes[Unreported]; n < rate*int64(life/time.Second) || s.Admission.Waited > early {
			t.Errorf("of %d requests %d have waited, %d of them in the first %v", n, s.Admission.Waited, early, warm)
		}
	})
}

// An engine in which requests wait is as slow as it was assumed to be: requests stay in the picker.
func TestSlowEnginesFillWhereNothingIsLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := queueing(t, 1)
		p := started(t, spec)
		busy := fill(t, p)
		for range 5 {
			time.Sleep(200 * time.Millisecond)
			p.Observe(spec.Endpoints[0].ID, time.Now(), load.Report{Running: 1, Waiting: 1})
		}
		waits(t, asking(t.Context(), p, 0, 100, nil), "while the engine is at a long prefill")
		p.Observe(spec.Endpoints[0].ID, time.Now(), load.Report{})
		time.Sleep(10 * time.Millisecond)
		if s := p.Stats()[0].Admission; s.Waited != 1 {
			t.Errorf("an engine that is idle by its own report is full: %+v", s)
		}
		busy.End(Completed)
	})
}

package picker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// queueing is a pool whose requests wait while every endpoint has more than a second of prefill to do.
func queueing(t testing.TB, endpoints int) Spec {
	spec := testSpec(t, endpoints)
	spec.Policy.Admission = AdmissionSpec{
		Queue: true, WaitBudget: time.Second,
		Limits:     admission.Limits{Requests: 3, Bytes: 1 << 30, TTL: 20 * time.Second, Hold: 300 * time.Second},
		Priorities: map[string]Priority{"high": {Level: 10}, "low": {Level: -10}},
	}
	return spec
}

// answer is the result of a pick in the background.
type answer struct {
	d   *Decision
	err error
	at  time.Time
}

func asking(ctx context.Context, p *Picker, first, tokens int, headers map[string]string) <-chan answer {
	c := make(chan answer, 1)
	go func() {
		d, err := p.Pick(ctx, &Request{Route: openai.Completions, Body: completion("m", first, tokens, true),
			Header: func(name string) string { return headers[name] }})
		c <- answer{d, err, time.Now()}
	}()
	return c
}

func now(t *testing.T, c <-chan answer, what string) answer {
	t.Helper()
	synctest.Wait()
	select {
	case a := <-c:
		return a
	default:
		t.Fatalf("%s: still waits", what)
		return answer{}
	}
}

func waits(t *testing.T, c <-chan answer, what string) {
	t.Helper()
	synctest.Wait()
	select {
	case a := <-c:
		t.Fatalf("%s: does not wait: %v, %v", what, a.d, a.err)
	default:
	}
}

func status(err error) (int, string) {
	var refusal *Error
	if !errors.As(err, &refusal) {
		return 0, ""
	}
	return refusal.Status, refusal.Code
}

// fill books two seconds of prefill on the only endpoint.
func fill(t *testing.T, p *Picker) *Decision { return pick(t, p, completion("m", 1e6, 40_000, true)) }

func started(t *testing.T, spec Spec) *Picker {
	t.Helper()
	p := New(Options{Log: logr.Discard()})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRequestsWaitForAFullPoolAndGoWhenThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := started(t, queueing(t, 1))
		busy := fill(t, p)
		a := asking(t.Context(), p, 0, 100, nil)
		waits(t, a, "while the pool is full")
		if s := p.Stats()[0].Admission; s.Waiting != 1 || s.WaitingBytes == 0 || s.WaitingTokens != 100 {
			t.Errorf("while one waits: %+v", s)
		}
		busy.FirstToken()
		got := now(t, a, "after the prefill")
		if got.err != nil {
			t.Fatal(got.err)
		}
		got.d.End(Completed)
		busy.End(Completed)
		if s := p.Stats()[0].Admission; s.Waiting != 0 || s.Waited != 1 {
			t.Errorf("afterwards: %+v", s)
		}
	})
}

// TestWhoMayNotGoAnywhereWaitsForRoomWhereItMay: a request that only one endpoint is allowed to serve waits for that one,
// though another has room, and requests that are allowed there proceed meanwhile.
func TestWhoMayNotGoAnywhereWaitsForRoomWhereItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := started(t, queueing(t, 2))
		busy := fill(t, p)
		pod := busy.Targets[0].Endpoint.Pod
		c := make(chan answer, 1)
		go func() {
			d, err := p.Pick(t.Context(), &Request{
				Route: openai.Completions, Body: completion("m", 2e6, 100, true), Header: func(string) string { return "" },
				Allow: func(e *endpoint.Endpoint) bool { return e.Pod == pod },
			})
			c <- answer{d, err, time.Now()}
		}()
		waits(t, c, "its endpoint is full")
		if got := now(t, asking(t.Context(), p, 3e6, 100, nil), "another has room"); got.err != nil || got.d.Targets[0].Endpoint.Pod == pod {
			t.Fatalf("%+v", got)
		} else {
			got.d.End(Completed)
		}
		waits(t, c, "its endpoint is full")
		busy.FirstToken()
		busy.End(Completed)
		time.Sleep(lookAgain)
		if got := now(t, c, "its endpoint has room"); got.err != nil || got.d.Targets[0].Endpoint.Pod != pod {
			t.Errorf("%+v", got)
		} else {
			got.d.End(Completed)
		}
	})
}

// TestHoweverManyWaitForAFullEndpointTheyHoldUpNobody: requests behind them are admitted where there is room, with a target
// for first tokens or without, also those that can only be sent there.
func TestHoweverManyWaitForAFullEndpointTheyHoldUpNobody(t *testing.T) {
	for _, target := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := targeted(t, 2)
			spec := *p.current.Load().pools[0].spec
			spec.Policy.Admission.Limits.Requests = 1000
			if !target {
				spec.Policy.Admission.Slowdown = 0
			}
			if err := p.Apply([]Spec{spec}); err != nil {
				t.Fatal(err)
			}
			busy := fill(t, p)
			full := busy.Targets[0].Endpoint.Pod
			ask := func(first, tokens int, priority string, allow func(*endpoint.Endpoint) bool) <-chan answer {
				c := make(chan answer, 1)
				go func() {
					d, err := p.Pick(t.Context(), &Request{Route: openai.Completions, Body: completion("m", first, tokens, true), Allow: allow,
						Header: func(name string) string { return map[string]string{"x-llm-d-inference-objective": priority}[name] }})
					c <- answer{d, err, time.Now()}
				}()
				return c
			}
			var many []<-chan answer
			for i := range 5*maxTried + 3 {
				c := ask(1e8+i*1e5, 20_000, "high", func(e *endpoint.Endpoint) bool { return e.Pod == full })
				waits(t, c, "its endpoint is full")
				many = append(many, c)
			}
			for i, allow := range []func(*endpoint.Endpoint) bool{nil, func(e *endpoint.Endpoint) bool { return e.Pod != full }} {
				c := ask(3e6+i*1e6, 4000, "low", allow)
				time.Sleep(10 * lookAgain)
				got := now(t, c, "the other endpoint has room")
				if got.err != nil {
					t.Fatalf("target %v: %v", target, got.err)
				}
				got.d.FirstToken()
				got.d.End(Completed)
			}
			busy.FirstToken()
			busy.End(Completed)
			for _, c := range many {
				if a := <-c; a.err == nil {
					a.d.FirstToken()
					a.d.End(Completed)
				}
			}
		})
	}
}

func TestTimeAloneMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := queueing(t, 1)
		p := started(t, spec)
		// Not streamed: the end of its prefill is not reported, but predicted.
		busy := pick(t, p, completion("m", 1e6, 40_000, false))
		defer busy.End(Completed)
		a := asking(t.Context(), p, 0, 100, nil)
		waits(t, a, "while the pool is full")
		time.Sleep(25 * time.Second)
		if got := now(t, a, "after the predicted prefill"); got.err == nil {
			got.d.End(Completed)
		} else if s, _ := status(got.err); s != 429 {
			t.Error(got.err)
		}
	})
}

func TestAFullQueueRefusesAndALongWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := started(t, queueing(t, 1))
		busy := fill(t, p)
		defer busy.End(Completed)
		var queued []<-chan answer
		begin := time.Now()
		for i := range 3 {
			queued = append(queued, asking(t.Context(), p, 1000*i, 100, nil))
			waits(t, queued[i], "one of three")
		}
		got := now(t, asking(t.Context(), p, 9000, 100, nil), "the fourth")
		if s, code := status(got.err); s != 429 || code != "queue_full" {
			t.Errorf("the fourth of three: %v", got.err)
		}
		var refusal *Error
		if errors.As(got.err, &refusal) && refusal.RetryAfter < time.Second {
			t.Errorf("come again after %v", refusal.RetryAfter)
		}
		time.Sleep(30 * time.Second)
		for _, c := range queued {
			got := now(t, c, "after 30 of 20 s")
			if s, code := status(got.err); s != 429 || code != "queue_timeout" || got.at.Sub(begin) > 21*time.Second {
				t.Errorf("after %v: %v", got.at.Sub(begin), got.err)
			}
		}
		if s := p.Stats()[0].Admission; s.Shed != 1 || s.Late != 3 || s.Waiting != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestRequestsAreHeldWhileNoEndpointServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := queueing(t, 1)
		p := New(Options{Log: logr.Discard()})
		empty := spec
		empty.Endpoints = nil
		if err := p.Apply([]Spec{empty}); err != nil {
			t.Fatal(err)
		}
		a := asking(t.Context(), p, 0, 100, nil)
		time.Sleep(200 * time.Second)
		waits(t, a, "at zero")
		if err := p.Apply([]Spec{spec}); err != nil {
			t.Fatal(err)
		}
		got := now(t, a, "with the first endpoint")
		if got.err != nil {
			t.Fatal(got.err)
		}
		got.d.End(Completed)

		if err := p.Apply([]Spec{empty}); err != nil {
			t.Fatal(err)
		}
		a = asking(t.Context(), p, 0, 100, nil)
		time.Sleep(301 * time.Second)
		if s, code := status(now(t, a, "after 301 of 300 s").err); s != 503 || code != "no_endpoint" {
			t.Errorf("%d %s", s, code)
		}
		a = asking(t.Context(), p, 0, 100, nil)
		waits(t, a, "held again")
		if err := p.Apply(nil); err != nil {
			t.Fatal(err)
		}
		if s, _ := status(now(t, a, "when the pool is deleted").err); s != 503 {
			t.Errorf("%d", s)
		}
	})
}

func TestHigherPrioritiesGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := queueing(t, 1)
		spec.Policy.Admission.WaitBudget = 0
		p := started(t, spec)
		busy := fill(t, p)
		low := asking(t.Context(), p, 0, 100, map[string]string{"x-llm-d-inference-objective": "low"})
		waits(t, low, "low")
		none := asking(t.Context(), p, 1000, 100, map[string]string{"x-gateway-inference-objective": "no such name"})
		waits(t, none, "none")
		high := asking(t.Context(), p, 2000, 100, map[string]string{"x-gateway-inference-objective": "high"})
		waits(t, high, "high")
		busy.End(Completed)
		for _, next := range []struct {
			name  string
			c     <-chan answer
			after []<-chan answer
		}{{"high", high, []<-chan answer{none, low}}, {"none", none, []<-chan answer{low}}, {"low", low, nil}} {
			got := now(t, next.c, next.name)
			for _, c := range next.after {
				waits(t, c, "after "+next.name)
			}
			got.d.End(Completed)
		}
	})
}

// TestNothingRemainsOfWhatWaited plays clients that arrive, wait, leave and are served, endpoints that are added and
// removed and policies that change: in the end nothing waits, nothing is granted, no request is in progress, and no
// goroutine is left (which synctest checks).
func TestNothingRemainsOfWhatWaited(t *testing.T) {
	var outcomes [4]atomic.Int64
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			spec := queueing(t, 2)
			spec.Policy.Admission.WaitBudget = 100 * time.Millisecond
			spec.Policy.Admission.Tenants = tenants(t, true)
			spec.Policy.Admission.Tenants.Header, spec.Policy.Admission.Tenants.Known = FairnessHeader, nil
			spec.Policy.Admission.Tenants.Default = &tenant.Class{Weight: 1, MaxConcurrent: 20}
			p := started(t, spec)
			var wg sync.WaitGroup
			for i := range 300 {
				time.Sleep(time.Duration(rng.ExpFloat64() * float64(40*time.Millisecond)))
				patience := time.Duration(rng.ExpFloat64() * float64(3*time.Second))
				prefill := time.Duration(rng.ExpFloat64() * float64(300*time.Millisecond))
				who := fmt.Sprint("tenant-", rng.IntN(3))
				tokens := 1 + rng.IntN(3000)
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					got := <-asking(ctx, p, i<<16, tokens, map[string]string{FairnessHeader: who, "x-gateway-inference-objective": []string{"", "high", "low"}[i%3]})
					if got.err != nil {
						if s, _ := status(got.err); s == 429 {
							outcomes[0].Add(1)
						} else if errors.Is(got.err, context.DeadlineExceeded) {
							outcomes[1].Add(1)
						} else {
							outcomes[2].Add(1)
						}
						return
					}
					outcomes[3].Add(1)
					time.Sleep(prefill)
					if i%5 > 0 {
						got.d.FirstToken()
					}
					time.Sleep(prefill)
					got.d.End(Outcome(i % numOutcomes))
				})
				if i%50 == 49 {
					next := spec
					next.Endpoints = spec.Endpoints[:rng.IntN(3)]
					next.Policy.Admission.WaitBudget = time.Duration(rng.IntN(200)) * time.Millisecond
					next.Policy.Admission.Slowdown = []float64{0, 1.5, 3}[rng.IntN(3)]
					next.Policy.Admission.Queue = len(next.Endpoints) == 0 || rng.IntN(5) > 0
					if err := p.Apply([]Spec{next}); err != nil {
						t.Error(err)
					}
				}
			}
			if err := p.Apply([]Spec{spec}); err != nil {
				t.Error(err)
			}
			wg.Wait()
			v := p.current.Load().pools[0]
			q := &v.admission
			s := q.read()
			if s.Waiting != 0 || s.WaitingBytes != 0 || q.placing != 0 || len(q.waiters) != 0 || q.waiting.Load() != 0 || q.leader != nil {
				t.Errorf("seed %d: %+v, %d placed, %d waiters", seed, s, q.placing, len(q.waiters))
			}
			for i := range 3 {
				if n := v.meters.UnderWay(fmt.Sprint("tenant-", i)); n != 0 {
					t.Errorf("seed %d: %d under way", seed, n)
				}
			}
		})
	}
	if outcomes[0].Load() == 0 || outcomes[1].Load() == 0 || outcomes[3].Load() == 0 || outcomes[2].Load() > 0 {
		t.Errorf("%d refused, %d gone, %d otherwise, %d served", outcomes[0].Load(), outcomes[1].Load(), outcomes[2].Load(), outcomes[3].Load())
	}
}

// TestAnEndpointBeyondTheBudgetIsPassedOverWhileAnotherHasRoom: whatever it holds, its queue is no place to wait.
func TestAnEndpointBeyondTheBudgetIsPassedOverWhileAnotherHasRoom(t *testing.T) {
	for name, c := range map[string]struct {
		queue bool
		want  string
	}{"with a queue": {true, "pod-1"}, "without": {false, "pod-0"}} {
		spec := queueing(t, 2) // the strategy is for the holder, whatever it has to do
		spec.Policy.Admission.Queue = c.queue
		p := newPicker(t, newClock(), spec)
		hold(feed(t, p, "pod-0"), keysOf(t, "m", 0, 64)...)
		first := pick(t, p, completion("m", 0, 40_000, true))
		if got := first.Targets[0].Endpoint.Pod; got != "pod-0" {
			t.Fatalf("%s: the first went to %s", name, got)
		}
		if got := pick(t, p, completion("m", 0, 64, true)).Targets[0].Endpoint.Pod; got != c.want {
			t.Errorf("%s: sent to %s, want %s", name, got, c.want)
		}
	}
}

package picker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/decisionlog"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// storm is requests of every kind that a picker receives, and their outcomes.
type storm struct {
	t    *testing.T
	p    *Picker
	spec Spec

	mu    sync.Mutex
	ever  map[*member]bool
	pools map[*pool]bool
	seen  map[string]int // ends, by name
}

func (s *storm) saw(end string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[end]++
}

// remember the present pools and members, to be examined in the end.
func (s *storm) remember() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.p.current.Load().pools {
		s.pools[v.pool] = true
		for _, m := range v.members {
			s.ever[m] = true
		}
	}
}

// request of any kind.
func (s *storm) request(rng *rand.Rand) *Request {
	headers := map[string]string{FairnessHeader: fmt.Sprint("tenant-", rng.IntN(3)), ObjectiveHeader: []string{"", "high", "low"}[rng.IntN(3)]}
	r := &Request{
		Route: openai.Completions, Body: completion([]string{"m", "m", "m", "m", "m", "sql", "none"}[rng.IntN(7)], 5000*rng.IntN(6), 1+rng.IntN(3000), rng.IntN(3) > 0),
		Header: func(name string) string { return headers[name] },
	}
	switch rng.IntN(16) {
	case 0:
		r.Body = []byte("{")
	case 1:
		r.Unparsed = true
	case 2:
		r.Light = true
	case 3:
		r.Unparsed, r.Observed, r.Body = true, true, nil
	case 4:
		pod := fmt.Sprint("pod-", rng.IntN(4))
		r.Allow = func(e *endpoint.Endpoint) bool { return e.Pod == pod }
	case 5:
		delete(headers, FairnessHeader)
	case 6:
		return &Request{Route: openai.ChatCompletions, Header: r.Header, Body: chat("m", "", text(rng.IntN(5), 5000)).Body}
	case 7:
		r.Body = completion("m", 0, 20_000, true) // too large
	}
	return r
}

// one request from its coming to its end.
func (s *storm) one(rng *rand.Rand) {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Duration(rng.ExpFloat64()*float64(2*time.Second)))
	defer cancel()
	if rng.IntN(20) == 0 {
		cancel() // gone before it was looked at
	}
	d, err := s.p.Pick(ctx, s.request(rng))
	if err != nil {
		if refusal := (*Error)(nil); errors.As(err, &refusal) {
			s.saw(refusal.Code)
		} else {
			s.saw("gone")
		}
		return
	}
	pause := func() { time.Sleep(time.Duration(rng.ExpFloat64() * float64(150*time.Millisecond))) }
	pause()
	if rng.IntN(4) == 0 {
		s.saw("unreported")
		d.Leave(Unreported)
		return
	}
	if rng.IntN(3) == 0 {
		s.saw("gave up")
		d.End(ClientGone) // with no verdict on the endpoint
		return
	}
	for i := 0; i < len(d.Targets) && (rng.IntN(3) == 0 || d.Target().Endpoint.Pod == "pod-2"); i++ { // an attempt fails, the next one is tried
		d.Fail()
		if i+1 < len(d.Targets) && d.Begin(i+1) {
			s.saw("retried")
		}
		pause()
	}
	if rng.IntN(10) == 0 {
		d.Served(fmt.Sprintf("127.0.0.1:%d", 8000+rng.IntN(5)), 3, rng.IntN(4))
	}
	if rng.IntN(4) > 0 {
		d.FirstToken()
		pause()
	}
	if rng.IntN(2) == 0 {
		d.Usage(100, rng.IntN(100)-1)
		d.Generated(rng.IntN(500))
	}
	outcome := Outcome(rng.IntN(int(Unreported)))
	s.saw(outcome.String())
	d.End(outcome)
}

// reload applies anything: other endpoints, other lives of them, other strategies and rules, no pool at all.
func (s *storm) reload(rng *rand.Rand) {
	next := s.spec
	next.Endpoints = nil
	for i := range 4 {
		if e := testEndpoint(i); rng.IntN(4) > 0 {
			e.Ready = rng.IntN(6) > 0
			if rng.IntN(8) == 0 {
				e.Address = "127.0.0.1:9999" // another life
			}
			next.Endpoints = append(next.Endpoints, e)
		}
	}
	next.Policy.Strategy = policy.Default(policy.Types()[rng.IntN(len(policy.Types()))])
	a := &next.Policy.Admission
	a.Queue, a.Slowdown = rng.IntN(5) > 0, []float64{0, 0, 2}[rng.IntN(3)]
	a.WaitBudget = time.Duration(rng.IntN(300)) * time.Millisecond
	specs := []Spec{next}
	if rng.IntN(12) == 0 {
		specs = nil
	}
	if err := s.p.Apply(specs); err != nil {
		s.t.Error(err)
	}
	s.remember()
	for _, f := range s.p.Feeds() {
		s.p.Observe(f.Endpoint.ID, time.Now(), load.Report{Running: rng.IntN(9), Waiting: rng.IntN(3), KVUsage: rng.Float64(), KVTokens: 100_000})
		s.p.ObserveModels(f.Endpoint.ID, adapters([]string{"sql"}[:rng.IntN(2)]...))
	}
}

// TestNothingRemainsHoweverRequestsEnd: refused for any reason, gone while they are parsed, while they wait or later,
// failed and tried elsewhere, served by another endpoint than picked, never reported, of a pool that was removed meanwhile.
// When the last has ended nothing is counted of them anywhere: on no endpoint and in no pool that ever existed.
func TestNothingRemainsHoweverRequestsEnd(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) {
			spec := queueing(t, 4)
			spec.Adapters, spec.MaxRequestBody = []string{"sql"}, 100<<10
			spec.Policy.LogPercent, spec.Policy.EngineTokens = 50, "Never"
			spec.Policy.CircuitOpen = 100 * time.Millisecond
			spec.Policy.Admission.Limits.TTL, spec.Policy.Admission.Limits.Hold = time.Second, 500*time.Millisecond
			spec.Policy.Admission.Tenants = &TenantsSpec{
				Header: FairnessHeader, Reject: true,
				Default: &tenant.Class{Weight: 1, MaxConcurrent: 12, RequestsPerMinute: 200, TokensPerMinute: 20_000_000},
			}
			s := &storm{
				t: t, spec: spec, ever: map[*member]bool{}, pools: map[*pool]bool{}, seen: map[string]int{},
				p: New(Options{Log: logr.Discard(), Decisions: discarding{}}),
			}
			if err := s.p.Apply([]Spec{spec}); err != nil {
				t.Fatal(err)
			}
			s.remember()
			rng := rand.New(rand.NewPCG(seed, 51))
			var wg sync.WaitGroup
			for i := range 1500 {
				time.Sleep(time.Duration(rng.ExpFloat64() * float64(6*time.Millisecond)))
				of := rand.New(rand.NewPCG(seed, uint64(i)))
				wg.Go(func() { s.one(of) })
				if i%40 == 39 {
					s.reload(rng)
				}
			}
			wg.Wait()
			time.Sleep(time.Hour) // for requests whose end was not reported
			s.empty(seed)
			for end, n := range s.seen {
				seen[end] += n
			}
		})
	}
	for _, end := range []string{
		"completed", "client_gone", "failed", "rejected", "unreported", "retried", "gone", "queue_full", "queue_timeout",
		"no_endpoint", "model_not_found", "invalid_request", "request_too_large", "invalid_api_key", "max_concurrent", "requests_per_minute",
	} {
		if seen[end] == 0 {
			t.Errorf("no request ended with %s: %v", end, seen)
		}
	}
}

// empty reports what is left.
func (s *storm) empty(seed uint64) {
	if err := s.p.Apply([]Spec{s.spec}); err != nil {
		s.t.Fatal(err)
	}
	s.remember()
	now := time.Now()
	for m := range s.ever {
		l := m.load.View(now)
		if l.InFlight != 0 || l.Decoding != 0 || l.Prefilling != 0 || l.PendingTokens != 0 || l.PendingPairs != 0 || l.PendingContext != 0 || l.DecodingTokens != 0 || l.Due != 0 {
			s.t.Errorf("seed %d: load %+v", seed, l)
		}
		if m.circuit.Probed() {
			s.t.Errorf("seed %d: an endpoint is marked as tried without a probe", seed)
		}
	}
	for pool := range s.pools {
		pool.pending.expire(now)
		if n := len(pool.pending.queue) + len(pool.pending.last); n != 0 {
			s.t.Errorf("seed %d: %d decisions speculate", seed, n)
		}
		q := &pool.admission
		a := q.read()
		if a.Waiting != 0 || a.WaitingBytes != 0 || a.WaitingTokens != 0 || q.placing != 0 || len(q.waiters) != 0 ||
			q.waiting.Load() != 0 || q.leader != nil {
			s.t.Errorf("seed %d: %+v, %d placed, %d wait", seed, a, q.placing, len(q.waiters))
		}
		for i := range 3 {
			if n := pool.meters.UnderWay(fmt.Sprint("tenant-", i)); n != 0 {
				s.t.Errorf("seed %d: %d requests of tenant %d are under way", seed, n, i)
			}
		}
	}
	assertIdle(s.t, s.p)
}

// discarding is a decision log that keeps nothing.
type discarding struct{}

func (discarding) Salt() decisionlog.Salt    { return 1 }
func (discarding) Write(*decisionlog.Record) {}

package picker

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/load"
)

// hits sums predicted and delivered prompt tokens over answers that told.
type hits struct {
	answers, prompt, predicted, confirmed, delivered, deviation atomic.Int64
}

func (h *hits) add(prompt, predicted, confirmed, delivered int) {
	h.answers.Add(1)
	h.prompt.Add(int64(prompt))
	h.predicted.Add(int64(predicted))
	h.confirmed.Add(int64(confirmed))
	h.delivered.Add(int64(delivered))
	h.deviation.Add(int64(max(predicted-delivered, delivered-predicted)))
}

func (h *hits) read() Hits {
	return Hits{
		Answers: h.answers.Load(), PromptTokens: h.prompt.Load(), Predicted: h.predicted.Load(),
		Confirmed: h.confirmed.Load(), Delivered: h.delivered.Load(), Deviation: h.deviation.Load(),
	}
}

// Hits compares predicted cache hits with those that the engines delivered, in prompt tokens, over the answers that
// told (requests with several prompts, prompt log-probabilities or retries are left out).
type Hits struct {
	Answers, PromptTokens int64
	// Predicted at the pick, and the part of it that was confirmed.
	Predicted, Confirmed int64
	Delivered            int64
	// Deviation is the sum over answers of |predicted - delivered|.
	Deviation int64
}

// inexactReasons are what reasonOf gives.
var inexactReasons = [...]string{"content", "route", "identity", "refused", "budget", "unsupported", "unavailable"}

type poolStats struct {
	outcomes  [numOutcomes]atomic.Int64
	tokens    [numTokenSources]atomic.Int64
	inexact   [len(inexactReasons)]atomic.Int64
	without   inexactness
	rendering atomic.Pointer[Rendering] // nil when an engine has answered the last question
	refused   atomic.Int64
	retries   atomic.Int64
	delivered hits
}

func (s *poolStats) count(d *Decision) {
	s.tokens[d.Tokens].Add(1)
	if i := slices.Index(inexactReasons[:], d.TokensMissing); i >= 0 {
		s.inexact[i].Add(1)
	}
	s.without.count(d.TokensMissing)
	d.Targets[0].member.stats.picks.Add(1)
}

// Inexact is how many of the last requests had no exact tokens: the share of about the last 128, and why the last one
// had none.
type Inexact struct {
	Share float64
	Last  string
}

// inexactness keeps that share, and when each reason was told of in the log.
type inexactness struct {
	mu   sync.Mutex
	now  Inexact
	told map[string]time.Time
}

const (
	inexactOver  = 128
	inexactEvery = time.Minute // a line of the log for each reason
)

func (x *inexactness) count(reason string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.now.Share -= x.now.Share / inexactOver
	if reason != "" {
		x.now.Share += 1. / inexactOver
		x.now.Last = reason
	}
}

// tells says whether a reason is to be told of now.
func (x *inexactness) tells(now time.Time, reason string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if last, ok := x.told[reason]; ok && now.Sub(last) < inexactEvery {
		return false
	}
	if x.told == nil {
		x.told = map[string]time.Time{}
	}
	x.told[reason] = now
	return true
}

func (x *inexactness) read() Inexact {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.now
}

// Rendering is how the questions to engines for tokens fail.
type Rendering struct {
	// Failures since an engine has answered the last time.
	Failures int
	// Last is why the last one has failed, without any content of a request.
	Last string
}

func (s *poolStats) unrendered(err error) {
	next := &Rendering{Failures: 1, Last: err.Error()}
	if before := s.rendering.Load(); before != nil {
		next.Failures += before.Failures
	}
	s.rendering.Store(next)
}

type endpointStats struct {
	picks, failures atomic.Int64
	delivered       hits
	// tellsCached: some answer has said how much of its prompt was cached.
	tellsCached atomic.Bool
}

// PoolStats are the counters of a pool since it was first applied.
type PoolStats struct {
	Namespace, Pool string
	Strategy        string
	Outcomes        map[Outcome]int64
	Tokens          map[TokenSource]int64
	// Inexact counts the requests without exact tokens, by the reason.
	Inexact map[string]int64
	// Rendering tells of the failures since an engine has answered a question for tokens.
	Rendering Rendering
	// Checks are of tokens made in process.
	Checks Checks
	// Refused requests found no endpoint; Retries went to a fallback.
	Refused, Retries int64
	Hits             Hits
	Trust            Trust
	// Blocks are the distinct blocks in the index, Held the (endpoint, block) pairs, Speculative those assumed.
	Blocks, Held, Speculative int
	// Speculating is the number of requests that speculate.
	Speculating int
	Admission   AdmissionStats
	Without     Inexact
	Shadows     []ShadowStats
	Tenants     map[string]TenantStats
	Endpoints   []EndpointStats
}

// EndpointStats are the counters of an endpoint since it joined.
type EndpointStats struct {
	ID       endpoint.ID
	Pod      string
	Pickable bool
	// CircuitClosed is false while the endpoint is kept out for its failures.
	CircuitClosed   bool
	Picks, Failures int64
	Hits            Hits
	Load            load.View
	Held            int
	// Doubted: what the index has of it may not be what it holds.
	Doubted bool
}

// Stats reads the counters of all pools.
func (p *Picker) Stats() []PoolStats {
	now := p.now()
	var all []PoolStats
	for _, v := range p.current.Load().pools {
		s := PoolStats{
			Namespace: v.spec.Namespace, Pool: v.spec.Name, Strategy: string(v.spec.Policy.Strategy.Type),
			Outcomes: map[Outcome]int64{}, Tokens: map[TokenSource]int64{}, Inexact: map[string]int64{},
			Refused: v.stats.refused.Load(), Retries: v.stats.retries.Load(), Hits: v.stats.delivered.read(),
			Speculating: v.pending.size(), Admission: v.gate.read(), Tenants: v.tenants.read(), Trust: v.trust.read(),
			Shadows: v.shadowStats(), Without: v.stats.without.read(),
		}
		s.Blocks, s.Held, s.Speculative = v.index.Size()
		for i := range v.stats.outcomes {
			s.Outcomes[Outcome(i)] = v.stats.outcomes[i].Load()
		}
		for i := range v.stats.tokens {
			s.Tokens[TokenSource(i)] = v.stats.tokens[i].Load()
		}
		if r := v.stats.rendering.Load(); r != nil {
			s.Rendering = *r
		}
		if v.checks.settle(now, v) {
			v.doubt()
		}
		s.Checks = v.checks.read()
		for i, reason := range inexactReasons {
			s.Inexact[reason] = v.stats.inexact[i].Load()
		}
		for i, m := range v.members {
			ep := &v.spec.Endpoints[i]
			s.Endpoints = append(s.Endpoints, EndpointStats{
				ID: ep.ID, Pod: ep.Pod, Pickable: ep.Pickable(),
				CircuitClosed: m.circuit.closed(now, v.spec.Policy.CircuitFailures),
				Picks:         m.stats.picks.Load(), Failures: m.stats.failures.Load(), Hits: m.stats.delivered.read(),
				Load: m.load.View(now), Held: v.index.Held(m.holder), Doubted: m.doubted.Load(),
			})
		}
		all = append(all, s)
	}
	return all
}

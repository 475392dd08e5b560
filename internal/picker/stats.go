package picker

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
)

// hits sums predicted and delivered prompt tokens over answers that report cached tokens, and predicted ones over all picks.
type hits struct {
	answers, prompt, predicted, confirmed, delivered, deviation atomic.Int64

	picks, pickedPrompt, pickedPredicted atomic.Int64
	silent, uncached                     atomic.Int64 // complete answers that report no usage, or one without cached tokens
}

func (h *hits) pick(prompt, predicted int) {
	h.picks.Add(1)
	h.pickedPrompt.Add(int64(prompt))
	h.pickedPredicted.Add(int64(predicted))
}

func (h *hits) add(prompt, predicted, confirmed, delivered int) {
	h.answers.Add(1)
	h.prompt.Add(int64(prompt))
	h.predicted.Add(int64(predicted))
	h.confirmed.Add(int64(confirmed))
	h.delivered.Add(int64(delivered))
	h.deviation.Add(int64(max(predicted-delivered, delivered-predicted)))
}

// countHits counts an answer with those of its pool and its endpoint, unless it is one to a copy, whose pick is not counted either. d.mu is
// held.
func (d *Decision) countHits(count func(h *hits)) {
	if !d.isMirror() {
		count(&d.view.stats.delivered)
		count(&d.Targets[d.target].member.stats.delivered)
	}
}

func (h *hits) read() Hits {
	return Hits{
		Answers: h.answers.Load(), PromptTokens: h.prompt.Load(), Predicted: h.predicted.Load(),
		Confirmed: h.confirmed.Load(), Delivered: h.delivered.Load(), Deviation: h.deviation.Load(),
		Picks: h.picks.Load(), PickedPrompt: h.pickedPrompt.Load(), PickedPredicted: h.pickedPredicted.Load(),
		Silent: h.silent.Load(), Uncached: h.uncached.Load(),
	}
}

// Hits compares predicted cache hits with those that the engines delivered, in prompt tokens, over the answers that report
// them (requests with several prompts, prompt log-probabilities or retries are left out).
type Hits struct {
	Answers, PromptTokens int64
	// Predicted at the pick, and the part of it that was confirmed.
	Predicted, Confirmed int64
	Delivered            int64
	// Deviation is the sum over answers of |predicted - delivered|.
	Deviation int64
	// Picks are all of them, whatever their answers report: PickedPrompt and PickedPredicted are their prompt tokens.
	Picks, PickedPrompt, PickedPredicted int64
	// Silent are complete answers that report no usage, Uncached those whose usage lacks the cached tokens.
	Silent, Uncached int64
}

// inexactReasons are what reasonOf gives.
var inexactReasons = [...]string{"content", "route", "identity", "refused", "unproven", "budget", "memory", "unsupported", "unavailable"}

type poolStats struct {
	outcomes  [numOutcomes]atomic.Int64
	tokens    [numTokenSources]atomic.Int64
	inexact   [len(inexactReasons)]atomic.Int64
	reused    atomic.Int64
	without   inexactness
	rendering atomic.Pointer[Rendering] // nil until an engine is asked
	refused   atomic.Int64
	retries   atomic.Int64
	unretried atomic.Int64
	delivered hits
}

func (s *poolStats) count(d *Decision) {
	s.tokens[d.Tokens].Add(1)
	if i := slices.Index(inexactReasons[:], d.TokensMissing); i >= 0 {
		s.inexact[i].Add(1)
	}
	s.without.count(d.TokensMissing)
	first := &d.Targets[0]
	first.member.stats.picks.Add(1)
	s.delivered.pick(d.PromptTokens, first.Expected)
	first.member.stats.delivered.pick(d.PromptTokens, first.Expected)
}

// Inexact is how many of the last requests had no exact tokens: the share of about the last 128, and why the last one
// had none.
type Inexact struct {
	Share float64
	Last  string
}

// inexactness keeps that share.
type inexactness struct {
	mu  sync.Mutex
	now Inexact
}

const inexactOver = 128

func (x *inexactness) count(reason string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.now.Share -= x.now.Share / inexactOver
	if reason != "" {
		x.now.Share += 1. / inexactOver
		x.now.Last = reason
	}
}

func (x *inexactness) read() Inexact {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.now
}

// Rendering is how questions to engines for tokens go.
type Rendering struct {
	// Failures since an engine has answered the last time. Requests that no engine can render are no failures.
	Failures int
	// Last is why the last one has failed, without any content of a request.
	Last string
	// Lacking is the reason why the engine asked last has no render route open, and the cure; empty where it has one.
	Lacking string
}

// rendered enters how a question went.
func (s *poolStats) rendered(lacking string, err error) {
	var before, next Rendering
	if p := s.rendering.Load(); p != nil {
		before = *p
	}
	next.Lacking = lacking
	switch {
	case errors.Is(err, ErrUnrenderable) && !errors.Is(err, ErrNoRoom):
		next.Failures, next.Last = before.Failures, before.Last
	case err != nil:
		next.Failures, next.Last = before.Failures+1, err.Error()
		next.Lacking = before.Lacking
	}
	if next != before {
		s.rendering.Store(&next)
	}
}

type endpointStats struct {
	picks, failures atomic.Int64
	full            atomic.Int64 // requests that it refused by a limit of its queue
	delivered       hits
	// reportsCached: some answer has said how much of its prompt was cached.
	reportsCached atomic.Bool
	// reportsNone: some answer has said that nothing was cached.
	reportsNone atomic.Bool
}

// PoolStats are the counters of a pool since it was first applied. It has many fields because metrics, the page and the operator
// read all counters at one moment, as one value.
type PoolStats struct {
	Namespace, Pool string
	// Model is the canonical served name.
	Model, Strategy string
	Outcomes        map[Outcome]int64
	Tokens          map[TokenSource]int64
	// TokensReused counts the prompts whose ids an engine had made for a request before.
	TokensReused int64
	// Inexact counts the requests without exact tokens, by the reason.
	Inexact map[string]int64
	// Rendering is how questions to engines for tokens go.
	Rendering Rendering
	// Checks are of tokens made in process, and of tokens that engines rendered.
	Checks Checks
	// Doubts are the classes of requests whose tokens do not fit at present.
	Doubts []Doubt
	// Handoffs counts hand-offs between endpoints by their outcomes.
	Handoffs map[HandoffOutcome]int64
	// Plans counts the plans that were chosen for requests; nil in pools without roles.
	Plans map[PlanChoice]int64
	// TransferSeconds and TransferTokenSeconds are the price of hand-offs: seconds for each, and seconds for each token that the endpoint
	// which decodes lacks. They are 0 in pools without roles.
	TransferSeconds, TransferTokenSeconds float64
	// Refused requests found no endpoint; Retries went to a fallback.
	// Unretried failed where the retry budget was used up.
	Refused, Retries, Unretried int64
	Hits                        Hits
	Trust                       Trust
	// Blocks are the distinct blocks in the index, Held the (endpoint, block) pairs, Speculative those assumed.
	Blocks, Held, Speculative int
	Speculation               Speculation
	// Speculating is the number of requests that speculate. Proven counts the blocks that answers have shown, prefix by
	// prefix: without a request that speculates, no more are assumed.
	Speculating, Proven int
	Admission           AdmissionStats
	Without             Inexact
	Shadows             []ShadowStats
	Tenants             map[string]TenantStats
	Gateways            []GatewayStats
	Listing             Listing
	Endpoints           []EndpointStats
}

// Speculation is what the speculative blocks of a pool take in its index.
type Speculation struct {
	// Bytes that they take, about. Refused prompts, those of peers included, found no room there.
	Bytes, Refused int64
}

// EndpointStats are the counters of an endpoint since it joined.
type EndpointStats struct {
	ID       endpoint.ID
	Pod      string
	Pickable bool
	// CircuitClosed is false while the endpoint is kept out for its failures.
	CircuitClosed   bool
	Picks, Failures int64
	// Full counts the requests that the engine has refused because its queue was full.
	Full int64
	Hits Hits
	Load load.View
	Held int
	// Asleep: the engine takes requests and computes none, by its own word.
	Asleep bool
	// Stalled: it has accepted requests and shows no progress.
	Stalled bool
	// Doubted: what the index has of it might not be what it holds.
	Doubted bool
	// DropsLast: the engine speculates, and is taken to drop the last block of a hit, which is not predicted.
	// Lookahead: it does so because hashes of its blocks cover tokens that follow the block.
	DropsLast, Lookahead bool
}

// Stats reads the counters of all pools.
func (p *Picker) Stats() []PoolStats {
	now := p.now()
	var all []PoolStats
	for _, v := range p.current.Load().pools {
		v.pending.expire(now)
		v.proofs.expire(now)
		s := PoolStats{
			Namespace: v.spec.Namespace, Pool: v.spec.Name, Model: v.spec.Model, Strategy: string(v.spec.Policy.Strategy.Type),
			Outcomes: map[Outcome]int64{}, Tokens: map[TokenSource]int64{}, Inexact: map[string]int64{},
			Refused: v.stats.refused.Load(), Retries: v.stats.retries.Load(), Unretried: v.stats.unretried.Load(),
			TokensReused: v.stats.reused.Load(), Hits: v.stats.delivered.read(),
			Speculating: v.pending.size(), Proven: int(v.proofs.blocks.Load()), Admission: v.admission.read(), Tenants: v.tenants.read(),
			Trust:    Trust{Losses: v.doubts.losses.Load(), Ignored: v.doubts.ignored.Load()},
			Gateways: v.gateways.read(now), Shadows: v.shadowStats(), Without: v.stats.without.read(),
			Listing: v.listing(),
		}
		s.Blocks, s.Held, s.Speculative = v.index.Size()
		if index, ok := v.index.(*kvindex.Index); ok {
			s.Speculation = Speculation{Bytes: index.GuessBytes(), Refused: int64(index.Unguessed())}
		}
		for i := range v.stats.outcomes {
			s.Outcomes[Outcome(i)] = v.stats.outcomes[i].Load()
		}
		v.handoffs.addTo(&s, v.roles)
		for i := range v.stats.tokens {
			s.Tokens[TokenSource(i)] = v.stats.tokens[i].Load()
		}
		if r := v.stats.rendering.Load(); r != nil {
			s.Rendering = *r
		}
		v.raise(v.checks.settle(now, v))
		var ended doubts
		s.Doubts, ended = v.doubtsNow(now)
		v.raise(ended)
		s.Checks = v.checks.read()
		for i, reason := range inexactReasons {
			s.Inexact[reason] = v.stats.inexact[i].Load()
		}
		for i, m := range v.members {
			ep, l := &v.spec.Endpoints[i], m.load.View(now)
			m.trust.addTo(&s.Trust, nameOf(ep))
			s.Endpoints = append(s.Endpoints, EndpointStats{
				ID: ep.ID, Pod: ep.Pod, Pickable: ep.Pickable(),
				CircuitClosed: m.circuit.Closed(now, v.spec.Policy.CircuitFailures),
				Picks:         m.stats.picks.Load(), Failures: m.stats.failures.Load(), Full: m.stats.full.Load(), Hits: m.stats.delivered.read(),
				Load: l, Stalled: l.Stalled, Held: v.held(m), Doubted: m.doubted.Load(), Asleep: m.sleep.asleep(now), DropsLast: m.tail.drops(),
				Lookahead: m.tail.lookahead.Load(),
			})
		}
		all = append(all, s)
	}
	return all
}

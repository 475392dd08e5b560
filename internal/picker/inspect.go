package picker

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/respcache"
)

// What the dashboard and the CLI show of picks. None of it runs on the path of a request unless a client is watching.

// Recorder takes down decisions with all their candidates, for people to see. It is asked at every pick and must not
// block.
type Recorder interface {
	// Wants reports whether the current decision should be recorded, and how many were skipped before it.
	Wants(now time.Time) (passed int64, ok bool)
	// Decided takes a decision, and names it. What it refers to is not changed any more.
	Decided(d api.Decision) (id uint64)
	// Ended takes it again, when its request has ended.
	Ended(d api.Decision)
}

// Explain reports where a request would go now, and why: the blocks, load and cost of every candidate. It sends and books
// nothing, charges no tenant and never waits. If the policy allows asking engines for tokens, it asks one. It fails with an
// *Error.
func (p *Picker) Explain(ctx context.Context, in *Request) (*api.Explanation, error) {
	s := new(scratch)
	in.Rename = func(r *openai.Request, model string) ([]byte, bool) {
		return openai.ReplaceModel(nil, in.Body, r, model), true
	}
	pools, steps := p.current.Load(), (*hooked)(nil)
	v, err := p.read(pools, in, &s.request)
	if err == nil {
		if v, steps, err = p.hook(ctx, pools, v, in, &s.request); err != nil {
			return nil, steps.explained(err)
		}
	}
	if err == nil && v.spec.MaxRequestBody > 0 && int64(len(in.Body)) > v.spec.MaxRequestBody {
		err = tooLarge(v.spec.MaxRequestBody)
	}
	if err != nil {
		return nil, err
	}
	now := v.admission.pin()
	if now == nil {
		return nil, UnknownModel(s.request.Model)
	}
	defer now.unpin()
	v = now
	caller := caller{}
	if caller.name, _, err = v.spec.Policy.Admission.Tenants.identify(in.Header); err != nil {
		caller.name = "" // the person that asks need not be a tenant
	}
	salt, err := v.salt(in, &s.request, &caller)
	if err != nil {
		return nil, err
	}
	allow, err := v.saltTakers(in, &s.request, salt)
	if err != nil {
		return nil, err
	}
	state := &pickState{header: in.Header, allow: allow, remote: in.Remote, unparsed: in.Unparsed, size: len(in.Body), body: in.Body,
		hooked: steps, prompt: prompt{err: errRoute}}
	if !in.Unparsed {
		state.prompt = p.promptOf(ctx, v, s, in.Body)
	}
	state.pulls = in.Splits && splittable(in, &s.request)
	state.splits = state.pulls
	cached := p.explainAnswered(v, in, &s.request, &caller)
	at, moment := v.place(s.request.Model), p.now()
	if s.candidates = v.eligible(moment, &at, state.reach(v, moment), s); len(s.candidates) == 0 {
		if cached != nil && cached.Result == respcache.Hit.String() {
			return v.answeredAlone(in, s.request.Model, steps, cached), nil
		}
		return nil, noEndpoint(v.spec.Name)
	}
	v.match(s, &state.prompt, false)
	s.question = v.question(s, state, moment)
	question := &s.question
	v.keepInIsland(s, question)
	v.matchHistory(s, &state.prompt, question, v.history)
	s.costs = resize(s.costs, len(s.candidates))
	policy.Still(v.strategy).Score(question, s.candidates, s.costs)
	e := v.explanation(s, question, &state.prompt, moment, &at)
	e.Plans = v.explainPlans(s, state, moment)
	e.Model, e.Distrusted = s.request.Model, slices.Contains(s.ignored, true)
	e.Route, e.Hooks, e.ResponseCache = in.Routing.describe(e.Model).reason()+in.Routing.mirrored(), steps.explain(), cached
	return e, nil
}

// explainPlans weighs the plans for scored candidates; nil where there is only one.
func (v *view) explainPlans(s *scratch, state *pickState, now time.Time) *api.Plans {
	if !v.roles && !v.pullable(state) {
		return nil
	}
	v.order(s, &s.question, now)
	state.weighed = v.planPull(s, state, now)
	state.pull = state.weighed.ifCheaper()
	if v.roles {
		state.plans = v.begin(s, state)
		if state.plans.why == PlanHandoff {
			v.weigh(state.plans, s, new(scratch), state, now, false)
		}
	}
	v.joinPlans(s, state)
	if state.plans == nil {
		return nil
	}
	return state.plans.explain(v)
}

// answeredAlone is the explanation of a request that the response cache answers while no endpoint is ready.
func (v *view) answeredAlone(in *Request, model string, steps *hooked, cached *api.CacheResult) *api.Explanation {
	return &api.Explanation{
		Namespace: v.spec.Namespace, Pool: v.spec.Name, Model: model, Strategy: string(v.spec.Policy.Strategy.Type),
		Tokens: TokensNone.String(), Candidates: []api.Candidate{}, ResponseCache: cached,
		Route: in.Routing.describe(model).reason(), Hooks: steps.explain(),
	}
}

// explanation puts what a strategy has made of s.candidates into words for people.
func (v *view) explanation(s *scratch, question *policy.Request, in *prompt, now time.Time, at *place) *api.Explanation {
	terms := policy.Explain(v.strategy, question, s.candidates)
	e := &api.Explanation{
		Namespace: v.spec.Namespace, Pool: v.spec.Name, Strategy: string(v.spec.Policy.Strategy.Type),
		Tokens: in.source.String(), NoCacheRead: in.noRead, TokensMissing: reasonOf(in.err), PromptTokens: question.PromptTokens,
		Unit: terms.Unit, Fleet: termsOf(terms.Fleet),
	}
	if n := min(len(in.keys), prefixBlocks); n > 0 {
		e.Prefix = v.spec.Seed.Name(in.keys[n-1])
	}
	order := policy.Rank(question, s.candidates, s.costs, make([]int, 0, len(s.candidates)), len(s.candidates))
	scored := make([]bool, len(v.members))
	for _, c := range order {
		i, candidate := s.index[c], &s.candidates[c]
		scored[i] = true
		ep := &v.spec.Endpoints[i]
		e.Candidates = append(e.Candidates, api.Candidate{
			Pod: ep.Pod, Rank: ep.ID.Rank,
			Matched: question.MatchTokens(candidate), Confirmed: min(candidate.Match.Confirmed(), question.Blocks) * question.BlockTokens,
			Uncached: question.Uncached(candidate), InFlight: candidate.Load.InFlight, PendingTokens: candidate.Load.PendingTokens,
			KVUsage: candidate.Load.KVUsage, Cost: s.costs[c].First, Then: s.costs[c].Then, Terms: termsOf(terms.Candidates[c]),
		})
	}
	for i, ok := range scored {
		if !ok {
			ep := &v.spec.Endpoints[i]
			e.LeftOut = append(e.LeftOut, api.LeftOut{Pod: ep.Pod, Rank: ep.ID.Rank, Reason: v.leftOut(i, now, at)})
		}
	}
	return e
}

// explain puts plans into words for people.
func (w *plans) explain(v *view) *api.Plans {
	step := func(does string, i int, seconds float64) api.Step {
		ep := &v.spec.Endpoints[i]
		return api.Step{Does: does, Pod: ep.Pod, Rank: ep.ID.Rank, Seconds: seconds}
	}
	out := &api.Plans{
		HandedOver: w.why == PlanHandoff, Because: w.why.because(),
		Alone: api.Plan{Seconds: w.whole, Steps: []api.Step{step("serve", w.alone, w.whole)}},
	}
	if len(w.all) > 0 {
		out.Alone.Steps[0].Parts = partsOf(policy.Parts(w.scale, &w.asked, w.all, w.best), 0)
	}
	if p := w.pull; p != nil {
		serve := step("serve", p.own, p.cost)
		serve.Parts = partsOf(policy.Parts(v.strategy, &p.asked, p.all, p.at), p.transfer)
		out.Pull = &api.Plan{Seconds: p.cost, Steps: []api.Step{{Does: "lend", Pod: p.peer.Pod, Rank: p.peer.ID.Rank}, serve}}
		if len(w.all) == 0 && w.whole > 0 {
			out.Alone.Steps[0].Parts = partsOf(policy.Parts(v.strategy, &p.asked, p.all, p.best), 0)
		}
	}
	if w.to < 0 {
		return out
	}
	prefill, decode := step("prefill", w.from, w.prefill), step("decode", w.to, w.transfer+w.decode)
	prefill.Parts = partsOf(policy.Parts(w.scale, &w.asked, w.all, w.first), 0)
	decode.Parts = partsOf(policy.Parts(w.scale, &w.loads, w.loaded, w.receiver), w.transfer)
	out.Handoff = &api.Plan{Seconds: prefill.Seconds + decode.Seconds, Steps: []api.Step{prefill, decode}}
	return out
}

// partsOf leaves out parts of a cost that are 0, and takes the transfer out of the delay.
func partsOf(terms []policy.Term, transfer float64) []api.Term {
	var out []api.Term
	if transfer > 0 {
		out = append(out, api.Term{Name: "transfer", Value: transfer, Unit: "seconds"})
	}
	for _, t := range terms {
		if t.Name == "delay" {
			t.Value -= transfer
		}
		if t.Value > 1e-6 {
			out = append(out, api.Term{Name: t.Name, Value: t.Value, Unit: t.Unit})
		}
	}
	return out
}

func termsOf(terms []policy.Term) []api.Term {
	out := make([]api.Term, len(terms))
	for i, t := range terms {
		out[i] = api.Term{Name: t.Name, Value: t.Value, Unit: t.Unit}
	}
	return out
}

// leftOut is why an endpoint was no candidate.
func (v *view) leftOut(i int, now time.Time, at *place) string {
	ep, m := &v.spec.Endpoints[i], v.members[i]
	switch {
	case ep.Terminating:
		return "draining"
	case !ep.Pickable():
		return "not-ready"
	case m.sleep.asleep(now):
		return "asleep"
	case !at.suits(ep):
		return "role"
	case at.having != nil && !at.having[ep.ID]:
		return "adapter"
	case !at.home(ep) && v.spec.Policy.Crossing != CrossWhenCheaper:
		return "island"
	case !m.circuit.Closed(now, v.spec.Policy.CircuitFailures):
		return "circuit"
	}
	load := m.load.View(now)
	if load.Stalled {
		return "stalled"
	}
	if v.isFull(now, i, &load) {
		return "full"
	}
	if !at.home(ep) {
		return "island"
	}
	return "not-asked" // a gateway's choice, or a probe of its circuit
}

// Sharing returns for each endpoint of a pool (namespace/name) how many of its blocks no other endpoint has. It visits the
// entire index.
func (p *Picker) Sharing(pool string) map[endpoint.ID]kvindex.Share {
	for _, v := range p.current.Load().pools {
		if v.name == pool {
			out := make(map[endpoint.ID]kvindex.Share, len(v.holders))
			for i, share := range v.index.Sharing(v.holders) {
				out[v.spec.Endpoints[i].ID] = share
			}
			return out
		}
	}
	return nil
}

// Prefixes returns the prefixes that recent requests have found in caches most often, with the endpoints that hold them
// now, at most limit of them. It omits prefixes of adapters, prefixes with a cache salt, and those whose tokens are not
// known.
func (p *Picker) Prefixes(limit int) []api.Prefix {
	var out []api.Prefix
	now := p.now()
	for _, v := range p.current.Load().pools {
		root := v.spec.Seed.Root(v.spec.Model, "")
		matches := make([]kvindex.Match, len(v.holders))
		for _, h := range v.hot.top(now, limit) {
			keys := kvblock.AppendKeys(nil, root, h.ids, v.spec.BlockTokens)
			if len(keys) == 0 {
				continue
			}
			v.index.Match(keys, v.holders, matches)
			for i, m := range v.members {
				matches[i] = matches[i].Whole(len(keys), m.grain.keys())
			}
			out = append(out, api.Prefix{
				Namespace: v.spec.Namespace, Pool: v.spec.Name, Hash: v.spec.Seed.Name(keys[len(keys)-1]),
				Tokens: len(h.ids), Hits: h.hits, Holders: v.holdersOf(matches),
			})
		}
	}
	slices.SortStableFunc(out, func(a, b api.Prefix) int { return cmp.Compare(b.Hits, a.Hits) })
	return out[:min(len(out), limit)]
}

// holdersOf names the endpoints with confirmed blocks by matches, in the order of the view, longest first.
func (v *view) holdersOf(matches []kvindex.Match) []api.Holder {
	holders := []api.Holder{}
	for i := range matches {
		blocks := matches[i].Confirmed()
		if blocks == 0 {
			continue
		}
		h := api.Holder{Pod: v.spec.Endpoints[i].Pod, Rank: v.spec.Endpoints[i].ID.Rank, Tokens: blocks * v.spec.BlockTokens,
			Tiers: map[string]int{}}
		for tier, n := range matches[i].Tiers {
			if n > 0 {
				h.Tiers[kvblock.Tier(tier).String()] = int(n) * v.spec.BlockTokens
			}
		}
		holders = append(holders, h)
	}
	slices.SortStableFunc(holders, func(a, b api.Holder) int { return cmp.Compare(b.Tokens, a.Tokens) })
	return holders
}

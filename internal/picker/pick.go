package picker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/internal/decisionlog"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/routinghistory"
	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
)

// scratch is what one pick needs besides its result.
type scratch struct {
	request    openai.Request
	keys       []kvblock.Key
	former     []kvblock.Key // by the former root, while keys are rotated
	chain      routinghistory.Chain
	chunks     [][]routinghistory.Chunk // by history
	guards     guards                   // that the candidates have passed
	crowded    bool                     // some candidates' circuits are open: too many were
	index      []int                    // of the candidates in the pool
	holders    []kvindex.Holder
	matches    []kvindex.Match
	further    []kvindex.Match // of one of further prompts
	ignored    []bool          // distrusted matches
	candidates []policy.Candidate
	question   policy.Request
	costs      []policy.Cost
	order      []int
	scored     bool // s.matches, s.question and s.costs are those of the candidates
	sequences  int  // of the request; 0 if it is not known

	plans     plans         // in pools with roles
	lacking   []int         // tokens that are to be transferred to each candidate
	estimates []policy.Cost // of the yardstick
	// What shadows need.
	predicted   []float64
	shadowCosts []policy.Cost
	shadowOrder []int
}

// pick is Pick for one pool.
func (p *Picker) pick(ctx context.Context, in *Request) (d *Decision, err error) {
	start := p.now()
	in.Steps.begin(start)
	s := p.scratch.Get().(*scratch)
	defer p.release(s)
	r := &s.request

	v, hooked, err := p.find(ctx, in, s, start)
	if err != nil {
		return nil, err
	}
	s.sequences = sequencesOf(r)
	in.Facts.placed(v, in, r)
	ctx, cancel := in.Routing.bound(ctx, p.now())
	defer cancel()
	caller, start, err := p.arrive(v, in, r, hooked, start)
	if err != nil {
		return nil, p.withModels(in, err)
	}
	defer func() {
		if d == nil {
			v.release(ctx, in, &caller)
		}
	}()

	dropsPriority, err := v.spec.Policy.Admission.steering(in, r, &caller)
	if err != nil {
		return nil, err
	}
	salt, allow, err := v.salted(in, r, &caller)
	if err != nil {
		return nil, err
	}
	if hit := p.answered(ctx, v, s, in, &caller, hooked, start); hit != nil {
		return nil, hit
	}
	in.Steps.end(StepParse, p.now)
	if in.Streams != nil && r.Stream && !r.Background && !in.Unparsed && !in.Light {
		in.Streams(&v.spec.Policy)
	}

	state := &pickState{
		id: in.ID, routing: in.Routing, hooked: hooked, facts: in.Facts, dropsPriority: dropsPriority, salt: salt, invoked: invokedModel(in),
		cutsUsage: in.CutsUsage, again: in.Again != nil, generates: in.Generates, steps: in.Steps, start: start,
		header: in.Header, caller: caller, allow: allow, gateway: in.Gateway, remote: in.Remote,
		unparsed: in.Unparsed, observed: in.Observed, size: len(in.Body), body: in.Body, prompt: prompt{err: errRoute},
	}
	state.logs = p.logs(v)
	if in.Light {
		state.body, r.Prompts, r.Messages, r.System, r.Tools = nil, r.Prompts[:0], nil, nil, nil
	} else if !in.Unparsed {
		state.prompt = p.legPrompt(ctx, v, s, state, in)
		in.Steps.end(StepTokenize, p.now)
	}
	current, booked, err := p.admit(ctx, &v.admission, s, state)
	if err != nil {
		p.refused(v, s, state, err)
		return nil, err
	}
	defer booked()
	defer current.unpin()
	in.Steps.end(StepAdmit, p.now)
	if current.spec.Seed != v.spec.Seed && state.err == nil { // meanwhile
		booked() // others need not wait for an engine's answer
		state.prompt = p.promptOf(ctx, current, s, in.Body)
		s.scored = false
	}
	return p.choose(current, s, state)
}

// pickState is what a pick keeps of its request besides the scratch: its caller, where it can go, and its prompt.
type pickState struct {
	id        string
	routing   *Routing // nil without a ModelRoute
	hooked    *hooked  // nil without hooks
	facts     *Facts   // nil where no use is recorded
	steps     *Steps
	start     time.Time
	header    func(name string) string
	caller    caller
	allow     func(*endpoint.Endpoint) bool // the subset that a gateway has given; nil for all
	gateway   string
	again     bool // it was picked for before
	remote    bool // it cannot reach endpoints behind unix sockets
	unparsed  bool
	generates bool
	// dropsPriority: the body has a priority that the engine must not get. cutsUsage: the usage that the body asks for can be taken out
	// of the answer. observed: it waits for nothing.
	dropsPriority, cutsUsage, observed bool

	salt, invoked string // that the body must get, empty to leave it as it is; see Decision.InvokedModel
	body          []byte
	size          int           // of the body as received
	waited        time.Duration // for room
	due           time.Time     // deadline of the first token, of requests with a tight target
	legState
	prompt
}

// legState is what a pick keeps of the leg that it is for.
type legState struct {
	// leg of the request; splits: the caller can send two; relays: a sidecar of the endpoint that decodes sends both. handedBefore: a
	// decision before was for a hand-off. logs: decisions are logged.
	leg                                Leg
	splits, relays, handedBefore, logs bool
	// pulls: the caller can have the endpoint load blocks of a peer. pull is the plan for it; nil for none.
	pulls bool
	// weighed is the best pull, also if it costs more.
	pull, weighed *pull
	// atOnce: both legs of a hand-off are sent at the same time, so that they are decided together.
	atOnce bool
	// handoff is what the decision for the first leg has kept for a DecodeLeg, coming the endpoint that the plan of a PrefillLeg counts on,
	// accused see handoff. first is the decision for the first leg, if it is relayed.
	handoff handoff
	first   *Decision
	coming  *member
	accused *pair
	trial   *trial
	// plans of the scratch; nil where no plans were made. compared is the record of the plans of the hand-off before, if decisions are
	// logged.
	plans    *plans
	compared *decisionlog.Plan
}

// choose is the pick from s.candidates on.
func (p *Picker) choose(v *view, s *scratch, state *pickState) (*Decision, error) {
	if len(s.candidates) == 0 {
		v.stats.refused.Add(1)
		return nil, noEndpoint(v.spec.Name)
	}
	now := p.now()
	v.pending.expire(now)
	v.proofs.expire(now)
	if !s.scored {
		v.match(s, &state.prompt, true)
		s.question = v.question(s, state, now)
		v.keepInIsland(s, &s.question)
		v.matchHistory(s, &state.prompt, &s.question, v.history)
	}
	question := &s.question // strategies are interfaces: on the stack it would be allocated for each request
	state.steps.end(StepMatch, p.now)
	if state.leg == DecodeLeg {
		v.receive(s, state, question, now)
	}
	probe := v.rank(s, question, now)
	state.weighed = v.planPull(s, state, now)
	state.pull = state.weighed.ifCheaper()
	if v.roles && state.leg == Whole {
		probe = p.split(v, s, state, probe, now)
	}
	if state.pull != nil && state.leg == Whole {
		probe = v.begins(s, state, probe, now)
		v.countPull(state)
	} else {
		state.pull = nil
	}
	v.joinPlans(s, state)
	state.steps.end(StepScore, p.now)

	if state.leg == Whole {
		v.compare(s, &state.prompt, question)
	}
	d := v.decide(p.now, s, question, state, probe)
	d.picked = now
	d.Duration = p.now().Sub(state.start)
	if state.leg != DecodeLeg { // its match is what will be transferred, not what the endpoint holds
		p.remember(v, s, state, d.Targets[0].Predicted, now)
	}
	d.account = p.account(v, d, s, question, state, now)
	state.steps.end(StepBook, p.now)
	if log := p.options.Log.V(1); log.Enabled() {
		log.Info("Picked", "request", state.id, "pool", v.spec.Name, "endpoint", d.Targets[0].Endpoint.Pod, "model", s.request.Model,
			"promptTokens", d.PromptTokens, "matchedBlocks", d.Targets[0].Match.Blocks(), "tokens", state.source.String())
	}
	return d, nil
}

const (
	// maxKeyed is how much of a prompt gets keys, in tokens: more than any engine serves.
	maxKeyed = 1 << 20
	// keepKeys bounds the buffer that is kept for the next request.
	keepKeys = 1 << 15
)

// release returns the scratch for the next request, without buffers that an unusual request made huge.
func (p *Picker) release(s *scratch) {
	s.request.Reset()
	s.sequences = 0
	if cap(s.keys)+cap(s.former) > keepKeys {
		s.keys, s.former = nil, nil
	}
	p.scratch.Put(s)
}

// eligible applies the rules around every strategy. It drops endpoints that are not allowed, not ready, draining or asleep.
// It keeps endpoints of another island, where that is the last resort, only if no others are left or take the request. The
// same holds for full endpoints, unless requests wait for them (see waits). It keeps endpoints with an open circuit, and
// stalled ones, only if there are no others at all.
func (v *view) eligible(now time.Time, at *place, allow func(*endpoint.Endpoint) bool, s *scratch) []policy.Candidate {
	list, index := s.candidates[:0], s.index[:0]
	s.crowded = false
	for s.guards = allGuards; ; s.guards-- {
		out := 0        // endpoints kept out for errors that they have answered with
		others := false // endpoints kept out that are used as a last resort
		for i, m := range v.members {
			ep := &v.spec.Endpoints[i]
			if !ep.Pickable() || m.sleep.asleep(now) || !at.allows(ep) || allow != nil && !allow(ep) {
				continue
			}
			list = slices.Grow(list, 1)
			c := &list[:len(list)+1][len(list)] // where it would be: candidates are too large to copy
			m.load.Read(now, &c.Load)
			coming := int(m.coming.Load())
			c.Load.InFlight += coming
			c.Load.Sequences += coming
			if s.guards >= circuitOnly && !m.circuit.Closed(now, v.spec.Policy.CircuitFailures) {
				if !m.circuit.Answers() {
					continue
				}
				if out++; out <= v.mostOut(at) {
					continue
				}
				s.crowded = true
			}
			if s.guards >= circuitOnly && c.Load.Stalled {
				continue
			}
			if s.guards >= allGuards && !at.prefers(ep) {
				others = true
				continue
			}
			if s.guards >= allGuards && !v.spec.Policy.Admission.waits() && v.isFull(now, i, &c.Load) {
				continue
			}
			c.Hash, c.Match, c.Delay, c.Loads, c.Routed, c.Grain = m.hash, kvindex.Match{}, at.delay(ep, &c.Load), 0, 0, m.grain.keys()
			list, index = list[:len(list)+1], append(index, i)
		}
		if s.guards == noGuards || len(list) > 0 && (!others || v.someTakes(now, list, index, s.needs())) {
			s.index = index
			return list
		}
		list, index = list[:0], index[:0]
	}
}

// someTakes reports whether a request need not wait for each of the candidates.
func (v *view) someTakes(now time.Time, candidates []policy.Candidate, index []int, sequences int) bool {
	for c, i := range index {
		if v.takes(now, i, &candidates[c].Load, sequences) {
			return true
		}
	}
	return false
}

// mostOut is how many endpoints are kept out for errors that they answer with: half of those that take requests, and at least
// one. Requests can be the cause of such errors, and must not take most of a pool out of service. Endpoints that do not
// answer at all are kept out, however many they are.
func (v *view) mostOut(at *place) int {
	n := 0
	for i := range v.spec.Endpoints {
		if ep := &v.spec.Endpoints[i]; ep.Pickable() && at.suits(ep) {
			n++
		}
	}
	return max(1, n/2)
}

// guards are the rules that hold as long as they leave an endpoint.
type guards uint8

// An endpoint whose circuit is open looks idle but serves no request: it ranks after those that are merely full.
const (
	noGuards guards = iota
	circuitOnly
	allGuards
)

// rank orders the candidates and asks the best one's circuit. Half open, that lets one request through: where another
// was faster the candidate is out, unless nothing else is left. probe marks this request as the probe.
func (v *view) rank(s *scratch, question *policy.Request, now time.Time) (probe bool) {
	for ; ; s.scored = false {
		if !s.scored {
			s.costs = resize(s.costs, len(s.candidates))
			v.strategy.Score(question, s.candidates, s.costs)
		}
		v.order(s, question, now)
		best := s.order[0]
		ok, probe := v.members[s.index[best]].circuit.Take(now, v.spec.Policy.CircuitFailures)
		if ok || s.guards == noGuards || s.crowded || len(s.candidates) == 1 {
			return probe
		}
		s.candidates = slices.Delete(s.candidates, best, best+1)
		s.index = slices.Delete(s.index, best, best+1)
		s.matches = slices.Delete(s.matches, best, best+1)
		s.ignored = slices.Delete(s.ignored, best, best+1)
		if len(s.lacking) > best {
			s.lacking = slices.Delete(s.lacking, best, best+1)
		}
	}
}

// question puts the request into the strategies' words.
func (v *view) question(s *scratch, state *pickState, now time.Time) policy.Request {
	r, spec := &s.request, v.spec
	blocks := prefixBlocks
	if c := spec.Policy.Strategy; c.Type == policy.Rendezvous && c.Rendezvous.ByPrefix {
		blocks = max(1, c.Rendezvous.PrefixTokens/spec.BlockTokens)
	}
	named := state.hooked.sessionHash()
	if named == 0 {
		named = session(v.sessionKeys, state.header, state.body, r)
	}
	out := policy.Request{
		PromptTokens: state.total(),
		BlockTokens:  spec.BlockTokens,
		PrefixTokens: r.PrefixLen,
		Session:      named,
		Prefix:       prefix(state.keys, blocks, r),
		Credit:       spec.Policy.Credit,
		ReloadRate:   spec.Policy.ReloadRate,
		Place:        v.peers.Place(),
	}
	if named != 0 {
		out.Home = v.homes.Get(named, now)
	}
	if state.tokens > 0 {
		out.Blocks = state.usableBlocks(spec.BlockTokens)
	} else if state.source == TokensNone {
		out.PromptTokens = len(state.body) / bytesPerToken
	}
	return out
}

// decide makes the decision for the best candidates: books the first and speculates on it.
func (v *view) decide(now timeNow, s *scratch, question *policy.Request, state *pickState, probe bool) *Decision {
	r := &s.request
	d := &Decision{
		Namespace:       v.spec.Namespace,
		Pool:            v.spec.Name,
		Model:           r.Model,
		Strategy:        v.spec.Policy.Strategy.Type,
		Tokens:          state.source,
		PromptTokens:    question.PromptTokens,
		Chunks:          question.Chunks,
		NoCacheRead:     state.noRead,
		view:            v,
		now:             now,
		arrived:         state.start,
		session:         question.Session,
		route:           r.Route,
		unparsed:        state.unparsed,
		generates:       state.generates,
		invoked:         state.invoked,
		background:      !state.unparsed && r.Background,
		streamed:        r.Stream,
		gateway:         state.gateway,
		observed:        state.observed,
		maxTokens:       r.MaxTokens,
		answers:         sequencesOf(r),
		counted:         state.err == nil && len(r.Prompts) <= 1 && !state.noRead && len(state.former) == 0 && state.pull == nil,
		cacheUnreported: r.CacheUnreported,
		class:           state.class(),
		rendered:        state.rendered,
		keys:            append([]kvblock.Key(nil), state.keys...),
		chunks:          s.keptChunks(),
		caller:          state.caller,
		dropsPriority:   state.dropsPriority,
		salt:            state.salt, probe: probe, Bytes: state.size, Waited: state.waited, found: -1,
		takesUsage: state.cutsUsage && !state.unparsed && r.TakesUsage, takesReport: state.cutsUsage && !state.unparsed && r.TakesReport,
		reported: Reported{Prompt: -1, Cached: -1, Generated: -1},
	}
	d.routed, d.routing, d.hooked, d.facts = state.routing.describe(r.Model), state.routing, state.hooked, state.facts.kept()
	d.describeLeg(s, state)
	if !state.again && !d.isMirror() {
		d.charge(d.PromptTokens)
		v.charge(now(), &d.caller, question.Uncached(&s.candidates[s.order[0]]))
	}
	d.TokensMissing = reasonOf(state.err)
	d.otherTokens = state.otherTokens(r)
	d.kinds, d.choices = r.Kinds(), r.N
	for _, one := range state.more {
		d.more = append(d.more, append([]kvblock.Key(nil), one.keys...))
	}
	for _, c := range s.order[:min(len(s.order), max(1, v.spec.Policy.Attempts))] {
		d.Targets = append(d.Targets, v.target(s, question, state, c))
	}
	if slices.Contains(s.ignored, true) {
		d.Distrusted = true
		v.doubts.ignored.Add(1)
	}
	d.stored = d.Targets[0].member.stored.Load()
	if !state.again && !d.isMirror() {
		v.stats.count(d)
	}
	d.begin(0)
	d.booking.SetDue(state.due)
	if state.leg != DecodeLeg && !d.isMirror() {
		first := &d.Targets[0]
		v.tally.placed(d.PromptTokens, first.Predicted, first.uncached, d.booking.Seconds())
		first.member.work.Add(int64(d.booking.Seconds() * float64(time.Second)))
		v.recordValue(s, question, s.order[0], now())
	}
	return d
}

// otherTokens is how many tokens the prompts have that are not matched, estimated where their ids are not known.
func (state *pickState) otherTokens(r *openai.Request) (n int) {
	if state.err == nil && state.others >= 0 {
		return state.others
	}
	for _, prompt := range r.Prompts[min(1, len(r.Prompts)):] {
		n += len(prompt.Tokens) + len(prompt.Text)/bytesPerToken
	}
	return n
}

// reasonOf is why a request has no exact tokens, in a word fit for a metric label; empty if it has.
func reasonOf(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errContent):
		return "content"
	case errors.Is(err, errRoute):
		return "route"
	case errors.Is(err, errIdentity):
		return "identity"
	case errors.Is(err, errRefused):
		return "refused"
	case errors.Is(err, errUnproven):
		return "unproven"
	case errors.Is(err, context.DeadlineExceeded):
		return "budget"
	case errors.Is(err, ErrNoRoom):
		return "memory"
	case errors.Is(err, chatprompt.ErrUnsupported), errors.Is(err, ErrUnrenderable):
		return "unsupported"
	}
	return "unavailable"
}

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

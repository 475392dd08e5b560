package picker

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/internal/affinity"
	"github.com/kvasir-dev/kvasir/internal/chatprompt"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// Request is what is to be picked for.
type Request struct {
	Route openai.Route
	Body  []byte
	// Header reads a request header by its lower-case name; nil when there are none.
	Header func(name string) string
	// Unparsed: nothing is known of the body, or there is none. The request goes by load, in the pool of its model if
	// the body is JSON that names one.
	Unparsed bool
	// Light requests compute nothing: they go by load, and nothing is remembered of their prompts.
	Light bool
	// Preflight: a browser asks what it may send (CORS). It must not show who it is while it does, so it is nobody's, and
	// it waits for nothing. It is Unparsed, too.
	Preflight bool
	// Pool is the namespace/name of the only pool that may serve the request; empty for all.
	Pool string
	// Allow tells which endpoints may be chosen; nil for all.
	Allow func(*endpoint.Endpoint) bool
	// Steps gets the times of the pick's steps; nil, as without tracing, costs nothing.
	Steps *Steps
}

// scratch is what one pick needs besides its result.
type scratch struct {
	request    openai.Request
	keys       []kvblock.Key
	former     []kvblock.Key // by the former root, while keys are rotated
	chain      affinity.Chain
	chunks     [][]affinity.Chunk // by history
	guards     guards             // that the candidates have passed
	index      []int              // of the candidates in the pool
	holders    []kvindex.Holder
	matches    []kvindex.Match
	candidates []policy.Candidate
	question   policy.Request
	costs      []policy.Cost
	order      []int

	estimates []policy.Cost // of the yardstick
	// What shadows need.
	predicted   []float64
	shadowCosts []policy.Cost
	shadowOrder []int
}

// Pick chooses endpoints for a request. The caller must end the decision. It fails with an *Error.
func (p *Picker) Pick(ctx context.Context, in *Request) (d *Decision, err error) {
	start := p.now()
	if in.Steps != nil {
		in.Steps.Began = start
	}
	s := p.scratch.Get().(*scratch)
	defer p.release(s)
	r := &s.request

	v, err := p.current.Load().read(in, r)
	if err == nil && v.spec.MaxRequestBody > 0 && int64(len(in.Body)) > v.spec.MaxRequestBody {
		err = tooLarge(v.spec.MaxRequestBody)
	}
	if err != nil {
		return nil, p.refusal(in, err)
	}
	who := who{class: everybody}
	if !in.Preflight {
		v.tally.came(start)
		if who, err = v.enter(start, in.Header, v.named(in, r)); err != nil {
			return nil, err
		}
	}
	defer func() {
		if d == nil {
			who.pass.Release()
		}
	}()

	in.Steps.end(StepParse, p.now)

	asked := &asked{
		steps: in.Steps, start: start, header: in.Header, who: who, allow: in.Allow, unparsed: in.Unparsed, preflight: in.Preflight, size: len(in.Body), body: in.Body, prompt: prompt{err: errRoute},
	}
	if in.Light {
		asked.body, r.Prompts, r.Messages, r.System, r.Tools = nil, r.Prompts[:0], nil, nil, nil
	} else if !in.Unparsed {
		asked.prompt = p.exactKeys(ctx, v, s, in.Body)
		in.Steps.end(StepTokenize, p.now)
	}
	current, booked, err := p.admit(ctx, &v.gate, s, asked)
	if err != nil {
		p.refused(v, s, asked, err)
		return nil, err
	}
	defer booked()
	defer current.done()
	in.Steps.end(StepAdmit, p.now)
	if current.spec.Seed != v.spec.Seed && asked.err == nil { // meanwhile
		asked.prompt = p.exactKeys(ctx, current, s, in.Body)
	}
	return p.choose(current, s, asked)
}

// asked is what choose needs to know of a request besides its scratch.
type asked struct {
	steps    *Steps
	start    time.Time
	header   func(name string) string
	who      who
	allow    func(*endpoint.Endpoint) bool // nil for all
	unparsed bool
	// preflight: it waits for nothing.
	preflight bool
	body      []byte
	size      int           // of the body as it came
	waited    time.Duration // for room
	due       time.Time     // when the first token has to come, of requests with a tight target
	prompt
}

// choose is the pick from s.candidates on.
func (p *Picker) choose(v *view, s *scratch, in *asked) (*Decision, error) {
	if len(s.candidates) == 0 {
		v.stats.refused.Add(1)
		return nil, noEndpoint(v.spec.Name)
	}
	now := p.now()
	v.pending.expire(now)
	believed := v.trust.matching()
	v.match(s, &in.prompt, believed)
	in.steps.end(StepMatch, p.now)

	s.question = v.question(s, in, now)
	question := &s.question // strategies are interfaces: on the stack it would be allocated for each request
	v.stay(s, question)
	v.recall(s, question, v.history)
	trial := v.rank(s, question, now)
	in.steps.end(StepScore, p.now)

	v.compare(s, question)
	d := v.decide(p.now, s, question, in, trial)
	d.Distrusted, d.picked = !believed, now
	d.Duration = p.now().Sub(in.start)
	p.remember(v, s, in, d.Targets[0].Predicted, now)
	d.account = p.account(v, d, s, question, in, now)
	in.steps.end(StepBook, p.now)
	if log := p.options.Log.V(1); log.Enabled() {
		log.Info("Picked", "pool", v.spec.Name, "endpoint", d.Targets[0].Endpoint.Pod, "model", s.request.Model,
			"promptTokens", d.PromptTokens, "matchedBlocks", d.Targets[0].Match.Blocks(), "tokens", in.source.String())
	}
	return d, nil
}

const (
	// maxKeyed is how much of a prompt gets keys, in tokens: more than any engine serves.
	maxKeyed = 1 << 20
	// keepKeys bounds the buffer that is kept for the next request.
	keepKeys = 1 << 15
)

// release gives the scratch back for the next request, without what one unusual request made huge.
func (p *Picker) release(s *scratch) {
	s.request.Reset()
	if cap(s.keys)+cap(s.former) > keepKeys {
		s.keys, s.former = nil, nil
	}
	p.scratch.Put(s)
}

// read parses the request and finds the pool that serves it.
func (s *snapshot) read(in *Request, r *openai.Request) (*view, error) {
	if in.Unparsed {
		return s.any(in)
	}
	if err := openai.Parse(in.Route, in.Body, r); err != nil {
		return nil, badRequest(err)
	}
	v := s.pool(r.Model)
	if v == nil || in.Pool != "" && v.name != in.Pool {
		return nil, unknownModel(r.Model)
	}
	return v, nil
}

// named is the model that a request is for, as far as a tenant's limits have to know; empty where it cannot be read.
func (v *view) named(in *Request, r *openai.Request) string {
	if in.Unparsed && v.spec.Policy.Admission.Tenants != nil {
		return modelOf(in.Body)
	}
	return r.Model
}

// any finds a pool for a request that does not tell its model: the first one that has an endpoint for it.
func (s *snapshot) any(in *Request) (*view, error) {
	var refused *view
	err := noPool()
	pools := s.pools
	if in.Pool == "" && len(pools) > 1 {
		if v := s.pool(modelOf(in.Body)); v != nil {
			pools = []*view{v}
		}
	}
	for _, v := range pools {
		if in.Pool != "" && v.name != in.Pool {
			continue
		}
		for i := range v.spec.Endpoints {
			if ep := &v.spec.Endpoints[i]; ep.Pickable() && (in.Allow == nil || in.Allow(ep)) {
				return v, nil
			}
		}
		refused, err = v, noEndpoint(v.spec.Name)
	}
	if refused != nil {
		refused.stats.refused.Add(1)
	}
	return nil, err
}

// modelOf is the model that a JSON body names, if it does, as engines read it: by its exact name, the last one.
func modelOf(body []byte) (model string) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil || json.Unmarshal(fields["model"], &model) != nil {
		return ""
	}
	return model
}

// eligible applies the rules around every strategy: endpoints that are not allowed, not ready or draining are out;
// those that are short of KV blocks, or lie on another island where that is the last resort, are out unless nothing else
// is left, and those whose circuit is open even then, unless there are only such.
func (v *view) eligible(now time.Time, at *place, allow func(*endpoint.Endpoint) bool, s *scratch) []policy.Candidate {
	list, index := s.candidates[:0], s.index[:0]
	for s.guards = allGuards; ; s.guards-- {
		for i, m := range v.members {
			ep := &v.spec.Endpoints[i]
			if !ep.Pickable() || !at.allows(ep) || allow != nil && !allow(ep) {
				continue
			}
			list = slices.Grow(list, 1)
			c := &list[:len(list)+1][len(list)] // where it would be: candidates are too large to copy
			m.load.Read(now, &c.Load)
			if s.guards >= circuitOnly && !m.circuit.closed(now, v.spec.Policy.CircuitFailures) {
				continue
			}
			if s.guards >= allGuards && (c.Load.KVUsage > v.spec.Policy.MaxKVUsage || !at.prefers(ep) || v.spec.Policy.Admission.full(&c.Load)) {
				continue
			}
			c.Hash, c.Match, c.Delay, c.Routed = m.hash, kvindex.Match{}, at.delay(ep, &c.Load), 0
			list, index = list[:len(list)+1], append(index, i)
		}
		if len(list) > 0 || s.guards == noGuards {
			s.index = index
			return list
		}
	}
}

// guards are the rules that hold as long as they leave an endpoint.
type guards uint8

// An endpoint whose circuit is open looks idle and serves nobody: it comes after those that are merely full.
const (
	noGuards guards = iota
	circuitOnly
	allGuards
)

// rank orders the candidates and asks the best one's circuit. Half open, that lets one request through: where another
// was faster the candidate is out, unless nothing else is left. trial tells that this request is the one.
func (v *view) rank(s *scratch, question *policy.Request, now time.Time) (trial bool) {
	for {
		s.costs = resize(s.costs, len(s.candidates))
		v.strategy.Score(question, s.candidates, s.costs)
		s.order = policy.Rank(question, s.candidates, s.costs, s.order, max(1, v.spec.Policy.Attempts))
		best := s.order[0]
		ok, trial := v.members[s.index[best]].circuit.take(now, v.spec.Policy.CircuitFailures)
		if ok || s.guards == noGuards || len(s.candidates) == 1 {
			return trial
		}
		s.candidates = slices.Delete(s.candidates, best, best+1)
		s.index = slices.Delete(s.index, best, best+1)
		s.matches = slices.Delete(s.matches, best, best+1)
	}
}

// match looks the request's blocks up for every candidate. What is not known for sure to be held counts half; matches
// that are not believed are nothing to the strategy.
func (v *view) match(s *scratch, p *prompt, believed bool) {
	s.holders = s.holders[:0]
	for _, i := range s.index {
		s.holders = append(s.holders, v.holders[i])
	}
	v.lookUp(s, p)
	for i := range s.candidates {
		c := &s.candidates[i]
		switch m := v.members[s.index[i]]; {
		case !believed:
			c.Match = kvindex.Match{}
		case m.doubted.Load():
			c.Match = half(s.matches[i])
		default:
			c.Match = s.matches[i]
		}
	}
	v.approximate(s, p, believed)
}

// half is a match whose confirmed blocks count half.
func half(m kvindex.Match) kvindex.Match {
	for tier := range m.Tiers {
		m.Tiers[tier] /= 2
	}
	return m
}

// question puts the request into the strategies' words.
func (v *view) question(s *scratch, in *asked, now time.Time) policy.Request {
	r, spec := &s.request, v.spec
	blocks := prefixBlocks
	if c := spec.Policy.Strategy; c.Type == policy.Rendezvous && c.Rendezvous.ByPrefix {
		blocks = max(1, c.Rendezvous.PrefixTokens/spec.BlockTokens)
	}
	session := session(v.sessionKeys, in.header, in.body, r)
	out := policy.Request{
		PromptTokens: in.tokens,
		BlockTokens:  spec.BlockTokens,
		PrefixTokens: r.PrefixLen,
		Session:      session,
		Prefix:       prefix(in.keys, blocks, r),
		Credit:       spec.Policy.Credit,
		ReloadRate:   spec.Policy.ReloadRate,
	}
	if session != 0 {
		out.Home = v.homes.Get(session, now)
	}
	if in.tokens > 0 {
		out.Blocks = (in.tokens - 1) / spec.BlockTokens
	} else if in.source == TokensNone {
		out.PromptTokens = len(in.body) / bytesPerToken
	}
	return out
}

// decide makes the decision for the best candidates: books the first and speculates on it.
func (v *view) decide(now timeNow, s *scratch, question *policy.Request, in *asked, trial bool) *Decision {
	r := &s.request
	d := &Decision{
		Pool:         v.spec.Name,
		Model:        r.Model,
		Strategy:     v.spec.Policy.Strategy.Type,
		Tokens:       in.source,
		PromptTokens: question.PromptTokens,
		Chunks:       question.Chunks,
		view:         v,
		now:          now,
		came:         in.start,
		session:      question.Session,
		route:        r.Route,
		unparsed:     in.unparsed,
		streamed:     r.Stream,
		maxTokens:    r.MaxTokens,
		counted:      in.err == nil && len(r.Prompts) <= 1 && !r.PromptLogprobs && len(in.former) == 0,
		keys:         append([]kvblock.Key(nil), in.keys...),
		chunks:       s.keptChunks(),
		who:          in.who,
		trial:        trial,
		Bytes:        in.size,
		Waited:       in.waited,
		reported:     Reported{Prompt: -1, Cached: -1, Generated: -1},
	}
	d.charge(d.PromptTokens)
	v.charge(now(), &d.who, question.Uncached(&s.candidates[s.order[0]]))
	d.TokensMissing = reasonOf(in.err)
	for _, prompt := range r.Prompts[min(1, len(r.Prompts)):] {
		d.otherTokens += len(prompt.Tokens) + len(prompt.Text)/bytesPerToken
	}
	for _, c := range s.order[:min(len(s.order), max(1, v.spec.Policy.Attempts))] {
		i := s.index[c]
		found := &s.matches[c]
		d.Targets = append(d.Targets, Target{
			Endpoint:    &v.spec.Endpoints[i],
			Found:       *found,
			Doubted:     v.members[i].doubted.Load(),
			Match:       s.candidates[c].Match,
			Confirmed:   min(s.candidates[c].Match.Confirmed(), question.Blocks) * question.BlockTokens,
			Predicted:   question.MatchTokens(&s.candidates[c]),
			InFlight:    s.candidates[c].Load.InFlight,
			Routed:      s.candidates[c].Routed,
			Cost:        s.costs[c],
			member:      v.members[i],
			at:          i,
			uncached:    question.Uncached(&s.candidates[c]),
			rankedAmong: len(s.candidates),
		})
	}
	d.stored = d.Targets[0].member.stored.Load()
	v.stats.count(d)
	d.begin(0)
	d.booking.SetDue(in.due)
	first := &d.Targets[0]
	v.tally.placed(d.PromptTokens, first.Predicted, first.uncached, d.booking.Seconds())
	v.appraise(s, question, s.order[0], now())
	return d
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
	case errors.Is(err, context.DeadlineExceeded):
		return "budget"
	case errors.Is(err, chatprompt.ErrUnsupported), errors.Is(err, ErrUnrenderable):
		return "unsupported"
	}
	return "unavailable"
}

// Target is an endpoint that may serve the request.
type Target struct {
	Endpoint *endpoint.Endpoint
	// Match is the endpoint's match when it was picked, in blocks, as the strategy has seen it; Found is what the index
	// has, which is more for an endpoint that is Doubted (its confirmed blocks count half) and while the pool's matches
	// are not believed.
	Match, Found kvindex.Match
	Doubted      bool
	// Predicted is how many prompt tokens the endpoint should find in its cache; Confirmed is the part of them that
	// the pod itself has announced.
	Predicted, Confirmed int
	// Routed is how many of the decision's Chunks were routed to the endpoint before.
	Routed int
	// InFlight requests at the pick, this one not counted.
	InFlight int
	Cost     policy.Cost

	member      *member
	at          int // in the view's members
	uncached    int
	rankedAmong int
}

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

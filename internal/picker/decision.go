package picker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/routinghistory"
)

// eventGrace is how long speculation outlives the first token, or the end of an answer that ends sooner: the events that
// confirm it are sent in the same engine step, on another connection.
const eventGrace = 500 * time.Millisecond

// Decision is where a request goes, and the account of it from the pick to its end.
//
// The request is counted on Targets[0] from the pick on. Begin moves it to a fallback, FirstToken records that the
// prefill is over, and End, which must be called, takes it off. All methods can be called from any goroutine, in any
// order, more than once.
//
// It has many fields because metrics, the decision log, traces and the index each read a part of this account, and one
// value saves an allocation for each of them in every pick.
type Decision struct {
	// Namespace and Pool name the pool, Model is the name by which the request asks for it; empty without one.
	Namespace, Pool, Model string
	Strategy               policy.Type
	// Tokens is where the prompt's block keys came from, TokensMissing why there are no exact ones.
	Tokens        TokenSource
	TokensMissing string
	// Distrusted: the matches of some endpoints that could be chosen were distrusted (Target.Distrusted).
	Distrusted bool
	// NoCacheRead: the engine looks nothing up in its cache for this request, so that nothing is predicted and the answer
	// is not compared.
	NoCacheRead bool
	// PromptTokens is the prompt's length, estimated where the ids are not known.
	PromptTokens int
	// Chunks of the prompt's text that the strategy has matched; 0 when it matches none.
	Chunks int
	// Duration of the pick, and what of it was waiting for room in the pool.
	Duration, Waited time.Duration
	// Bytes of the request's body, as far as it was seen.
	Bytes int
	// Targets are the chosen endpoint and its ordered fallbacks.
	Targets []Target

	routed  *Route   // nil without a ModelRoute
	routing *Routing // of the request, which goes on when it goes to a fallback; nil without a ModelRoute
	hooked  *hooked  // nil without hooks
	facts   *Facts   // nil where no use is recorded

	view     *view
	now      timeNow
	arrived  time.Time // when the request did
	picked   time.Time // before the index was asked
	route    openai.Route
	unparsed bool
	// generates: though unparsed, its answer is like one of a completion. background: the answer precedes the work.
	generates, background bool
	streamed              bool
	observed              bool   // the gateway routes by itself
	gateway               string // its address; empty without one
	session               uint64 // 0 without one
	// maxTokens is the most to be generated, 0 when the request does not set it.
	maxTokens int
	// answers is how many answers the request asks for: n of each prompt.
	answers int
	invoked string // see InvokedModel
	// beyond: the request is larger than the limit of an endpoint's queue.
	beyond bool
	// counted decisions enter the comparison of predicted and delivered hits.
	counted         bool
	class           class
	rendered        *member // whose engine made the tokens; nil where they were made otherwise
	cacheUnreported bool    // the answer does not report how much of the prompt was cached
	otherTokens     int     // of further prompts that were not matched
	choices         int     // that are generated for each prompt
	kinds           openai.Kinds
	caller          caller
	// dropsPriority: the body has a priority that the engine must not get.
	dropsPriority bool
	salt          string // that the body must get; empty to leave it as it is
	// asksUsage: the body must ask for the usage of the stream. takesUsage: it could, and does not.
	asksUsage, takesUsage bool
	handoff               handoff
	// takesReport: the body can ask for a report of what the engine finds in its cache.
	takesReport bool

	mu             sync.Mutex
	account        *account
	target         int                      // in Targets
	sound          bool                     // it did not fail when the request was sent to it
	sent           time.Time                // to it
	keys           []kvblock.Key            // of the first prompt
	more           [][]kvblock.Key          // of further ones
	chunks         [][]routinghistory.Chunk // by history
	stored         uint64                   // keys that the first target had announced at the pick
	booking        *load.Booking
	assumed        assumption
	moreAssumed    []assumption // of further prompts
	entry          pendingEntry
	ended          bool
	probe          bool // it probes a target whose circuit is half open
	left           bool // ended, with an outcome that is not reported or with speculation that is not confirmed yet
	retried        bool
	servedReported bool // the gateway has said which endpoint serves
	// elsewhere: the gateway has sent the request to an address that is none of the pool's.
	elsewhere bool
	usage     bool
	first     time.Time // the first token of a streamed answer; zero before
	// reported is what the engine has counted, answered how many bytes of its answer's body have passed.
	reported Reported
	found    int // cached prompt tokens, -1 while that is not known
	answered atomic.Int64
	// charged is how many tokens of the answer the tenant was charged for. It is written with mu held.
	charged atomic.Int64
	// seen is about how many tokens of the answer have arrived.
	seen   atomic.Int64
	output Output // written when the decision ends
}

// AnswerBytes is how much of the answer's body has passed so far.
func (d *Decision) AnswerBytes() int64 { return d.answered.Load() }

// Reported is what an engine has counted of a request, in tokens: -1 for counts that are not in its answer.
type Reported struct{ Prompt, Cached, Generated int }

// Reported is what the engine has counted so far.
func (d *Decision) Reported() Reported {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reported
}

// Route is the API operation that the request was read as; false for one that was not read.
func (d *Decision) Route() (openai.Route, bool) { return d.route, !d.unparsed }

// isMirror reports whether the request is a copy for a mirror.
func (d *Decision) isMirror() bool { return d.routing.mirrors() }

// Spec is the pool as it was at the pick.
func (d *Decision) Spec() *Spec { return d.view.spec }

// Begin records that the request is about to be sent to Targets[i]. It is false for a fallback to which no request can go
// any more, because since the pick it drains, is not ready, or its circuit has opened while that of a later fallback has
// not: then the request stays where it is.
func (d *Decision) Begin(i int) bool {
	now := d.view.admission.pin()
	if now != nil {
		defer now.unpin()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended || i == d.target || i >= len(d.Targets) {
		return true
	}
	if now == nil || !now.pickable(d.now(), d.Targets[i].Endpoint.ID) {
		return false
	}
	if !d.mayTry(i) {
		for j := i + 1; j < len(d.Targets); j++ {
			if d.mayTry(j) && now.pickable(d.now(), d.Targets[j].Endpoint.ID) {
				return false
			}
		}
	}
	d.moveTo(i)
	return true
}

// mayTry reports whether the circuit of a target lets a request through.
func (d *Decision) mayTry(i int) bool {
	return d.Targets[i].member.circuit.Closed(d.now(), d.view.spec.Policy.CircuitFailures)
}

// moveTo takes the request to another target. d.mu is held.
func (d *Decision) moveTo(i int) {
	d.retried = true
	if d.loading() {
		d.handoffFailed()
	}
	d.view.stats.retries.Add(1)
	d.leaveTarget(d.now())
	_, d.probe = d.Targets[i].member.circuit.Take(d.now(), d.view.spec.Policy.CircuitFailures)
	d.begin(i)
}

// begin counts the request on a target. d.mu is held, or d is not shared yet.
func (d *Decision) begin(i int) {
	now := d.now()
	d.target, d.sent = i, now
	t := &d.Targets[i]
	d.sound = t.member.circuit.Failures() == 0
	if d.session != 0 && d.handoff.leg != PrefillLeg { // the next turn begins where the answer was generated
		d.view.homes.Put(d.session, t.member.hash, now)
	}
	uncached := t.uncached
	if d.handoff.loaded { // another endpoint continues the answer, without the blocks
		uncached = t.lacking
	}
	d.booking = t.member.load.Book(now, load.WorkOf(uncached+d.otherTokens, d.PromptTokens-uncached), d.reportsPrefill())
	d.booking.SetSequences(d.answers)
	d.view.peers.Changed()
	for i, chunks := range d.chunks {
		h := &d.view.histories[i]
		h.memories[t.at].Record(chunks)
		d.publishRouted(t, h, chunks)
	}
	p := &d.view.spec.Policy
	if p.SpeculationOff || len(d.keys) == 0 && len(d.more) == 0 {
		return
	}
	life := p.SpeculationMax
	if !d.streamed && (d.handoff.leg != PrefillLeg || d.handoff.relayed) && !d.view.spec.NoEvents {
		// The end of the prefill will not be reported. Predicted, with as much again for what the prediction misses.
		life = min(life, 2*t.member.load.Predict(now, load.Work{})+time.Second)
	}
	d.assume(t, now.Add(life))
}

// leaveTarget takes the request off its target. d.mu is held.
func (d *Decision) leaveTarget(now time.Time) {
	d.release(now)
	d.endSpeculation()
}

// release is leaveTarget without the end of the speculation.
func (d *Decision) release(now time.Time) {
	d.booking.Release(now)
	d.view.peers.Changed()
	d.giveUpTrial()
}

// complete takes the request off its target after a complete answer. Blocks that the target has not announced yet stay
// speculative for a little longer: a client can send its next request before the events arrive. d.mu is held.
func (d *Decision) complete(now time.Time) {
	if !d.awaitsEvents() {
		d.leaveTarget(now)
		return
	}
	d.release(now)
	d.left = true
	d.view.pending.shorten(d, now.Add(eventGrace))
}

// awaitsEvents reports whether the target, which has answered, holds the blocks of the request but has not announced all of
// them. d.mu is held.
func (d *Decision) awaitsEvents() bool {
	t := &d.Targets[d.target]
	switch {
	case d.view.spec.NoEvents:
		return false
	case d.class.traits != 0 || d.reported.Prompt >= 0 && d.reported.Prompt != d.PromptTokens:
		return false // the engine's blocks can be other ones
	}
	return len(d.more) > 0 || t.Found.Confirmed() < len(t.member.storable(d.keys))
}

// endPrefill records that the prefill is over: the pod has announced the last full block of the prompt, or (by nil) the
// time is up.
func (d *Decision) endPrefill(now time.Time, announced *lastBlock) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended && !d.left || (announced != nil && *announced != d.entry.block) {
		return
	}
	if announced != nil {
		d.booking.Announced(now)
	} else {
		d.booking.EndPrefill(now)
	}
	d.view.peers.Changed()
	d.endSpeculation()
	if d.handoff.relayed {
		d.relayOver(now, announced != nil)
	}
	d.view.admission.look()
}

// FirstToken records that the first generated token has arrived.
func (d *Decision) FirstToken() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return
	}
	now := d.now()
	d.learnTransfer(now)
	d.timePull(now)
	d.handedOver()
	d.blame()
	if d.streamed && d.first.IsZero() && d.handoff.leg != PrefillLeg && !d.isMirror() {
		d.first = now
		d.view.tally.firstToken(now.Sub(d.arrived))
	}
	d.booking.FirstToken(now)
	d.view.peers.Changed()
	d.account.firstToken(now)
	d.view.admission.look()
	d.succeed()
	if !d.view.spec.NoEvents {
		d.view.pending.shorten(d, now.Add(eventGrace))
	}
}

// Usage takes what the engine has counted: the prompt's tokens, and those of them that it found in its cache, or -1 if the
// answer does not report it. vLLM before 0.24 does not report it when it found none, so -1 means none from an endpoint that
// reports hits but has never reported a hit of 0; from others it has no meaning. Only the first call counts.
func (d *Decision) Usage(promptTokens, cachedTokens int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.usage {
		return
	}
	d.usage = true
	d.reported.Prompt, d.reported.Cached = promptTokens, cachedTokens
	d.checkLength(promptTokens)
	t := &d.Targets[d.target]
	if stats := &t.member.stats; cachedTokens >= 0 {
		stats.reportsCached.Store(true)
		if cachedTokens == 0 {
			stats.reportsNone.Store(true)
		}
	} else if d.cacheUnreported || !stats.reportsCached.Load() || stats.reportsNone.Load() {
		d.countHits(func(h *hits) { h.uncached.Add(1) })
		return
	}
	cachedTokens = max(0, cachedTokens)
	d.found = cachedTokens
	d.account.usage(cachedTokens)
	d.learnPull(cachedTokens)
	if !d.counted || d.retried {
		return
	}
	d.learnFound(t, promptTokens, cachedTokens)
	d.countHits(func(h *hits) { h.add(promptTokens, t.Expected, t.Confirmed, cachedTokens) })
	d.judge(t, cachedTokens)
}

// judge compares what an answer has found with what the endpoint had announced. d.mu is held.
func (d *Decision) judge(t *Target, cachedTokens int) {
	size := d.view.spec.BlockTokens
	announced := min(t.Found.Confirmed(), (d.PromptTokens-1)/size)
	if announced <= 0 || t.Found.Speculative > 0 || t.Doubted || t.member.doubted.Load() || len(d.keys) == 0 {
		return
	}
	s := suspect{
		verdict: verdict{announced: announced * size, found: min(cachedTokens, announced*size), tenant: endpoint.Hash(d.caller.name)},
		picked:  d.picked, member: t.member,
	}
	if missing := s.found / size; missing < announced {
		s.block = d.keys[missing]
	}
	lost, changed, why := t.member.trust.answered(d.now(), d.class, &s)
	if !changed {
		return
	}
	message := "Endpoint found again what it announced: its matches are believed"
	if lost {
		d.view.doubts.losses.Add(1)
		message = "Endpoint did not find what it announced: its matches are ignored until it does"
	}
	d.view.log.Info(message, "pool", d.view.spec.Name, "endpoint", nameOf(t.Endpoint), "tokens", d.class.source.String(),
		"kind", d.class.kind.String(), "traits", d.class.traits.String(), "announcedTokens", why.announced, "foundTokens", why.found)
}

// End takes the request off its endpoint. Only the first call counts.
func (d *Decision) End(outcome Outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return
	}
	d.ended = true
	if outcome == Completed || outcome == Rejected {
		d.succeed()
	}
	if now := d.now(); outcome == Completed {
		d.blame()
		d.complete(now)
		d.claim()
		d.account.missed(d.missed())
		d.checkBlocks(now)
	} else {
		d.leaveTarget(now)
	}
	d.keys, d.more, d.chunks = nil, nil, nil
	d.settle(outcome)
}

// settle returns the tenant's reservation, and records how the request has ended. d.mu is held.
func (d *Decision) settle(outcome Outcome) {
	d.endLeg(outcome)
	d.output = d.measure(d.now(), outcome)
	d.chargeAtEnd(outcome)
	d.caller.pass.Release()
	d.leaveRoute()
	d.view.peers.Changed()
	if !d.isMirror() {
		d.view.stats.outcomes[outcome].Add(1)
	}
	if outcome == Completed && !d.usage {
		d.countHits(func(h *hits) { h.silent.Add(1) })
	}
	d.account.end(d.now(), d.Targets[d.target].Endpoint, d.target, outcome)
	d.account = nil
	d.view.admission.look()
}

// Leave ends the account of a request whose end will not be reported, as with gateways that show no answers, or only their
// headers. It stays counted on its endpoint for its expected duration, and its speculation lasts at most until its prefill
// should be over. outcome is what is known of it: Unreported, or what the headers show.
func (d *Decision) Leave(outcome Outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return
	}
	d.ended, d.left = true, true
	prefill := d.booking.Leave(d.now(), d.maxTokens)
	d.view.pending.shorten(d, d.now().Add(2*prefill+time.Second))
	if outcome == Completed {
		d.succeed()
	}
	d.giveUpTrial()
	d.settle(outcome)
}

// Index is the place in Targets of the endpoint that the request is with now.
func (d *Decision) Index() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.target
}

// Target is the endpoint that the request is with now.
func (d *Decision) Target() *Target {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &d.Targets[d.target]
}

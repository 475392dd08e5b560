package picker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/affinity"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/peer"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// eventGrace is how long speculation outlives the first token: the events that confirm it come with the same engine
// step, on another connection.
const eventGrace = 500 * time.Millisecond

// Outcome is how a request ended.
type Outcome uint8

// The outcomes.
const (
	// Completed: the answer went through to its end.
	Completed Outcome = iota
	// ClientGone: the client left before.
	ClientGone
	// Failed: no endpoint has answered, or the answer broke off.
	Failed
	// Rejected: the engine has answered with an error that is the request's fault.
	Rejected
	// Unreported: nobody tells how the request has ended.
	Unreported
	numOutcomes int = iota
)

// String is the value of the metric label.
func (o Outcome) String() string {
	return [...]string{"completed", "client_gone", "failed", "rejected", "unreported"}[o]
}

// Decision is where a request goes, and the account of it from the pick to its end.
//
// The request is counted on Targets[0] from the pick on. Begin moves it to a fallback, FirstToken tells that the
// prefill is over, and End, which must be called, takes it off. All methods may be called from any goroutine, in any
// order, more than once.
type Decision struct {
	Pool, Model string
	Strategy    policy.Type
	// Tokens is where the prompt's block keys came from, TokensMissing why there are no exact ones.
	Tokens        TokenSource
	TokensMissing string
	// Distrusted: the pool's matches are not believed at present, because its engines do not find what they announce.
	Distrusted bool
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

	view     *view
	now      timeNow
	came     time.Time // when the request did
	picked   time.Time // before the index was asked
	route    openai.Route
	unparsed bool
	streamed bool
	session  uint64 // 0 without one
	// maxTokens is the most to be generated, 0 when the request does not say.
	maxTokens int
	// counted decisions enter the comparison of predicted and delivered hits.
	counted     bool
	otherTokens int // of further prompts, for the load only
	who         who

	mu      sync.Mutex
	account *account
	target  int // in Targets
	keys    []kvblock.Key
	chunks  [][]affinity.Chunk // by history
	stored  uint64             // keys that the first target had announced at the pick
	booking *load.Booking
	guess   *kvindex.Guess
	told    *peer.Assumption // nil when the peers were not told of the guess
	entry   pendingEntry
	ended   bool
	trial   bool // it tries a target whose circuit is half open
	left    bool // ended, and nobody has told how
	retried bool
	usage   bool
	first   bool // the first token has come
	// reported is what the engine has counted, answered how many bytes of its answer's body have passed.
	reported Reported
	answered atomic.Int64
}

// AnswerBytes is how much of the answer's body has passed so far.
func (d *Decision) AnswerBytes() int64 { return d.answered.Load() }

// Reported is what an engine has counted of a request, in tokens: -1 for what its answer has not told.
type Reported struct{ Prompt, Cached, Generated int }

// Reported is what the engine has counted so far.
func (d *Decision) Reported() Reported {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reported
}

// Route is the API operation that the request was read as; false for one that was not read.
func (d *Decision) Route() (openai.Route, bool) { return d.route, !d.unparsed }

// Spec is the pool as it was at the pick.
func (d *Decision) Spec() *Spec { return d.view.spec }

// Begin tells that the request is about to be sent to Targets[i]. It is false for a fallback to which no request may go
// any more, because since the pick it drains, is not ready, or its circuit has opened while that of a later fallback has
// not: then the request stays where it is.
func (d *Decision) Begin(i int) bool {
	now := d.view.gate.present()
	if now != nil {
		defer now.done()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended || i == d.target || i >= len(d.Targets) {
		return true
	}
	if now == nil || !now.pickable(d.Targets[i].Endpoint.ID) {
		return false
	}
	if !d.mayTry(i) {
		for j := i + 1; j < len(d.Targets); j++ {
			if d.mayTry(j) && now.pickable(d.Targets[j].Endpoint.ID) {
				return false
			}
		}
	}
	d.moveTo(i)
	return true
}

// mayTry tells whether the circuit of a target lets a request through.
func (d *Decision) mayTry(i int) bool {
	return d.Targets[i].member.circuit.closed(d.now(), d.view.spec.Policy.CircuitFailures)
}

// moveTo takes the request to another target. d.mu is held.
func (d *Decision) moveTo(i int) {
	d.retried = true
	d.view.stats.retries.Add(1)
	d.leaveTarget(d.now())
	_, d.trial = d.Targets[i].member.circuit.take(d.now(), d.view.spec.Policy.CircuitFailures)
	d.begin(i)
}

// begin counts the request on a target. d.mu is held, or d is not shared yet.
func (d *Decision) begin(i int) {
	now := d.now()
	d.target = i
	t := &d.Targets[i]
	if d.session != 0 {
		d.view.homes.Put(d.session, t.member.hash, now)
	}
	d.booking = t.member.load.Book(now, load.WorkOf(t.uncached+d.otherTokens, d.PromptTokens-t.uncached), d.streamed)
	d.view.peers.Changed()
	for h, chunks := range d.chunks {
		d.view.histories[h].memories[t.at].Record(chunks)
	}
	p := &d.view.spec.Policy
	if p.SpeculationOff || len(d.keys) == 0 {
		return
	}
	d.guess = d.view.index.Speculate(t.member.holder, d.keys)
	life := p.SpeculationMax
	if !d.streamed && !d.view.spec.NoEvents {
		// Nobody will tell when the prefill ends. Predicted, with as much again for what the prediction misses.
		life = min(life, 2*t.member.load.Predict(now, load.Work{})+time.Second)
	}
	d.view.pending.add(d, now.Add(life))
	d.tellPeers(now.Add(life))
}

// leaveTarget takes the request off its target. d.mu is held.
func (d *Decision) leaveTarget(now time.Time) {
	d.booking.Release(now)
	d.view.peers.Changed()
	d.endSpeculation()
	d.giveUpTrial()
}

// giveUpTrial lets another request try the target, if this one did and there is no verdict. d.mu is held.
func (d *Decision) giveUpTrial() {
	if d.trial {
		d.trial = false
		d.Targets[d.target].member.circuit.giveUp()
	}
}

// endSpeculation takes back what was assumed. d.mu is held.
func (d *Decision) endSpeculation() {
	d.view.pending.remove(d)
	d.guess.Withdraw()
	d.view.peers.Withdraw(d.told)
	d.told = nil
}

// endPrefill tells that the prefill is over: the pod has announced the last full block of the prompt, or (by nil) the
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
	d.view.gate.look()
}

// FirstToken tells that the first generated token has come.
func (d *Decision) FirstToken() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return
	}
	now := d.now()
	if d.streamed && !d.first {
		d.first = true
		d.view.tally.firstToken(now.Sub(d.came))
	}
	d.booking.FirstToken(now)
	d.view.peers.Changed()
	d.account.firstToken(now)
	d.view.gate.look()
	d.trial = false
	d.Targets[d.target].member.circuit.succeed()
	if !d.view.spec.NoEvents {
		d.view.pending.shorten(d, now.Add(eventGrace))
	}
}

// Fail tells that the present target has not answered, or with a server error: its circuit counts it.
func (d *Decision) Fail() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return
	}
	p := &d.view.spec.Policy
	d.trial = false
	m := d.Targets[d.target].member
	m.circuit.fail(d.now(), p.CircuitFailures, p.CircuitOpen)
	m.stats.failures.Add(1)
}

// Usage tells what the engine has counted: the prompt's tokens, and those of them that it found in its cache, or -1
// if the answer does not say. vLLM does not say when it found none, so from an endpoint that has said it before, -1
// means none; from others it means nothing. Only the first call counts.
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
	if cachedTokens >= 0 {
		t.member.stats.tellsCached.Store(true)
	} else if !t.member.stats.tellsCached.Load() {
		return
	}
	cachedTokens = max(0, cachedTokens)
	d.account.usage(cachedTokens)
	if !d.counted || d.retried {
		return
	}
	d.view.stats.delivered.add(promptTokens, t.Predicted, t.Confirmed, cachedTokens)
	t.member.stats.delivered.add(promptTokens, t.Predicted, t.Confirmed, cachedTokens)
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
		verdict: verdict{announced: announced * size, found: min(cachedTokens, announced*size)},
		picked:  d.picked, member: t.member,
	}
	if missing := s.found / size; missing < announced {
		s.block = d.keys[missing]
	}
	changed, why := d.view.trust.answered(d.now(), s)
	if !changed {
		return
	}
	message := "The engines find again what they announce: matches are believed"
	if d.view.trust.lost.Load() {
		message = "The engines do not find what they announce: matches are not believed until they do"
	}
	d.view.log.Info(message, "pool", d.view.spec.Name, "announcedTokens", why.announced, "foundTokens", why.found)
}

// Generated tells how many tokens the answer has: they count against the tenant's rate. It is to be called once.
func (d *Decision) Generated(tokens int) {
	d.charge(tokens)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reported.Generated = tokens
	d.account.generated(tokens)
}

// charge counts tokens for the tenant.
func (d *Decision) charge(tokens int) {
	if d.who.pass == nil {
		return
	}
	d.who.pass.Charge(d.now(), tokens)
	d.view.peers.Changed()
	d.view.tenants.add(d.who.label, 0, int64(tokens))
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
		d.trial = false
		d.Targets[d.target].member.circuit.succeed()
	}
	d.leaveTarget(d.now())
	if outcome == Completed {
		d.checkBlocks(d.now())
	}
	d.keys, d.chunks = nil, nil
	d.settle(outcome)
}

// settle gives back what the tenant has taken, and tells how the request has ended. d.mu is held.
func (d *Decision) settle(outcome Outcome) {
	d.who.pass.Release()
	d.view.peers.Changed()
	d.view.stats.outcomes[outcome].Add(1)
	d.account.end(d.now(), d.Targets[d.target].Endpoint, d.target, outcome)
	d.account = nil
	d.view.gate.look()
}

// Unreported ends the account of a request of which nobody will tell any more, as with gateways that show requests but
// no answers. It stays counted on its endpoint for as long as it should take, and its speculation lasts at most until
// its prefill should be over.
func (d *Decision) Unreported() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return
	}
	d.ended, d.left = true, true
	prefill := d.booking.Leave(d.now(), d.maxTokens)
	d.view.pending.shorten(d, d.now().Add(2*prefill+time.Second))
	d.giveUpTrial()
	d.settle(Unreported)
}

// Served tells the address of the endpoint that has answered, where a gateway says so: the request moves there if it is
// not the one that was thought. An address that is none of the pool's is ignored.
func (d *Decision) Served(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended || d.Targets[d.target].Endpoint.Address == address {
		return
	}
	to := -1
	for i := range d.Targets {
		if d.Targets[i].Endpoint.Address == address {
			to = i
			break
		}
	}
	for i, m := range d.view.members {
		if ep := &d.view.spec.Endpoints[i]; to < 0 && ep.Address == address {
			to = len(d.Targets)
			d.Targets = append(d.Targets, Target{Endpoint: ep, member: m, at: i, uncached: d.PromptTokens})
		}
	}
	if to < 0 {
		return
	}
	d.moveTo(to)
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

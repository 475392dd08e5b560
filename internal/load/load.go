// Package load counts the work of each endpoint: requests in flight, prompt tokens still to prefill, requests decoding. It
// also learns how fast each endpoint prefills.
//
// Everything is counted at the pick, before the request has left the picker, and released exactly once however the request
// ends. Other pickers' counters are added as they report them (Peer, Share). Time is passed in.
package load

import (
	"slices"
	"sync"
	"time"
)

// metricsFresh is how long the engine's own figures are used.
const metricsFresh = 2 * time.Second

// View is an endpoint's load at one moment: what this picker has given it, and what its peers have.
//
// It has many fields because strategies and admission read one consistent copy of all that is learned.
type View struct {
	// InFlight requests, all of them. The engine has made so many Sequences of them; those of peers count as one each.
	InFlight, Sequences int
	// Decoding is the number of requests whose prefill has ended.
	Decoding int
	// PendingTokens and PendingPairs are the work that still has to be prefilled, after what the engine should have
	// done of it meanwhile. Older peers count pairs among the tokens, by what they cost.
	PendingTokens, PendingPairs float64
	// Overdue is by how much, in seconds, the first of the pending prefills takes longer than predicted: it might wait for
	// KV blocks, or for a place among those that decode.
	Overdue float64
	// Due is how long it is until the first token of one of the pending prefills is due, the earliest that is not late yet;
	// 0 if none has a deadline.
	Due time.Duration
	// Lead is by what factor the engine is faster than is assumed while nothing is learned, as its reports show; at
	// least 1. Idle: it reports that it has nothing to do, and nothing was sent there since.
	Lead float64
	Idle bool
	// Stuck is how long ago the endpoint has made progress last: it has sent a first token, or ended an answer, to this picker
	// or to a peer. Prefills that begin when there were none count from then. It is 0 while nothing is in flight.
	Stuck time.Duration
	// Stalled: the endpoint has accepted requests and shows no progress with anything, for longer than they explain.
	Stalled bool
	// PendingContext is the prompts that are still to be prefilled, in tokens including their cached ones, except for those
	// that older peers have sent.
	PendingContext float64
	// Peers is the part of InFlight, Decoding and PendingTokens that other pickers have reported.
	Peers PeerView
	// Utilisation is the share of recent time that the prefills sent by this picker take: above 1 more work arrives than
	// the engine can do.
	Utilisation float64
	// Queue is the mean number of this picker's requests that were prefilled or waited for it, recently.
	Queue float64
	// DecodingTokens is the context of the requests that decode: their prompts, in tokens.
	DecodingTokens float64
	// Prefilling is the number of this picker's requests whose prefill has not ended.
	Prefilling int
	// Rate is the learned prefill rate of short prompts in tokens/s, 0 until one is learned.
	Rate float64
	// PairSeconds is what attention takes on top, seconds for each pair of tokens (see Work).
	PairSeconds float64
	// Overhead is the learned fixed time to a first token, seconds; ContextSeconds is what it takes longer for each of
	// DecodingTokens.
	Overhead, ContextSeconds float64
	// Trust is how reliable Rate, PairSeconds and Overhead are, 0 to 1: it fades while the endpoint serves no request from
	// which they can be learned.
	Trust float64
	// Prompted is the prompt tokens that this picker has sent recently, and Computed those of them that were in no cache.
	Prompted, Computed float64
	// KVUsage is the engine's report of KV blocks in use, 0 to 1; 0 when there is no fresh report.
	KVUsage float64
	// KVTokens is the engine's KV capacity in tokens, 0 when it is not known.
	KVTokens int
	// Waiting is the engine's report of its waiting queue; 0 when there is no fresh report.
	Waiting int
	// Rejections is the engine's last count of the requests that it has refused by a limit of its queue.
	Rejections float64
	// Slots is how many requests the engine runs at a time, as its reports have let it seem; 0 when it is not known.
	Slots int
	// MaxAdapters is how many LoRA adapters the engine runs at once, and Adapters those that it runs or has requests
	// waiting for, with commas between them; none when there is no fresh report.
	MaxAdapters int
	Adapters    string
}

// PeerView is what other pickers have given an endpoint.
type PeerView struct {
	InFlight, Decoding int
	PendingTokens      float64

	// DecodingTokens are the prompts of those that decode, in tokens, except for OfUnknownContext of them.
	DecodingTokens   float64
	OfUnknownContext int
}

// Report is what an engine reports about itself.
type Report struct {
	Running, Waiting int
	KVUsage          float64
	KVTokens         int
	// BlockTokens is the size of the engine's blocks in tokens, 0 when it is not known.
	BlockTokens int
	// Blocks is the number of physical blocks of the engine's GPU tier, 0 when it is not known.
	Blocks int
	// Speculates says that the engine decodes speculatively.
	Speculates  bool
	MaxAdapters int
	Adapters    string
	Rejections  float64 // by a limit of its queue, since it started
	Generated   float64 // tokens, since it started
	// CountsGenerated says that the engine has reported Generated.
	CountsGenerated bool
}

// Tracker counts the load of one endpoint. It is safe for concurrent use.
type Tracker struct {
	mu sync.Mutex
	// prefilling lists the bookings whose prefill has not ended, oldest first: engines prefill in order of arrival.
	prefilling []*Booking
	dues       int  // of them, that have to be over by a time
	pending    Work // theirs, of those that sample has not counted
	arrivals   arrivals
	reuse      reuse
	queue      standing // mean number of prefilling
	decoding   float64  // context of those whose prefill has ended
	inFlight   int
	more       int      // sequences of those in flight, besides one for each
	left       bookings // whose end will not be reported
	// lastEnd is when the last prefill ended, and progressed when the endpoint made progress, or had its first prefill.
	lastEnd, progressed time.Time
	version             uint64 // counts the changes of all that
	peers               []peerShare
	// peersEnd is when a prefill of any peer ended last.
	peersEnd time.Time
	// sample is the latest one, which grows while prefills end together; skipped is work that ended without teaching.
	sample   sample
	skipped  Work
	rate     estimator
	report   Report
	reported time.Time
	// idled is when the engine reported last that requests waited though it prefilled nothing.
	idled time.Time
	slots slots
	stall stall
	lead  float64 // 0 while no report has shown any
}

// sample is work that an engine has done from a time to another.
type sample struct {
	work     Work
	decoding float64 // tokens of context meanwhile
	from, to time.Time
	// waited is how long the first of the work had been there when it began.
	waited  time.Duration
	starved bool
}

// together is how near ends of prefills are that belong to one step of an engine. Steps take longer.
const together = 3 * time.Millisecond

// Book counts a request with the work of its prefill. Only requests with streamed answers train the rate; for the
// others the end of the prefill is predicted.
func (t *Tracker) Book(now time.Time, work Work, streamed bool) *Booking {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	ahead, _, _ := t.pendingNow(now)
	b := &Booking{tracker: t, work: work, ahead: ahead, start: now, streamed: streamed}
	if !streamed {
		b.expected = now.Add(b.predicted())
	}
	if len(t.prefilling) == 0 && !t.peersPrefill(now) {
		t.progressed = now // there was no first token to come: long answers alone are no lack of progress
	}
	t.prefilling = append(t.prefilling, b)
	t.pending = t.pending.plus(work)
	if !t.working() {
		t.stall.begin(now)
	}
	t.inFlight++
	t.queue.set(now, len(t.prefilling))
	b.seconds = t.rate.speed().Seconds(work)
	t.arrivals.add(now, b.seconds)
	t.reuse.add(now, work)
	t.version++
	return b
}

// due is how long it is until the first token of a pending prefill is due, ignoring those that are late already.
func (t *Tracker) due(now time.Time) (first time.Duration) {
	if t.dues == 0 {
		return 0
	}
	for _, b := range t.prefilling {
		if left := b.due.Sub(now); !b.due.IsZero() && left > 0 && (first == 0 || left < first) {
			first = left
		}
	}
	return first
}

// predict how long work should take.
func (t *Tracker) predict(work Work) time.Duration {
	speed := t.rate.speed()
	return duration(speed.Overhead + speed.PerContext*t.decoding*Steps(work.Tokens) + speed.Seconds(work))
}

// usualContext is the assumed length of a decoding prompt of unknown length, in tokens.
const usualContext = 2000

// decodingWith is the context that is decoded, with the requests of peers: prompts of unknown length are assumed to be as long as this
// picker's.
func (t *Tracker) decodingWith(peers *PeerView) float64 {
	mean := float64(usualContext)
	if n := t.inFlight - len(t.prefilling); n > 0 {
		mean = t.decoding / float64(n)
	}
	return t.decoding + peers.DecodingTokens + mean*float64(peers.OfUnknownContext)
}

// starving is the KV use above which prefills might have waited for blocks, which teaches nothing of the engine's speed.
const starving = 0.85

// starved reports whether the latest sample has time in it in which prefills waited for KV blocks or for a place among the
// requests that run.
func (t *Tracker) starved(now time.Time) bool {
	return t.report.KVUsage > starving && now.Sub(t.reported) <= metricsFresh || t.idled.After(t.sample.from)
}

// learn from the latest sample, once it is complete.
func (t *Tracker) learn() {
	s := &t.sample
	if s.work.Tokens > 0 && !s.starved {
		t.rate.learn(s.to, s.work, s.decoding, s.to.Sub(s.from).Seconds(), s.waited.Seconds())
	}
	s.work = Work{}
}

// release takes a request off whose prefill has ended.
func (t *Tracker) release(b *Booking) {
	b.released = true
	t.decoding -= b.work.Context
	t.inFlight--
	t.more -= b.more
	t.version++
}

// Observe takes the engine's report of itself.
func (t *Tracker) Observe(at time.Time, r Report) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at.Before(t.reported) {
		return
	}
	t.reportMoves(at, &r)
	t.report, t.reported = r, at
	if decoding := t.inFlight - len(t.prefilling) + t.peerView(at).Decoding; r.Waiting > 0 && r.Running <= decoding {
		t.idled = at
	}
	pending, _, _ := t.pendingNow(at)
	t.slots.observe(at, &r, pending.Tokens)
	t.follow(at, &r)
	t.settle(at)
}

// Reported returns how many requests ran or waited by the engine's last report, of all that send it requests, and when it
// came; the zero time when there was none.
func (t *Tracker) Reported() (busy int, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.report.Running + t.report.Waiting, t.reported
}

// View is the load now.
func (t *Tracker) View(now time.Time) (v View) {
	t.Read(now, &v)
	return v
}

// Read sets v to the load now. It is View without a copy, for callers that read many endpoints.
func (t *Tracker) Read(now time.Time, v *View) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	if now.Sub(t.sample.to) > together {
		t.learn()
	}
	all, own, overdue := t.pendingNow(now)
	decoding := t.inFlight - len(t.prefilling)
	*v = View{} // field by field: a literal would be built elsewhere and copied
	v.PendingTokens, v.PendingPairs, v.PendingContext = all.Tokens, all.Pairs, all.Context
	v.Overdue, v.Due = overdue, t.due(now)
	v.Utilisation, v.Queue, v.Prefilling = t.arrivals.rate(now), t.queue.at(now), len(t.prefilling)
	v.Prompted, v.Computed = t.reuse.prompted, t.reuse.computed
	v.Rejections = t.report.Rejections
	v.KVTokens, v.Peers = t.report.KVTokens, t.peerView(now)
	v.InFlight = t.inFlight + v.Peers.InFlight
	v.Sequences = v.InFlight + t.more
	v.Slots = t.slots.now(now)
	v.Decoding = decoding + v.Peers.Decoding
	v.Peers.PendingTokens = all.Tokens - own.Tokens
	v.DecodingTokens = t.decodingWith(&v.Peers)
	if speed, trust := t.rate.learned(now); speed.PerToken > 0 {
		v.Rate, v.PairSeconds, v.Trust = 1/speed.PerToken, speed.PerPair, trust
		v.Overhead, v.ContextSeconds = speed.Overhead, speed.PerContext
	}
	v.Lead, v.Idle = max(1, t.lead), t.idleNow(now)
	if v.InFlight > 0 {
		v.Stuck = max(0, min(now.Sub(t.progressed), now.Sub(t.peersEnd)))
	}
	v.Stalled = t.stalled(now)
	if now.Sub(t.reported) <= metricsFresh {
		v.KVUsage, v.Waiting = t.report.KVUsage, t.report.Waiting
		v.MaxAdapters, v.Adapters = t.report.MaxAdapters, t.report.Adapters
	}
}

// Predict is the expected time to first token of a request with so much work, booked now.
func (t *Tracker) Predict(now time.Time, work Work) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	ahead, _, _ := t.pendingNow(now)
	return t.predict(ahead.plus(work))
}

// PredictIdle is Predict for an endpoint at which no prefill is ahead of the request.
func (t *Tracker) PredictIdle(work Work) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.predict(work)
}

func (t *Tracker) endPrefill(b *Booking, now time.Time) {
	if b.done {
		return
	}
	b.done = true
	t.decoding += b.work.Context
	if i := slices.Index(t.prefilling, b); i >= 0 {
		t.prefilling = slices.Delete(t.prefilling, i, i+1)
		t.queue.set(now, len(t.prefilling))
	}
	if !b.due.IsZero() {
		t.dues--
	}
	if !b.taught {
		t.pending = t.pending.minus(b.work)
		t.skipped = t.skipped.plus(b.work)
	}
	t.lastEnd = now
	t.version++
	if len(t.prefilling) == 0 {
		t.pending, t.skipped = Work{}, Work{} // without what rounding has left; an idle engine owes nothing
	}
}

// expire ends the prefills that will not be reported and whose expected end has passed.
func (t *Tracker) expire(now time.Time) {
	for i := 0; i < len(t.prefilling); {
		if b := t.prefilling[i]; !b.expected.IsZero() && now.After(b.expected) {
			t.endPrefill(b, now)
			continue
		}
		i++
	}
	t.endLeft(now)
}

// pendingNow is the pending work of this picker and its peers less what the engine has done of the first prefill since
// it began. own is this picker's part of it. overdue is how many seconds that prefill takes longer than predicted.
func (t *Tracker) pendingNow(now time.Time) (all, own Work, overdue float64) {
	own = t.pending
	all = own
	start, work, ours := t.first()
	if len(t.peers) > 0 {
		start, work, ours = t.firstWithPeers(now, start, work, ours, &all)
	}
	speed := &t.rate.claimed
	seconds := speed.Seconds(work)
	if !(seconds > 0) { // nothing pending, or no known rate
		return all, own, 0
	}
	since := start
	if t.lastEnd.After(since) {
		since = t.lastEnd
	}
	if t.peersEnd.After(since) {
		since = t.peersEnd
	}
	elapsed := float64(now.Sub(since)) / float64(time.Second)
	done := work.times(max(0, min(1, elapsed/seconds)))
	if ours {
		own = own.minus(done)
	}
	return all.minus(done), own, max(0, elapsed-seconds-speed.Overhead-speed.PerContext*t.decoding)
}

// first is the prefill that the engine is at, among those that this picker has sent: that of the oldest request. start and
// work are separate results and not a struct, so that they stay in registers: each look at an endpoint calls this function.
func (t *Tracker) first() (start time.Time, work Work, ok bool) {
	for _, b := range t.prefilling {
		if !b.taught {
			return b.start, b.work, true
		}
	}
	return time.Time{}, Work{}, false
}

// firstWithPeers is like first, but includes the prefills of peers, whose pending tokens are added to all. ours reports
// whether the result is still this picker's.
func (t *Tracker) firstWithPeers(now, start time.Time, work Work, ours bool, all *Work) (time.Time, Work, bool) {
	known := ours
	for i := range t.peers {
		s := &t.peers[i]
		if !s.peer.Fresh(now) {
			continue
		}
		pending, head := s.work()
		*all = all.plus(pending)
		if pending.Tokens > 0 && (!known || s.HeadStart.Before(start)) {
			start, work, known, ours = s.HeadStart, head, true, false
		}
	}
	return start, work, ours
}

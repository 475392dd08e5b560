// Package load counts what each endpoint has to do: requests in flight, prompt tokens still to prefill, requests
// decoding; and learns how fast it prefills.
//
// Everything is counted at the pick, before the request has left the picker, and released exactly once however the
// request ends. Other pickers' counters are added as they tell them (Peer, Share). Time is passed in.
package load

import (
	"slices"
	"sync"
	"time"
)

// metricsFresh is how long the engine's own figures are believed.
const metricsFresh = 2 * time.Second

// View is an endpoint's load at one moment: what this picker has given it, and what its peers have.
type View struct {
	// InFlight requests, all of them.
	InFlight int
	// Decoding is the number of requests whose prefill has ended.
	Decoding int
	// PendingTokens and PendingPairs are the work that still has to be prefilled, after what the engine should have
	// done of it meanwhile. The pairs of what peers have sent are among the tokens, by what they cost.
	PendingTokens, PendingPairs float64
	// Overdue is by how much, in seconds, the first of the pending prefills takes longer than predicted: it may wait for
	// KV blocks, or for a place among those that decode.
	Overdue float64
	// Due is how long it is until the first token of one of the pending prefills has to come, the earliest that is still
	// to come; 0 where nobody has said.
	Due time.Duration
	// PendingContext is the prompts that are still to be prefilled, in tokens with what is cached of them, but for those
	// that peers have sent.
	PendingContext float64
	// Peers is the part of InFlight, Decoding and PendingTokens that other pickers have told of.
	Peers PeerView
	// Utilisation is the part of the time that the prefills take that this picker sends, of late: above 1 more comes
	// than the engine can do.
	Utilisation float64
	// Queue is the mean number of this picker's requests that were prefilled or waited for it, of late.
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
	// Trust is how far Rate, PairSeconds and Overhead are to be believed, 0 to 1: it fades while the endpoint serves
	// nothing that could teach.
	Trust float64
	// Prompted is the prompt tokens that this picker has sent of late, and Computed those of them that were in no cache.
	Prompted, Computed float64
	// KVUsage is the engine's report of KV blocks in use, 0 to 1; 0 when there is no fresh report.
	KVUsage float64
	// KVTokens is the engine's KV capacity in tokens, 0 when it is not known.
	KVTokens int
	// Waiting is the engine's report of its waiting queue; 0 when there is no fresh report.
	Waiting int
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
}

// Report is what an engine says of itself.
type Report struct {
	Running, Waiting int
	KVUsage          float64
	KVTokens         int
	MaxAdapters      int
	Adapters         string
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
	left       bookings // of which nobody tells the end
	// lastEnd is when the last prefill ended.
	lastEnd time.Time
	version uint64 // counts the changes of all that
	peers   []peerShare
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

// Booking is one request's share of an endpoint's load.
type Booking struct {
	tracker *Tracker
	// work of the prefill; ahead is what was pending before it, that of peers included.
	work, ahead Work
	seconds     float64 // that the work should take by itself
	start       time.Time
	// expected is when the prefill should be over, for requests that do not tell (not streamed).
	expected time.Time
	streamed bool
	due      time.Time // when the first token has to come; zero if nobody has said
	ends     time.Time // of a booking that was left: when it should be over
	taught   bool      // its work is in a sample
	done     bool      // prefill has ended
	released bool
}

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
	t.prefilling = append(t.prefilling, b)
	t.pending = t.pending.plus(work)
	t.inFlight++
	t.queue.set(now, len(t.prefilling))
	b.seconds = t.rate.speed().Seconds(work)
	t.arrivals.add(now, b.seconds)
	t.reuse.add(now, work)
	t.version++
	return b
}

// Seconds that the engine should need for the prefill by itself, as was known at the booking.
func (b *Booking) Seconds() float64 { return b.seconds }

// SetDue says when the first token has to come; the zero time says nothing.
func (b *Booking) SetDue(due time.Time) {
	if due.IsZero() {
		return // nearly all requests: they need not wait for the lock
	}
	t := b.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.done {
		return
	}
	if b.due.IsZero() {
		t.dues++
	}
	b.due = due
}

// due is how long it is until the first token of a pending prefill has to come, those that are late already aside.
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

// predicted is how long the prefill should take from the booking on.
func (b *Booking) predicted() time.Duration { return b.tracker.predict(b.ahead.plus(b.work)) }

// predict how long work should take.
func (t *Tracker) predict(work Work) time.Duration {
	speed := t.rate.speed()
	return duration(speed.Overhead + speed.PerContext*t.decoding*Steps(work.Tokens) + speed.Seconds(work))
}

// usualContext is the length of a prompt that decodes of which nothing is known, in tokens.
const usualContext = 2000

// decodingWith is the context that is decoded, with so many requests of peers: their prompts are taken to be as long as
// ours.
func (t *Tracker) decodingWith(peers int) float64 {
	mean := float64(usualContext)
	if n := t.inFlight - len(t.prefilling); n > 0 {
		mean = t.decoding / float64(n)
	}
	return t.decoding + mean*float64(peers)
}

// FirstToken tells that the request's first token has come back: its prefill has ended, and the time since the end of
// the prefill before it is a sample of the endpoint's speed.
func (b *Booking) FirstToken(now time.Time) { b.prefilled(now) }

// Announced tells that the endpoint has announced the last block of the prompt, which comes with the same step of the
// engine as the first token.
func (b *Booking) Announced(now time.Time) { b.prefilled(now) }

func (b *Booking) prefilled(now time.Time) {
	t := b.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.done || b.released {
		return
	}
	if b.streamed && b.expected.IsZero() {
		t.teach(b, now)
	}
	t.endPrefill(b, now)
}

// teach adds the end of a prefill to the latest sample, or learns that and begins the next. Engines prefill in order of
// arrival, so that everything before b is done as well. What has ended without teaching is counted here too.
func (t *Tracker) teach(b *Booking, now time.Time) {
	work, first := t.skipped, b
	t.skipped = Work{}
	for _, other := range t.prefilling {
		if !other.taught {
			if first == b && other.start.Before(b.start) {
				first = other
			}
			work = work.plus(other.work)
			t.pending = t.pending.minus(other.work)
			other.taught = true
		}
		if other == b {
			break
		}
	}
	if t.sample.to.IsZero() || now.Sub(t.sample.to) > together {
		t.learn()
		t.sample = sample{from: t.sample.to, decoding: t.decoding}
		for _, since := range []time.Time{first.start, t.peersEnd} {
			if t.sample.from.Before(since) && since.Before(now) {
				t.sample.from = since
			}
		}
	}
	t.sample.work, t.sample.to = t.sample.work.plus(work), now
	t.sample.starved = t.sample.starved || t.starved(now)
	t.sample.waited = max(t.sample.waited, t.sample.from.Sub(first.start))
}

// starving is the KV use above which prefills may have waited for blocks, which teaches nothing of the engine's speed.
const starving = 0.85

// starved tells whether the latest sample has time in it in which prefills waited for KV blocks or for a place among the
// requests that run.
func (t *Tracker) starved(now time.Time) bool {
	return t.report.KVUsage > starving && now.Sub(t.reported) <= metricsFresh || t.idled.After(t.sample.from)
}

// learn the latest sample, once it is whole.
func (t *Tracker) learn() {
	s := &t.sample
	if s.work.Tokens > 0 && !s.starved {
		t.rate.learn(s.to, s.work, s.decoding, s.to.Sub(s.from).Seconds(), s.waited.Seconds())
	}
	s.work = Work{}
}

// EndPrefill tells that the prefill has ended without a time to learn from.
func (b *Booking) EndPrefill(now time.Time) {
	t := b.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endPrefill(b, now)
}

// Release takes the request off the endpoint, whatever became of it. Only the first call counts; calls on nil do
// nothing.
func (b *Booking) Release(now time.Time) {
	if b == nil {
		return
	}
	t := b.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.released {
		return
	}
	t.endPrefill(b, now)
	t.release(b)
}

// release takes a request off whose prefill has ended.
func (t *Tracker) release(b *Booking) {
	b.released = true
	t.decoding -= b.work.Context
	t.inFlight--
	t.version++
}

// Observe takes the engine's report of itself.
func (t *Tracker) Observe(at time.Time, r Report) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at.Before(t.reported) {
		return
	}
	t.report, t.reported = r, at
	if decoding := t.inFlight - len(t.prefilling) + t.peerView(at).Decoding; r.Waiting > 0 && r.Running <= decoding {
		t.idled = at
	}
	pending, _, _ := t.pendingNow(at)
	t.slots.observe(at, &r, pending.Tokens)
	t.settle(at)
}

// View is the load now.
func (t *Tracker) View(now time.Time) (v View) {
	t.Read(now, &v)
	return v
}

// Read sets v to the load now. It is View without a copy, for those who look at many endpoints.
func (t *Tracker) Read(now time.Time, v *View) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	if now.Sub(t.sample.to) > together {
		t.learn()
	}
	all, own, overdue := t.pendingNow(now)
	decoding := t.inFlight - len(t.prefilling)
	*v = View{} // and then what there is, one by one: a literal would be made elsewhere and copied
	v.PendingTokens, v.PendingPairs, v.PendingContext = all.Tokens, all.Pairs, all.Context
	v.Overdue, v.Due = overdue, t.due(now)
	v.Utilisation, v.Queue, v.Prefilling = t.arrivals.rate(now), t.queue.at(now), len(t.prefilling)
	v.Prompted, v.Computed = t.reuse.prompted, t.reuse.computed
	v.KVTokens, v.Peers = t.report.KVTokens, t.peerView(now)
	v.InFlight = t.inFlight + v.Peers.InFlight
	v.Slots = t.slots.now(now)
	v.Decoding = decoding + v.Peers.Decoding
	v.Peers.PendingTokens = all.Tokens - own.Tokens
	v.DecodingTokens = t.decodingWith(v.Peers.Decoding)
	if speed, trust := t.rate.learned(now); speed.PerToken > 0 {
		v.Rate, v.PairSeconds, v.Trust = 1/speed.PerToken, speed.PerPair, trust
		v.Overhead, v.ContextSeconds = speed.Overhead, speed.PerContext
	}
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

// expire ends the prefills that nobody will report and that should be over.
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
	if !(seconds > 0) { // nothing pending, or nobody knows how fast it goes
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

// first is the prefill that the engine is at, of those that this picker has sent: that of the request which came first.
// Neither start nor work is in memory, as they would be in a struct: each look at an endpoint asks for them.
func (t *Tracker) first() (start time.Time, work Work, ok bool) {
	for _, b := range t.prefilling {
		if !b.taught {
			return b.start, b.work, true
		}
	}
	return time.Time{}, Work{}, false
}

// firstWithPeers is first of those of peers too, whose pending tokens are added to all. ours tells whether it is still
// this picker's.
func (t *Tracker) firstWithPeers(now, start time.Time, work Work, ours bool, all *Work) (time.Time, Work, bool) {
	known := ours
	for i := range t.peers {
		s := &t.peers[i]
		if !s.peer.Fresh(now) {
			continue
		}
		all.Tokens += float64(s.PendingTokens)
		if s.PendingTokens > 0 && (!known || s.HeadStart.Before(start)) {
			start, work, known, ours = s.HeadStart, Work{Tokens: float64(s.HeadTokens)}, true, false
		}
	}
	return start, work, ours
}

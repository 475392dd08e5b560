// Package load counts what each endpoint has to do: requests in flight, prompt tokens still to prefill, requests
// decoding; and learns how fast it prefills.
//
// Everything is counted at the pick, before the request has left the picker, and released exactly once however the
// request ends. Other pickers' counters are added as they tell them (Peer, Share). Time is passed in.
package load

import (
	"math"
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
	// PendingTokens is the uncached prompt tokens that still have to be prefilled, after what the learned rate says
	// was done meanwhile.
	PendingTokens float64
	// Peers is the part of InFlight, Decoding and PendingTokens that other pickers have told of.
	Peers PeerView
	// Rate is the learned prefill rate in tokens/s, 0 until one is learned.
	Rate float64
	// Overhead is the learned fixed time to a first token, seconds.
	Overhead float64
	// Trust is how far Rate and Overhead are to be believed, 0 to 1: it fades while the endpoint serves nothing that
	// could teach.
	Trust float64
	// KVUsage is the engine's report of KV blocks in use, 0 to 1; 0 when there is no fresh report.
	KVUsage float64
	// KVTokens is the engine's KV capacity in tokens, 0 when it is not known.
	KVTokens int
	// Waiting is the engine's report of its waiting queue; 0 when there is no fresh report.
	Waiting int
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
	pending    int // their uncached tokens
	inFlight   int
	left       bookings // of which nobody tells the end
	// lastEnd is when the last prefill ended.
	lastEnd time.Time
	version uint64 // counts the changes of all that
	peers   []peerShare
	// peersEnd is when a prefill of any peer ended last.
	peersEnd time.Time
	rate     estimator
	report   Report
	reported time.Time
}

// Booking is one request's share of an endpoint's load.
type Booking struct {
	tracker *Tracker
	// uncached prompt tokens; ahead is what was pending before them, that of peers included: the engine makes no
	// difference, so the rate that is learned from it does not depend on how many pickers there are.
	uncached int
	ahead    float64
	start    time.Time
	// expected is when the prefill should be over, for requests that do not tell (not streamed).
	expected time.Time
	streamed bool
	ends     time.Time // of a booking that was left: when it should be over
	done     bool      // prefill has ended
	released bool
}

// Book counts a request whose prompt has uncached tokens to prefill. Only requests with streamed answers train the
// rate; for the others the end of the prefill is predicted.
func (t *Tracker) Book(now time.Time, uncached int, streamed bool) *Booking {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	ahead, _ := t.pendingNow(now)
	b := &Booking{tracker: t, uncached: max(0, uncached), ahead: ahead, start: now, streamed: streamed}
	if !streamed {
		b.expected = now.Add(t.rate.predict(b.ahead + float64(b.uncached)))
	}
	t.prefilling = append(t.prefilling, b)
	t.pending += b.uncached
	t.inFlight++
	t.version++
	return b
}

// FirstToken tells that the request's first token has come back: its prefill has ended, and the time it took is a
// sample of the endpoint's rate.
func (b *Booking) FirstToken(now time.Time) {
	t := b.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.done || b.released {
		return
	}
	if b.streamed {
		t.rate.learn(now, b.ahead+float64(b.uncached), now.Sub(b.start).Seconds())
	}
	t.endPrefill(b, now)
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
	b.released = true
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
	t.settle(at)
}

// View is the load now.
func (t *Tracker) View(now time.Time) View {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	all, own := t.pendingNow(now)
	v := View{PendingTokens: all, KVTokens: t.report.KVTokens, Peers: t.peerView(now)}
	v.InFlight = t.inFlight + v.Peers.InFlight
	v.Decoding = t.inFlight - len(t.prefilling) + v.Peers.Decoding
	v.Peers.PendingTokens = all - own
	v.Rate, v.Overhead, v.Trust = t.rate.learned(now)
	if now.Sub(t.reported) <= metricsFresh {
		v.KVUsage, v.Waiting = t.report.KVUsage, t.report.Waiting
		v.MaxAdapters, v.Adapters = t.report.MaxAdapters, t.report.Adapters
	}
	return v
}

// Predict is the expected time to first token of a request with uncached tokens, booked now.
func (t *Tracker) Predict(now time.Time, uncached int) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	ahead, _ := t.pendingNow(now)
	return t.rate.predict(ahead + float64(uncached))
}

func (t *Tracker) endPrefill(b *Booking, now time.Time) {
	if b.done {
		return
	}
	b.done = true
	for i, other := range t.prefilling {
		if other == b {
			t.prefilling = append(t.prefilling[:i], t.prefilling[i+1:]...)
			break
		}
	}
	t.pending -= b.uncached
	t.lastEnd = now
	t.version++
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

// pendingNow is the pending tokens of this picker and its peers less what the engine has done of the first prefill
// since it began. own is this picker's part of them.
func (t *Tracker) pendingNow(now time.Time) (all, own float64) {
	own = float64(t.pending)
	all = own
	var head queueHead
	if len(t.prefilling) > 0 {
		head.take(t.prefilling[0].start, t.prefilling[0].uncached)
	}
	ours := head
	for i := range t.peers {
		s := &t.peers[i]
		if !s.peer.Fresh(now) {
			continue
		}
		all += float64(s.PendingTokens)
		if s.PendingTokens > 0 {
			head.take(s.HeadStart, s.HeadTokens)
		}
	}
	if !head.set {
		return all, own
	}
	since := head.start
	for _, end := range []time.Time{t.lastEnd, t.peersEnd} {
		if end.After(since) {
			since = end
		}
	}
	done := math.Max(0, math.Min(t.rate.rate*now.Sub(since).Seconds(), float64(head.tokens)))
	if ours == head {
		own -= done
	}
	return all - done, own
}

// queueHead is the prefill that an engine is at: that of the request which came first, whoever has sent it.
type queueHead struct {
	start  time.Time
	tokens int
	set    bool
}

func (h *queueHead) take(start time.Time, tokens int) {
	if !h.set || start.Before(h.start) {
		*h = queueHead{start, tokens, true}
	}
}

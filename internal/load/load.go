// Package load counts what each endpoint has to do: requests in flight, prompt tokens still to prefill, requests
// decoding; and learns how fast it prefills.
//
// Everything is counted at the pick, before the request has left the picker, and released exactly once however the
// request ends. Time is passed in.
package load

import (
	"math"
	"sync"
	"time"
)

// metricsFresh is how long the engine's own figures are believed.
const metricsFresh = 2 * time.Second

// View is an endpoint's load at one moment.
type View struct {
	// InFlight requests, all of them.
	InFlight int
	// Decoding is the number of requests whose prefill has ended.
	Decoding int
	// PendingTokens is the uncached prompt tokens that still have to be prefilled, after what the learned rate says
	// was done meanwhile.
	PendingTokens float64
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
}

// Report is what an engine says of itself.
type Report struct {
	Running, Waiting int
	KVUsage          float64
	KVTokens         int
}

// Tracker counts the load of one endpoint. It is safe for concurrent use.
type Tracker struct {
	mu sync.Mutex
	// prefilling lists the bookings whose prefill has not ended, oldest first: engines prefill in order of arrival.
	prefilling []*Booking
	pending    int // their uncached tokens
	inFlight   int
	left       bookings // of which nobody tells the end
	// headSince is when the engine began with the first of them, as far as we can tell.
	headSince time.Time
	rate      estimator
	report    Report
	reported  time.Time
}

// Booking is one request's share of an endpoint's load.
type Booking struct {
	tracker *Tracker
	// uncached prompt tokens; ahead is what was pending before them.
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
	b := &Booking{tracker: t, uncached: max(0, uncached), ahead: t.pendingNow(now), start: now, streamed: streamed}
	if !streamed {
		b.expected = now.Add(t.rate.predict(b.ahead + float64(b.uncached)))
	}
	if len(t.prefilling) == 0 {
		t.headSince = now
	}
	t.prefilling = append(t.prefilling, b)
	t.pending += b.uncached
	t.inFlight++
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
	v := View{
		InFlight:      t.inFlight,
		Decoding:      t.inFlight - len(t.prefilling),
		PendingTokens: t.pendingNow(now),
		KVTokens:      t.report.KVTokens,
	}
	v.Rate, v.Overhead, v.Trust = t.rate.learned(now)
	if now.Sub(t.reported) <= metricsFresh {
		v.KVUsage, v.Waiting = t.report.KVUsage, t.report.Waiting
	}
	return v
}

// Predict is the expected time to first token of a request with uncached tokens, booked now.
func (t *Tracker) Predict(now time.Time, uncached int) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rate.predict(t.pendingNow(now) + float64(uncached))
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
	t.headSince = now
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

// pendingNow is the pending tokens less what the engine has done of the first prefill since it began.
func (t *Tracker) pendingNow(now time.Time) float64 {
	if len(t.prefilling) == 0 {
		return 0
	}
	done := t.rate.rate * now.Sub(t.headSince).Seconds()
	return float64(t.pending) - math.Max(0, math.Min(done, float64(t.prefilling[0].uncached)))
}

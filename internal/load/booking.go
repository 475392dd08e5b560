package load

import "time"

// Booking is one request's share of an endpoint's load.
type Booking struct {
	tracker *Tracker
	// work of the prefill; ahead is what was pending before it, that of peers included.
	work, ahead Work
	seconds     float64 // that the work should take by itself
	start       time.Time
	// expected is when the prefill should be over, for requests that do not report it (not streamed).
	expected time.Time
	streamed bool
	due      time.Time // deadline of the first token; zero for none
	ends     time.Time // of a booking that was left: when it should be over
	more     int       // sequences that the engine makes of the request, besides one
	taught   bool      // its work is in a sample
	done     bool      // prefill has ended
	released bool
}

// SetSequences sets how many sequences the engine makes of the request, at least 1: one for each answer to each prompt.
func (b *Booking) SetSequences(n int) {
	if n <= 1 {
		return // nearly all requests: they need not wait for the lock
	}
	t := b.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	if !b.released {
		t.more += n - 1 - b.more
		b.more = n - 1
	}
}

// SetDue sets when the first token is due; the zero time means no deadline.
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

// Seconds that the engine should need for the prefill by itself, as was known at the booking.
func (b *Booking) Seconds() float64 { return b.seconds }

// predicted is how long the prefill should take from the booking on.
func (b *Booking) predicted() time.Duration { return b.tracker.predict(b.ahead.plus(b.work)) }

// FirstToken reports that the request's first token has arrived: its prefill has ended, and the time since the end of the
// prefill before it is a sample of the endpoint's speed.
func (b *Booking) FirstToken(now time.Time) { b.prefilled(now) }

// Announced reports that the endpoint has announced the last block of the prompt, in the same engine step as the first
// token.
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
	t.progressed = now
	t.move(now)
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

// EndPrefill reports that the prefill has ended without a time to learn from.
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
	if b.done {
		t.progressed = now
	}
	t.endPrefill(b, now)
	t.release(b)
}

// Drop takes off a request that the endpoint has failed, refused or given up: its work was not done, so that it teaches
// nothing of the endpoint's speed. Only the first call of Drop and Release counts; calls on nil do nothing.
func (b *Booking) Drop(now time.Time) {
	if b == nil {
		return
	}
	t := b.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.released {
		return
	}
	last := t.lastEnd
	if !b.done {
		t.endPrefill(b, now)
		t.lastEnd = last
	}
	if !b.taught {
		t.skipped = t.skipped.minus(b.work)
	}
	t.release(b)
}

// Context is the part of a view's PendingContext that the request has.
func (b *Booking) Context() float64 {
	t := b.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.done || b.taught {
		return 0
	}
	return b.work.Context
}

package load

import (
	"testing"
	"time"
)

// engineLife plays an endpoint that is scraped five times a second.
type engineLife struct {
	t       *testing.T
	tracker Tracker
	now     time.Time
	report  Report
}

// pass lets time pass; step changes the report, as each scrape finds it.
func (l *engineLife) pass(d time.Duration, step func(r *Report)) {
	for end := l.now.Add(d); l.now.Before(end); {
		l.now = l.now.Add(200 * time.Millisecond)
		step(&l.report)
		l.tracker.Observe(l.now, l.report)
	}
}

// serve a streamed request whose prefill runs at 10,000 tokens/s.
func (l *engineLife) serve(tokens int) {
	b := l.tracker.Book(l.now, WorkOf(tokens, 0), true)
	l.pass(time.Duration(tokens)*100*time.Microsecond, func(r *Report) { r.Running, r.KVUsage = 1, r.KVUsage+0.001 })
	b.FirstToken(l.now)
	l.pass(time.Second, moving)
	b.Release(l.now)
	l.pass(time.Second, func(r *Report) { r.Running, r.KVUsage = 0, 0 })
}

func moving(r *Report) { r.Running, r.Generated = 1, r.Generated+10 }

func still(*Report) {}

func (l *engineLife) want(stalled bool, when string) {
	l.t.Helper()
	if got := l.tracker.View(l.now).Stalled; got != stalled {
		l.t.Fatalf("%s: stalled %v, want %v", when, got, stalled)
	}
}

// livedIn is an endpoint whose speed is known.
func livedIn(t *testing.T) *engineLife {
	l := &engineLife{t: t, now: time.Unix(1000, 0)}
	for i := range 20 {
		l.serve(1000 + 200*(i%5))
		l.want(false, "while it serves")
	}
	return l
}

// TestAStallIsFoundInTwoSeconds while a request decodes, while a prompt is computed, and in an engine that was idle; it ends
// with the next movement, of whatever kind.
func TestAStallIsFoundInTwoSeconds(t *testing.T) {
	for name, begin := range map[string]func(l *engineLife) *Booking{
		"decoding": func(l *engineLife) *Booking {
			b := l.tracker.Book(l.now, WorkOf(100, 0), true)
			b.FirstToken(l.now)
			l.pass(time.Second, moving)
			return b
		},
		"prefilling": func(l *engineLife) *Booking {
			b := l.tracker.Book(l.now, WorkOf(2000, 0), true)
			l.pass(200*time.Millisecond, func(r *Report) { r.Running = 1 })
			return b
		},
		"idle before": func(l *engineLife) *Booking { return l.tracker.Book(l.now, WorkOf(1000, 0), true) },
		"not streamed": func(l *engineLife) *Booking {
			b := l.tracker.Book(l.now, WorkOf(1000, 0), false)
			l.pass(time.Second, moving)
			return b
		},
	} {
		for how, move := range map[string]func(l *engineLife, b *Booking){
			"by its figures":   func(l *engineLife, _ *Booking) { l.pass(time.Millisecond, moving) },
			"by a piece":       func(l *engineLife, _ *Booking) { l.tracker.Pieces().Add(1) },
			"by a first token": func(l *engineLife, b *Booking) { b.FirstToken(l.now); l.tracker.Pieces().Add(1) },
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				l := livedIn(t)
				b := begin(l)
				l.pass(time.Second, still)
				l.want(false, "after a second of silence")
				l.pass(1200*time.Millisecond, still)
				l.want(true, "after two seconds")
				l.pass(time.Minute, still)
				l.want(true, "as long as it stands")
				move(l, b)
				l.want(false, "when it moves again")
			})
		}
	}
}

// TestAFrozenServerIsStalled: the engine's server does not answer to scrapes, either.
func TestAFrozenServerIsStalled(t *testing.T) {
	l := livedIn(t)
	b := l.tracker.Book(l.now, WorkOf(100, 0), true)
	b.FirstToken(l.now)
	l.now = l.now.Add(2100 * time.Millisecond)
	l.want(true, "without scrapes")
	l.tracker.Pieces().Add(1)
	l.want(false, "when pieces arrive, whatever becomes of scrapes")
}

// TestWorkThatTakesLongIsNoStall.
func TestWorkThatTakesLongIsNoStall(t *testing.T) {
	t.Run("100,000 tokens in one step", func(t *testing.T) {
		l := livedIn(t)
		b := l.tracker.Book(l.now, WorkOf(100_000, 0), true)
		predicted := l.tracker.Predict(l.now, Work{})
		for range int(predicted / time.Second) {
			l.pass(time.Second, still)
			l.want(false, "within the time that it should take")
		}
		l.pass(predicted/2, still)
		l.want(false, "half as long again")
		b.FirstToken(l.now)
		l.pass(5*time.Second, still)
		l.want(false, "after a silence of its own length")
	})
	t.Run("100,000 tokens in chunks", func(t *testing.T) {
		l := livedIn(t)
		l.tracker.Book(l.now, WorkOf(100_000, 0), true)
		for range 100 { // ten times as slow as predicted
			l.pass(800*time.Millisecond, still)
			l.pass(200*time.Millisecond, func(r *Report) { r.KVUsage += 0.001 })
			l.want(false, "while chunks are computed")
		}
	})
	t.Run("the first step of a slow engine", func(t *testing.T) {
		l := &engineLife{t: t, now: time.Unix(1000, 0)}
		l.tracker.Book(l.now, WorkOf(500, 0), true)
		l.pass(10*time.Minute, still)
		l.want(false, "before anything is known of it")
		for range 20 {
			l.pass(time.Second, moving)
		}
		l.tracker.Book(l.now, WorkOf(1000, 0), true)
		l.pass(35*time.Second, still)
		l.want(false, "before its speed is known")
	})
	t.Run("other requests behind it", func(t *testing.T) {
		l := livedIn(t)
		for range 30 {
			l.tracker.Book(l.now, WorkOf(2000, 0), true)
		}
		l.pass(1800*time.Millisecond, still)
		l.want(false, "a step can have several prompts")
	})
	t.Run("nothing to do", func(t *testing.T) {
		l := livedIn(t)
		l.pass(time.Hour, still)
		l.want(false, "while idle")
		l.tracker.Book(l.now, WorkOf(100, 0), true).Leave(l.now, 10_000)
		l.pass(time.Minute, still)
		l.want(false, "with a request whose end is not reported")
	})
	t.Run("without figures", func(t *testing.T) {
		l := &engineLife{t: t, now: time.Unix(1000, 0)}
		for range 20 {
			b := l.tracker.Book(l.now, WorkOf(1000, 0), true)
			l.now = l.now.Add(100 * time.Millisecond)
			b.FirstToken(l.now)
			b.Release(l.now)
		}
		l.tracker.Book(l.now, WorkOf(100, 0), false)
		l.now = l.now.Add(time.Minute)
		l.want(false, "of an engine that is not scraped")
	})
}

// TestAStalledEndpointIsTriedWithOneRequest ten seconds after it has lost all others.
func TestAStalledEndpointIsTriedWithOneRequest(t *testing.T) {
	l := livedIn(t)
	b := l.tracker.Book(l.now, WorkOf(1000, 0), true)
	l.pass(3*time.Second, still)
	l.want(true, "silent")
	b.Drop(l.now)
	l.pass(9*time.Second, still)
	l.want(true, "soon after")
	l.pass(2*time.Second, still)
	l.want(false, "after ten seconds")
	b = l.tracker.Book(l.now, WorkOf(1000, 0), true)
	l.want(true, "with a request that tries it")
	b.Drop(l.now)
	l.want(true, "when that is gone")
	l.pass(11*time.Second, still)
	b = l.tracker.Book(l.now, WorkOf(1000, 0), true)
	b.FirstToken(l.now)
	l.want(false, "when that is answered")
}

// TestPickersShareWhatMoves: an engine that works for another picker's request moves, and its long prompt explains silence.
func TestPickersShareWhatMoves(t *testing.T) {
	l := livedIn(t)
	peer, start := new(Peer), l.now
	l.pass(200*time.Millisecond, still)
	l.tracker.Book(l.now, WorkOf(1000, 0), true)
	for range 25 {
		peer.Receive(l.now)
		l.tracker.Merge(peer, Share{InFlight: 1, PendingTokens: 50_000, HeadTokens: 50_000, HeadStart: start})
		l.pass(200*time.Millisecond, still)
		l.want(false, "while a peer's prompt is computed")
	}
}

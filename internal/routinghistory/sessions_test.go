package routinghistory

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestSessionsAgainstAPlainModel: what was used last is remembered while it is not idle, and the memory is bounded.
func TestSessionsAgainstAPlainModel(t *testing.T) {
	const limit, idle = 64, time.Minute
	rng := rand.New(rand.NewPCG(1, 1))
	s := NewSessions(limit, idle)
	type use struct {
		endpoint uint64
		at       time.Time
	}
	model, order := map[uint64]use{}, []uint64(nil)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for range 20_000 {
		now = now.Add(time.Duration(rng.ExpFloat64() * float64(time.Second)))
		session := rng.Uint64N(200)
		if rng.IntN(2) == 0 {
			endpoint := 1 + rng.Uint64N(9)
			s.Put(session, endpoint, now)
			model[session] = use{endpoint, now}
			order = append(order, session)
		}
		if s.Len() > limit {
			t.Fatalf("%d sessions in memory, want at most %d", s.Len(), limit)
		}
		got, want := s.Get(session, now), model[session]
		recent := map[uint64]bool{} // the limit/2 sessions used last must be known
		for i := len(order) - 1; i >= 0 && len(recent) < limit/2; i-- {
			recent[order[i]] = true
		}
		fresh := want.endpoint != 0 && now.Sub(want.at) <= idle
		if got != 0 && (got != want.endpoint || !fresh) {
			t.Fatalf("session %d is at %d, it went to %+v", session, got, want)
		}
		if got == 0 && fresh && recent[session] {
			t.Fatalf("session %d is forgotten, it went to %+v at %v", session, want, now)
		}
	}
}

// TestChangesOfSessionsReachAReplica: a replica that asks again and again for what has changed has the same homes as the
// one that it asks, and is sent what that one has put, once, and what it has learned before the replica came.
func TestChangesOfSessionsReachAReplica(t *testing.T) {
	const limit, idle = 400, time.Hour
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 2))
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		from, to := NewSessions(limit, idle), NewSessions(limit, idle)
		learnedLater := map[uint64]bool{}
		change := func(known bool) {
			now = now.Add(time.Duration(1+rng.IntN(1000)) * time.Millisecond)
			session, endpoint := rng.Uint64N(100), 1+rng.Uint64N(9)
			if rng.IntN(3) == 0 {
				from.Learn(session, endpoint, now)
				learnedLater[session] = !known
			} else {
				from.Put(session, endpoint, now)
				delete(learnedLater, session)
			}
		}
		for range rng.IntN(1000) {
			change(true)
		}
		first, upTo, sent, puts := from.Changes(), uint64(0), map[uint64]int{}, 0
		for range 40 {
			for range rng.IntN(20) {
				change(false)
			}
			before := upTo
			got := 0
			upTo, _ = from.Since(upTo, first, 1+rng.IntN(50), now, func(session, endpoint uint64, idle time.Duration) {
				to.Learn(session, endpoint, now.Add(-idle))
				sent[session]++
				got++
			})
			puts += got
			if upTo < before {
				t.Fatalf("seed %d: went back from %d to %d", seed, before, upTo)
			}
		}
		for more := true; more; {
			upTo, more = from.Since(upTo, first, 7, now, func(session, endpoint uint64, idle time.Duration) {
				to.Learn(session, endpoint, now.Add(-idle))
				puts++
			})
		}
		if upTo != from.Changes() {
			t.Fatalf("seed %d: %d changes of %d are covered", seed, upTo, from.Changes())
		}
		if uint64(puts) > from.Changes() {
			t.Fatalf("seed %d: %d sessions for %d changes", seed, puts, from.Changes())
		}
		for session := range uint64(100) {
			if later, touched := learnedLater[session]; touched && later {
				continue // the replica that put it sends it
			}
			if got, want := to.Get(session, now), from.Get(session, now); got != want {
				t.Fatalf("seed %d: session %d is at %d, want %d", seed, session, got, want)
			}
		}
	}
}

// TestFewChangesAreKept: a replica that falls behind by more sessions than are remembered misses the oldest ones only.
func TestFewChangesAreKept(t *testing.T) {
	const limit = 64
	s := NewSessions(limit, time.Hour)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for session := range uint64(10_000) {
		s.Put(session, 1, now)
	}
	var got []uint64
	upTo, more := s.Since(0, 0, 1000, now, func(session, _ uint64, _ time.Duration) { got = append(got, session) })
	if upTo != 10_000 || more || len(got) < limit/2 || got[len(got)-1] != 9999 || len(s.log) > limit {
		t.Errorf("%d changes, %d sessions, more %v, %d in the log: want the last %d or more", upTo, len(got), more, len(s.log), limit/2)
	}
}

// TestAnOlderHomeIsNotLearned, and sessions that are idle are not sent.
func TestAnOlderHomeIsNotLearned(t *testing.T) {
	s := NewSessions(10, time.Minute)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s.Put(1, 5, now)
	s.Learn(1, 6, now)
	s.Learn(1, 7, now.Add(-time.Second))
	if got := s.Get(1, now); got != 5 {
		t.Errorf("home %d, want 5", got)
	}
	s.Learn(1, 8, now.Add(time.Second))
	if got := s.Get(1, now); got != 8 {
		t.Errorf("home %d, want 8, which is later", got)
	}
	s.Put(2, 5, now)
	s.Since(0, 9, 9, now.Add(2*time.Minute), func(session, _ uint64, _ time.Duration) { t.Errorf("session %d is idle, and sent", session) })
}

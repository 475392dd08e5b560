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
		recent := map[uint64]bool{} // the sessions used last must be known
		for i := len(order) - 1; i >= 0 && len(recent) < limit; i-- {
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
				from.Learn(session, Home{Endpoint: endpoint, Used: now})
				learnedLater[session] = !known
			} else {
				from.Put(session, endpoint, now)
				delete(learnedLater, session)
			}
		}
		for range rng.IntN(1000) {
			change(true)
		}
		first, upTo, puts := from.Changes(), uint64(0), 0
		for range 40 {
			for range rng.IntN(20) {
				change(false)
			}
			before := upTo
			got := 0
			upTo, _ = from.Since(upTo, first, 1+rng.IntN(50), now, func(session uint64, h Home) {
				to.Learn(session, h)
				got++
			})
			puts += got
			if upTo < before {
				t.Fatalf("seed %d: went back from %d to %d", seed, before, upTo)
			}
		}
		for more := true; more; {
			upTo, more = from.Since(upTo, first, 7, now, func(session uint64, h Home) {
				to.Learn(session, h)
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
	upTo, more := s.Since(0, 0, 1000, now, func(session uint64, _ Home) { got = append(got, session) })
	if upTo != 10_000 || more || len(got) != limit || got[0] != 10_000-limit || got[limit-1] != 9999 || len(s.homes) > limit+1 {
		t.Errorf("%d changes, sessions %v, more %v, %d places: want the last %d", upTo, got, more, len(s.homes), limit)
	}
}

// TestAnOlderHomeIsNotLearned, and sessions that are idle are not sent.
func TestAnOlderHomeIsNotLearned(t *testing.T) {
	s := NewSessions(10, time.Minute)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s.Put(1, 5, now)
	s.Learn(1, Home{Endpoint: 4, Used: now})
	s.Learn(1, Home{Endpoint: 7, Used: now.Add(-time.Second)})
	if got := s.Get(1, now); got != 5 {
		t.Errorf("home %d, want 5", got)
	}
	s.Learn(1, Home{Endpoint: 8, Used: now.Add(time.Second)})
	if got := s.Get(1, now); got != 8 {
		t.Errorf("home %d, want 8, which is later", got)
	}
	s.Put(2, 5, now)
	s.Since(0, 9, 9, now.Add(2*time.Minute), func(session uint64, _ Home) { t.Errorf("session %d is idle, and sent", session) })
}

// TestReplicasKeepTheSameHome of two requests that no replica knew of each other, in whatever order they learn of them, and though their
// clocks differ. A request after both replaces them, whichever replica it meets.
func TestReplicasKeepTheSameHome(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	for range 1000 {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		skew := func() time.Duration { return time.Duration(rng.IntN(5)-2) * time.Second }
		replicas := []*Sessions{NewSessions(10, time.Hour), NewSessions(10, time.Hour), NewSessions(10, time.Hour)}
		clocks := []time.Duration{skew(), skew(), skew()}
		var messages []Home
		put := func(at int, endpoint uint64) {
			replicas[at].Put(1, endpoint, now.Add(clocks[at]))
			replicas[at].Since(replicas[at].Changes()-1, 0, 1, now, func(_ uint64, h Home) { messages = append(messages, h) })
		}
		deliver := func() {
			for at, r := range replicas {
				for _, i := range rng.Perm(2 * len(messages)) { // each twice
					h := messages[i/2]
					h.Used = now.Add(clocks[at])
					r.Learn(1, h)
				}
			}
			messages = nil
		}
		for range 4 {
			for at := range replicas {
				if rng.IntN(2) == 0 {
					put(at, 1+rng.Uint64N(5))
				}
			}
			deliver()
			home := replicas[0].Get(1, now)
			for at, r := range replicas {
				if got := r.Get(1, now); got != home {
					t.Fatalf("replica %d keeps %d, replica 0 %d", at, got, home)
				}
			}
			put(rng.IntN(3), 9)
			deliver()
			for at, r := range replicas {
				if got := r.Get(1, now); got != 9 {
					t.Fatalf("replica %d keeps %d, the last request went to 9", at, got)
				}
			}
		}
	}
}

// TestNoStampIsTheLast: a replica that lies about stamps does not keep others from moving its sessions, nor do clocks that were wrong.
func TestNoStampIsTheLast(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, stamp := range map[string]uint64{"the largest number": 1<<64 - 1, "in a year": uint64(now.AddDate(1, 0, 0).UnixMicro())} {
		s, other := NewSessions(10, time.Hour), NewSessions(10, time.Hour)
		for _, r := range []*Sessions{s, other} {
			r.Learn(1, Home{Endpoint: 5, Stamp: stamp, Used: now})
		}
		s.Put(1, 6, now)
		s.Since(0, 0, 1, now, func(session uint64, h Home) { other.Learn(session, h) })
		if a, b := s.Get(1, now), other.Get(1, now); a != 6 || b != 6 {
			t.Errorf("%s: homes %d and %d, want 6", name, a, b)
		}
		other.Learn(1, Home{Endpoint: 7, Used: now.Add(2 * time.Hour)})
		if got := other.Get(1, now.Add(2*time.Hour)); got != 7 {
			t.Errorf("%s: home %d after the session was idle for too long, want 7", name, got)
		}
	}
}

// TestAQuietSessionIsSent though others have changed more often than sessions are remembered.
func TestAQuietSessionIsSent(t *testing.T) {
	s := NewSessions(10, time.Hour)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s.Put(1, 5, now)
	for i := range uint64(1000) {
		s.Put(2+i%9, 6, now)
	}
	sent := map[uint64]uint64{}
	s.Since(0, 0, 100, now, func(session uint64, h Home) { sent[session] = h.Endpoint })
	if len(sent) != 10 || sent[1] != 5 {
		t.Errorf("sent %v, want all ten sessions", sent)
	}
}

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

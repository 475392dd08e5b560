package picker

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// The table against its model, which forgets nothing before its time.
func TestSuspectsAgainstAModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	s, now := newSuspects(), time.Unix(1, 0)
	type record struct {
		engines map[string]bool
		last    time.Time
	}
	model := map[uint64]record{}
	for range 20_000 {
		now = now.Add(time.Duration(rng.IntN(int(Suspicion / 50))))
		mark, by := uint64(rng.IntN(50)), fmt.Sprint(rng.IntN(4))
		m, ok := model[mark]
		if !ok || now.Sub(m.last) >= Suspicion {
			m = record{engines: map[string]bool{}}
		}
		if rng.IntN(2) == 0 {
			m.engines[by], m.last = true, now
			model[mark] = m
			if got, want := s.Broke(mark, by, now), len(m.engines) >= maxBreaks; got != want {
				t.Fatalf("enough %v, want %v", got, want)
			}
			continue
		}
		want := time.Duration(0)
		if len(m.engines) >= maxBreaks {
			want = m.last.Add(Suspicion).Sub(now)
		}
		if got := s.Refused(mark, now); got != want {
			t.Fatalf("refused for %v, want %v", got, want)
		}
	}
	for i := range 3 * maxSuspicious {
		s.Broke(uint64(1000+i), "", now.Add(time.Duration(i)))
		if n := len(s.all); n > maxSuspicious || int64(n) != s.known.Load() {
			t.Fatalf("%d requests are remembered, %d counted", n, s.known.Load())
		}
	}
	if s.all[uint64(1000+3*maxSuspicious-1)] == nil || s.all[1000] != nil {
		t.Error("it is not the oldest that is forgotten")
	}
}

package budget

import (
	"math/rand/v2"
	"testing"
)

// A room is never taken beyond its limit, whatever its shares do, and each share always has its own bytes.
func TestSharesOfARoom(t *testing.T) {
	const limit, own = 1000, 50
	room := NewRoom(limit)
	shares, held := make([]*Share, 8), make([]int, 8)
	for i := range shares {
		shares[i] = room.Share(own)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		i := random.IntN(len(shares))
		switch n := 1 + random.IntN(200); {
		case random.IntN(50) == 0:
			shares[i].Close()
			if shares[i].Take(1) {
				t.Fatal("a share took something after its end")
			}
			shares[i].Put(5) // of what Close has given back
			shares[i], held[i] = room.Share(own), 0
		case random.IntN(2) == 0 && held[i] > 0:
			n = min(n, held[i])
			shares[i].Put(n)
			held[i] -= n
		case shares[i].Take(n):
			held[i] += n
		case held[i]+n <= own:
			t.Fatalf("a share that holds %d bytes could not take %d of its own %d", held[i], n, own)
		}
		drawn := 0
		for i, n := range held {
			if drawn += max(0, n-own); shares[i].Held() != n {
				t.Fatalf("a share holds %d bytes, not %d", shares[i].Held(), n)
			}
		}
		if all := int(room.held.Load()); all != drawn || all > limit {
			t.Fatalf("%d bytes of %d are taken, and the shares have %d", all, limit, drawn)
		}
	}
	for _, s := range shares {
		s.Close()
		s.Close()
	}
	if n := room.held.Load(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
	if none := (*Room)(nil).Share(1); !none.Take(1<<40) || none.Held() != 0 {
		t.Error("a share of no room has a limit")
	}
}

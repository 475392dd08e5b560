package request

import (
	"math/rand/v2"
	"testing"
)

// TestABufferIsCountedBeforeItGrows: what a buffer takes is never more than what was counted for it, and Free returns all of it once.
func TestABufferIsCountedBeforeItGrows(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		limit, held := r.Int64N(4<<10), int64(0)
		take := func(more int64) bool {
			if held+more > limit {
				return false
			}
			held += more
			return true
		}
		var b Buffer
		var want string
		for range 8 {
			piece := make([]byte, r.IntN(1<<10))
			switch keep := r.IntN(len(want) + 1); r.IntN(3) {
			case 0:
				if b.Grow(take, len(b.Bytes)+len(piece)) {
					b.Bytes = append(b.Bytes, piece...)
					want += string(piece)
				}
			case 1:
				if b.End(take, keep, piece) {
					want = want[:keep] + string(piece)
				}
			default:
				if b.Replace(take, piece) {
					want = string(piece)
				}
			}
			if string(b.Bytes) != want {
				t.Fatalf("%d bytes are there, want %d", len(b.Bytes), len(want))
			}
			if int64(cap(b.Bytes)) > held && len(want) > 0 {
				t.Fatalf("%d bytes are taken, and %d counted", cap(b.Bytes), held)
			}
		}
		if n := b.Free(); n != held {
			t.Fatalf("%d bytes are given back of %d", n, held)
		}
		if n := b.Free(); n != 0 {
			t.Fatalf("%d bytes are given back again", n)
		}
	}
}

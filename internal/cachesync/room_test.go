package cachesync

import (
	"testing"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// TestAJoinedStreamDrawsOnItsShare: an engine whose blocks are parts of key blocks makes the picker keep no more tokens than there is room
// for, however many blocks it announces and however large they are. What fits is indexed.
func TestAJoinedStreamDrawsOnItsShare(t *testing.T) {
	const limit = 4 << 20
	room, book, root := budget.NewRoom(limit), kvindex.New(), testRoot("a", 8)
	share := room.Share(0)
	var stats events.Stats
	f := events.Feed{Keys: events.Keys{Model: root.Model, Seed: root.Seed, BlockTokens: root.BlockTokens}, Writer: book.Writer(book.Join())}
	s := Join(&f, &stats, share)
	s.Begin(false)
	hash := kvevent.Hash(0)
	for _, size := range []int{4, maxBlockSize} {
		for range 40 {
			e := kvevent.Event{Kind: kvevent.Stored, Tokens: make([]uint32, 500*size), BlockSize: size}
			for range 500 {
				hash++
				e.Hashes = append(e.Hashes, hash)
			}
			s.Apply(&kvevent.Batch{Events: []kvevent.Event{e}}, events.Position{})
			if held := share.Held(); held > limit/2 {
				t.Fatalf("%d bytes are held, more than half of %d", held, limit)
			}
		}
	}
	if stats.Refused.Load() == 0 || f.Writer.Len() == 0 {
		t.Errorf("%d blocks were refused, %d are indexed", stats.Refused.Load(), f.Writer.Len())
	}
	if s.Begin(false); share.Held() != 0 {
		t.Errorf("%d bytes are held at the beginning of a life", share.Held())
	}
}

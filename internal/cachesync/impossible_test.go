package cachesync

import (
	"testing"

	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// TestJoinedPartsAreComparedWithTheEnginesNumber: without a reporter, too, an engine whose blocks are parts of key blocks never counts with
// more than twice as many as it has. Two of its blocks are one key block.
func TestJoinedPartsAreComparedWithTheEnginesNumber(t *testing.T) {
	const blocks = 16
	var book kvindex.Book = kvindex.New()
	var stats events.Stats
	root := testRoot("a", 8)
	f := events.Feed{
		Keys:     events.Keys{Model: root.Model, Seed: root.Seed, BlockTokens: root.BlockTokens},
		Writer:   book.Writer(book.Join()),
		Capacity: func() int { return blocks },
	}
	s := Join(&f, &stats, nil)
	s.Begin(false)
	times := 0
	for h := range kvevent.Hash(10 * blocks) {
		s.Apply(&kvevent.Batch{Events: []kvevent.Event{chainEvent(0, 2*h+1, 2*h+2)}, Rank: -1}, events.Position{})
		held := len(heldBy(f.Writer))
		if held > blocks+blocks/16 {
			t.Fatalf("%d key blocks count of an engine that has %d halves", held, blocks)
		}
		if s.(events.DoubtfulSink).Impossible() {
			if times++; held != 0 {
				t.Fatalf("%d key blocks are left", held)
			}
		}
	}
	if times < 5 {
		t.Errorf("the blocks were forgotten %d times", times)
	}
}

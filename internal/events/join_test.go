package events

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

func TestTheFirstBlockDecidesWhetherPartsAreJoined(t *testing.T) {
	sized := func(size int) kvevent.Event {
		return kvevent.Event{Kind: kvevent.Stored, Hashes: []kvevent.Hash{7}, Tokens: make([]uint32, size), BlockSize: size}
	}
	byHash := kvevent.Event{Kind: kvevent.Stored, Hashes: []kvevent.Hash{1}, Medium: "CPU"}
	partial := sized(1)
	partial.Partial = true
	for name, tc := range map[string]struct {
		events []kvevent.Event // each a batch
		want   []string        // what the joining sink receives
	}{
		"as large":                       {[]kvevent.Event{sized(blockTokens), sized(1)}, nil},
		"larger":                         {[]kvevent.Event{sized(2 * blockTokens), sized(1)}, nil},
		"a half":                         {[]kvevent.Event{sized(blockTokens / 2), sized(blockTokens)}, []string{"begin false", "1 [7]", "1 [7]"}},
		"no part":                        {[]kvevent.Event{sized(blockTokens - 1)}, nil},
		"nothing that tells comes first": {[]kvevent.Event{removed(1), byHash, partial, sized(1)}, []string{"begin false", "1 [7]"}},
	} {
		t.Run(name, func(t *testing.T) {
			x, told := newFakeIndex(), &log{}
			f, stats := testFeed(x), &Stats{}
			cfg := Config{Join: func(got *Feed, s *Stats, _ *budget.Share) Sink {
				if got != &f || s != stats {
					t.Error("another feed")
				}
				return told
			}}.withDefaults()
			s := &sizer{mirror: newMirror(&f, &cfg, nil, stats)}
			s.Begin(false)
			for i, e := range tc.events {
				s.Apply(&kvevent.Batch{Events: []kvevent.Event{e}}, Position{Next: uint64(i + 1)})
			}
			if diff := cmp.Diff(tc.want, told.lines); diff != "" {
				t.Fatalf("told (-want +got):\n%s", diff)
			}
			if s.joined == nil {
				return
			}
			told.lines = nil
			s.Mark(Position{Next: 9}, Synced)
			s.Begin(true)
			if s.Revert() {
				t.Error("reverted")
			}
			if !slices.Equal(told.lines, []string{"begin true"}) || told.at.Next != 9 {
				t.Errorf("told %q, at %d", told.lines, told.at.Next)
			}
		})
	}
}

// doubtful is a joining sink that does not believe the engine.
type doubtful struct{ Sink }

func (doubtful) Impossible() bool { return true }

// TestTheJoiningSinkSaysWhatIsImpossible: not the mirror that it has replaced.
func TestTheJoiningSinkSaysWhatIsImpossible(t *testing.T) {
	x := newFakeIndex()
	f, stats := testFeed(x), &Stats{}
	cfg := Config{}.withDefaults()
	s := &sizer{mirror: newMirror(&f, &cfg, nil, stats)}
	if s.Impossible() {
		t.Error("there is nothing to disbelieve")
	}
	s.joined = doubtful{}
	if !s.Impossible() {
		t.Error("the joining sink was not asked")
	}
}

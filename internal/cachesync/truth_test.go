package cachesync

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

func testSeed(text string) kvblock.Seed {
	s, err := kvblock.NewSeed([]byte(strings.Repeat(text, kvblock.MinSeedBytes)))
	if err != nil {
		panic(err)
	}
	return s
}

func testRoot(text string, blockTokens int) Root {
	return NewRoot(testSeed(text), "model", blockTokens, nil)
}

// place is a key in a (tier, group).
type place struct {
	Tier  kvblock.Tier
	Group int
	Key   kvblock.Key
}

// truth is an engine's cache in the plainest form: all blocks it ever had, each with its complete prefix.
type truth struct {
	rng    *rand.Rand
	size   int // tokens of a block
	blocks map[kvevent.Hash]*truthBlock
	order  []kvevent.Hash
	hashes uint64
}

type truthBlock struct {
	hash   kvevent.Hash
	parent *truthBlock
	tokens []uint32 // of the block
	salt   string
	group  int
	copies [kvblock.NumTiers]int
	chains map[string][]kvblock.Key // all keys up to the block's end, by the root's id
}

// chain is all keys up to the block's end.
func (t *truthBlock) chain(root Root) []kvblock.Key {
	keys, ok := t.chains[root.ID]
	if !ok {
		top := t
		for top.parent != nil {
			top = top.parent
		}
		keys = kvblock.AppendKeys(nil, root.Seed.Root(root.Model, top.salt), t.prefix(), root.BlockTokens)
		if t.chains == nil {
			t.chains = map[string][]kvblock.Key{}
		}
		t.chains[root.ID] = keys
	}
	return keys
}

// length is the number of tokens up to the block's end.
func (t *truthBlock) length() int {
	if t == nil {
		return 0
	}
	return len(t.tokens) + t.parent.length()
}

func newTruth(seed uint64, size int) *truth {
	return &truth{rng: rand.New(rand.NewPCG(seed, 1)), size: size, blocks: map[kvevent.Hash]*truthBlock{}}
}

var media = []string{"GPU", "cpu"}

// step makes a few random changes, and the batch that announces them.
func (e *truth) step() *kvevent.Batch {
	b := &kvevent.Batch{Rank: -1}
	for range 1 + e.rng.IntN(3) {
		switch n := e.rng.IntN(100); {
		case n < 55:
			b.Events = append(b.Events, e.store())
		case n < 98:
			b.Events = append(b.Events, e.remove()...)
		case n < 99 && e.rng.IntN(4) == 0:
			e.blocks, e.order = map[kvevent.Hash]*truthBlock{}, nil
			b.Events = append(b.Events, kvevent.Event{Kind: kvevent.Cleared})
		default:
			for _, t := range e.blocks {
				t.copies[kvblock.CPU] = 0
			}
			e.forget()
			b.Events = append(b.Events, kvevent.Event{Kind: kvevent.Cleared, Medium: "cpu"})
		}
	}
	return b
}

// store announces a chain of blocks that follow a block which the engine holds, or begin a chain. Some are there
// already.
func (e *truth) store() kvevent.Event {
	tier := e.rng.IntN(2)
	ev := kvevent.Event{Kind: kvevent.Stored, BlockSize: e.size, Medium: media[tier]}
	var parent *truthBlock
	if len(e.order) > 0 && e.rng.IntN(5) > 0 {
		parent = e.blocks[e.order[e.rng.IntN(len(e.order))]]
		ev.HasParent, ev.Parent, ev.Group = true, parent.hash, parent.group
	} else {
		ev.Salt = []string{"", "", "salt"}[e.rng.IntN(3)]
		ev.Group = e.rng.IntN(2)
	}
	for range 1 + e.rng.IntN(4) {
		var next *truthBlock
		if e.rng.IntN(3) == 0 { // one that is there
			for _, hash := range e.order {
				if t := e.blocks[hash]; t.parent == parent && t.group == ev.Group && (parent != nil || t.salt == ev.Salt) {
					next = t
					break
				}
			}
		}
		if next == nil {
			e.hashes++
			next = &truthBlock{hash: kvevent.Hash(e.hashes), parent: parent, group: ev.Group, salt: ev.Salt}
			for range e.size {
				next.tokens = append(next.tokens, e.rng.Uint32N(3)) // few, so that hashes share keys
			}
			e.blocks[next.hash] = next
			e.order = append(e.order, next.hash)
		}
		next.copies[tier]++
		ev.Hashes = append(ev.Hashes, next.hash)
		ev.Tokens = append(ev.Tokens, next.tokens...)
		parent = next
	}
	return ev
}

// remove takes single copies away, leaves and inner blocks alike.
func (e *truth) remove() []kvevent.Event {
	if len(e.order) == 0 {
		return nil
	}
	tier := e.rng.IntN(2)
	group := e.blocks[e.order[0]].group
	ev := kvevent.Event{Kind: kvevent.Removed, Medium: media[tier], Group: group}
	for range 1 + e.rng.IntN(4) {
		t := e.blocks[e.order[e.rng.IntN(len(e.order))]]
		if t.group == group && t.copies[tier] > 0 {
			t.copies[tier]--
			ev.Hashes = append(ev.Hashes, t.hash)
		}
	}
	e.forget()
	if len(ev.Hashes) == 0 {
		return nil
	}
	return []kvevent.Event{ev}
}

// forget takes out what has no copy.
func (e *truth) forget() {
	kept := e.order[:0]
	for _, hash := range e.order {
		if e.blocks[hash].copies == [kvblock.NumTiers]int{} {
			delete(e.blocks, hash)
		} else {
			kept = append(kept, hash)
		}
	}
	e.order = kept
}

// history is a batch that announces all held blocks, as an engine's replay would: removed ones are stored and removed.
func (e *truth) history() *kvevent.Batch {
	b := &kvevent.Batch{Rank: -1}
	told := map[kvevent.Hash]bool{}
	var gone []*truthBlock
	var tell func(t *truthBlock)
	tell = func(t *truthBlock) {
		if told[t.hash] {
			return
		}
		told[t.hash] = true
		if t.parent != nil {
			tell(t.parent)
		}
		ev := kvevent.Event{Kind: kvevent.Stored, BlockSize: e.size, Hashes: []kvevent.Hash{t.hash}, Tokens: t.tokens, Group: t.group, Salt: t.salt}
		if t.parent != nil {
			ev.HasParent, ev.Parent = true, t.parent.hash
		}
		copies := t.copies
		if copies == [kvblock.NumTiers]int{} {
			copies[kvblock.GPU] = 1
			gone = append(gone, t)
		}
		for tier, n := range copies[:2] {
			for range n {
				ev.Medium = media[tier]
				b.Events = append(b.Events, ev)
			}
		}
	}
	for _, hash := range e.order {
		tell(e.blocks[hash])
	}
	for _, t := range gone {
		b.Events = append(b.Events, kvevent.Event{Kind: kvevent.Removed, Hashes: []kvevent.Hash{t.hash}, Group: t.group})
	}
	return b
}

// prefix is all tokens up to the block's end.
func (t *truthBlock) prefix() []uint32 {
	if t.parent == nil {
		return append([]uint32(nil), t.tokens...)
	}
	return append(t.parent.prefix(), t.tokens...)
}

// keys are what an index must have: of each of our blocks, whether all of it is in a tier.
func (e *truth) keys(root Root) map[place]bool {
	out := map[place]bool{}
	for _, t := range e.blocks {
		if t.length()%root.BlockTokens != 0 && e.size < root.BlockTokens {
			continue
		}
		keys := t.chain(root)
		mine := max(e.size/root.BlockTokens, 1)
		for tier := range kvblock.Tier(2) {
			held, part := true, t
			for have := 0; have < max(root.BlockTokens, e.size); have += e.size {
				held = held && part.copies[tier] > 0
				part = part.parent
			}
			for _, key := range keys[len(keys)-mine:] {
				if held {
					out[place{tier, t.group, key}] = true
				}
			}
		}
	}
	return out
}

// heldBy is what a writer's holder has.
func heldBy(w kvindex.Writer) map[place]bool {
	out := map[place]bool{}
	w.Each(func(b kvindex.Block) bool {
		for tier, n := range b.Copies {
			if n > 0 {
				out[place{kvblock.Tier(tier), b.Group, b.Key}] = true
			}
		}
		return true
	})
	return out
}

func compare(t *testing.T, what string, got, want map[place]bool) {
	t.Helper()
	n := 0
	for p := range want {
		if !got[p] {
			if n++; n < 5 {
				t.Errorf("%s: %v is missing", what, p)
			}
		}
	}
	for p := range got {
		if !want[p] {
			if n++; n < 5 {
				t.Errorf("%s: %v is too much", what, p)
			}
		}
	}
	if n > 0 {
		t.Fatalf("%s: %d of %d differ", what, n, len(want))
	}
}

func TestViewsHoldWhatTheEngineHolds(t *testing.T) {
	for _, sizes := range [][2]int{{4, 4}, {8, 4}, {4, 8}, {4, 16}, {16, 4}} {
		t.Run(fmt.Sprintf("engine %d ours %d", sizes[0], sizes[1]), func(t *testing.T) {
			for seed := range uint64(4) {
				testViews(t, seed, sizes[0], sizes[1])
			}
		})
	}
}

func testViews(t *testing.T, seed uint64, size, blockTokens int) {
	e := newTruth(seed, size)
	m := NewMirror(Options{}, nil)
	m.Begin(false)
	roots := []Root{testRoot("a", blockTokens), testRoot("b", blockTokens)}
	var views [2]*view
	views[0] = m.acquire(&roots[0], true)
	for i := range 200 {
		if i == 100 {
			views[1] = m.acquire(&roots[1], true)
		}
		m.Apply(e.step(), events.Position{})
		if i%4 != 0 {
			continue
		}
		for k, v := range views {
			if v == nil {
				continue
			}
			want := e.keys(roots[k])
			var digests = map[section]*kvindex.Digest{}
			told := map[place]bool{}
			for _, c := range m.snapshot(v) {
				for _, key := range c.Keys {
					p := place{kvblock.Tier(c.Tier), int(c.Group), kvblock.Key(key)}
					if told[p] {
						t.Fatalf("seed %d step %d: %v is in the snapshot twice", seed, i, p)
					}
					told[p] = true
				}
			}
			compare(t, fmt.Sprintf("seed %d step %d snapshot %d", seed, i, k), told, want)
			for p := range want {
				at := section{p.Tier, p.Group}
				if digests[at] == nil {
					digests[at] = &kvindex.Digest{}
				}
				digests[at].Add(p.Key)
			}
			for at, d := range v.digests {
				if digests[at] == nil {
					digests[at] = &kvindex.Digest{}
				}
				if *d != *digests[at] {
					t.Fatalf("seed %d step %d: the digest of %v is wrong", seed, i, at)
				}
			}
		}
		checkMirror(t, m)
	}
}

// checkMirror compares the mirror's counts and links with its records.
func checkMirror(t *testing.T, m *Mirror) {
	t.Helper()
	var classes [numClasses]int
	records, roots := 0, map[uint32]int{}
	m.arena.each(func(n id, r *record) {
		classes[r.class()]++
		records++
		if m.ids[blockID{r.hash, r.group}] != n {
			t.Fatalf("record %d is not found by its name", n)
		}
		if r.first() {
			roots[r.root]++
		}
		for c, prev := r.down, id(0); c != 0; prev, c = c, m.arena.at(c).next {
			if k := m.arena.at(c); k.up != n || k.prev != prev || k.parent != r.hash {
				t.Fatalf("record %d is a child of %d and does not know", c, n)
			}
		}
		if r.class() == ghost && r.down == 0 {
			t.Fatalf("record %d is a ghost without a record below it", n)
		}
	})
	if classes != m.classes || records != len(m.ids) {
		t.Fatalf("classes %v, counted %v; %d records, %d names", classes, m.classes, records, len(m.ids))
	}
	for i, use := range m.roots {
		if use.uses != roots[uint32(i+1)] {
			t.Fatalf("root %d has %d uses, not %d", i+1, use.uses, roots[uint32(i+1)])
		}
	}
	for missing, first := range m.waiting {
		for c := first; c != 0; c = m.arena.at(c).next {
			if k := m.arena.at(c); k.up != 0 || k.parent != missing.hash {
				t.Fatalf("record %d waits for the wrong parent", c)
			}
		}
	}
}

func hashesOf(keys ...kvblock.Key) (out []kvevent.Hash) {
	for _, key := range keys {
		out = append(out, kvevent.Hash(key))
	}
	return out
}

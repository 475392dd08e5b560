package events

import (
	"encoding/hex"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/vllm"
	"github.com/kvasir-dev/kvasir/test/race"
)

func testMirror(c Config) (*mirror, *fakeIndex) {
	c = c.withDefaults()
	x := newFakeIndex()
	f := testFeed(x)
	f.Keys.Media = map[string]kvblock.Tier{"nvme": kvblock.Disk, "cpu": kvblock.Remote}
	return newMirror(&f, &c, nil, &Stats{}), x
}

// with changes an event.
func with(e kvevent.Event, change func(e *kvevent.Event)) kvevent.Event {
	change(&e)
	return e
}

func TestMirror(t *testing.T) {
	medium := func(m string) func(e *kvevent.Event) { return func(e *kvevent.Event) { e.Medium = m } }
	at := func(tier kvblock.Tier, keys ...kvblock.Key) map[place]int {
		out := map[place]int{}
		for _, k := range keys {
			out[place{tier, k}] = 1
		}
		return out
	}
	tokens := func(h kvevent.Hash) []uint32 { return slices.Repeat([]uint32{uint32(h)}, blockTokens) }
	hashOnly := func(h kvevent.Hash, m string) kvevent.Event {
		return kvevent.Event{Kind: kvevent.Stored, Hashes: []kvevent.Hash{h}, Medium: m}
	}
	cleared := kvevent.Event{Kind: kvevent.Cleared}
	for name, tc := range map[string]struct {
		events  []kvevent.Event
		want    map[place]int
		counter func(s *Stats) uint64
		count   uint64
	}{
		"a chain in one event":    {events: []kvevent.Event{chain(0, 1, 2, 3)}, want: gpu(keyOf(1), keyOf(1, 2), keyOf(1, 2, 3))},
		"a chain in three events": {events: []kvevent.Event{chain(0, 1), chain(1, 2), chain(2, 3)}, want: gpu(keyOf(1), keyOf(1, 2), keyOf(1, 2, 3))},
		"a chain that continues below a known block": {
			events: []kvevent.Event{chain(0, 1, 2), chain(1, 3)}, want: gpu(keyOf(1), keyOf(1, 2), keyOf(1, 3)),
		},
		"a parent of 0 is none": {
			events: []kvevent.Event{with(chain(0, 1), func(e *kvevent.Event) { e.HasParent = true })}, want: gpu(keyOf(1)),
		},
		"a block in two copies outlives the first removal": {
			events: []kvevent.Event{chain(0, 1), chain(0, 1), removed(1)}, want: gpu(keyOf(1)),
		},
		"a block in two copies goes with the second removal": {
			events: []kvevent.Event{chain(0, 1), chain(0, 1), removed(1), removed(1)}, want: gpu(),
		},
		"more removals than copies": {
			events: []kvevent.Event{chain(0, 1), removed(1), removed(1, 7), chain(0, 1)}, want: gpu(keyOf(1)),
			counter: func(s *Stats) uint64 { return s.RemovedUnknown.Load() }, count: 2,
		},
		"a block below a removed one stays": {
			events: []kvevent.Event{chain(0, 1, 2), removed(1)}, want: gpu(keyOf(1, 2)),
		},
		"blocks wait for their parents, in any order": {
			events: []kvevent.Event{chain(3, 4), chain(2, 3), chain(2, 5), chain(1, 2), chain(0, 1)},
			want:   gpu(keyOf(1), keyOf(1, 2), keyOf(1, 2, 3), keyOf(1, 2, 3, 4), keyOf(1, 2, 5)),
		},
		"a block that waits and is removed": {
			events: []kvevent.Event{chain(1, 2, 3), removed(2), chain(0, 1)}, want: gpu(keyOf(1)),
		},
		"a block that waits in two copies": {
			events: []kvevent.Event{chain(1, 2), chain(1, 2), removed(2), chain(0, 1)}, want: gpu(keyOf(1), keyOf(1, 2)),
		},
		"a block that waits and is announced again from the root": {
			events: []kvevent.Event{chain(1, 2, 3), chain(0, 1, 2)}, want: gpu(keyOf(1), keyOf(1, 2), keyOf(1, 2, 3)),
		},
		"a block that waits and is offloaded meanwhile": {
			events: []kvevent.Event{chain(1, 2), hashOnly(2, "CPU"), removed(2), chain(0, 1)},
			want:   map[place]int{{kvblock.GPU, keyOf(1)}: 1, {kvblock.CPU, keyOf(1, 2)}: 1},
		},
		"a known block offloaded": {
			events: []kvevent.Event{chain(0, 1), hashOnly(1, "CPU"), removed(1)}, want: at(kvblock.CPU, keyOf(1)),
		},
		"an unknown block offloaded": {
			events: []kvevent.Event{hashOnly(1, "CPU")}, want: gpu(),
			counter: func(s *Stats) uint64 { return s.Unkeyed.Load() }, count: 1,
		},
		"a removal from another tier": {
			events: []kvevent.Event{chain(0, 1), with(removed(1), medium("CPU"))}, want: gpu(keyOf(1)),
			counter: func(s *Stats) uint64 { return s.RemovedUnknown.Load() }, count: 1,
		},
		"media by any case and of the pool's own": {
			events: []kvevent.Event{
				with(chain(0, 1), medium("gpu")), with(chain(0, 2), medium("FS")), with(chain(0, 3), medium("NVMe")),
				with(chain(0, 4), medium("cpu")), with(chain(0, 5), medium("CPU_PINNED")), with(chain(0, 6), medium("OBJ")),
			},
			want: map[place]int{
				{kvblock.GPU, keyOf(1)}: 1, {kvblock.Disk, keyOf(2)}: 1, {kvblock.Disk, keyOf(3)}: 1,
				{kvblock.Remote, keyOf(4)}: 1, {kvblock.CPU, keyOf(5)}: 1, {kvblock.Remote, keyOf(6)}: 1,
			},
		},
		"an unknown medium": {
			events: []kvevent.Event{with(chain(0, 1, 2), medium("tape")), with(removed(1), medium("tape"))}, want: gpu(),
			counter: func(s *Stats) uint64 { return s.UnknownMedium.Load() }, count: 3,
		},
		"everything cleared": {
			events: []kvevent.Event{chain(0, 1), hashOnly(1, "CPU"), chain(8, 9), cleared, chain(0, 2), chain(0, 8)},
			want:   gpu(keyOf(2), keyOf(8)),
		},
		"one tier cleared": {
			events: []kvevent.Event{chain(0, 1), hashOnly(1, "CPU"), chain(0, 2), chain(8, 9), with(cleared, medium("GPU")), chain(0, 8)},
			want:   map[place]int{{kvblock.CPU, keyOf(1)}: 1, {kvblock.GPU, keyOf(8)}: 1},
		},
		"an unknown tier cleared": {
			events: []kvevent.Event{chain(0, 1), with(cleared, medium("tape"))}, want: gpu(keyOf(1)),
		},
		"an adapter roots its own keys": {
			events: []kvevent.Event{with(chain(0, 1), func(e *kvevent.Event) { e.Adapter = "sql" }), chain(1, 2)},
			want: func() map[place]int {
				first := kvblock.Next(seed.Root("sql", ""), tokens(1), 0)
				return gpu(first, kvblock.Next(first, tokens(2), 0))
			}(),
		},
		"a salt roots its own keys": {
			events: []kvevent.Event{with(chain(0, 1), func(e *kvevent.Event) { e.Salt = "tenant" })},
			want:   gpu(kvblock.Next(seed.Root("m", "tenant"), tokens(1), 0)),
		},
		"items tell blocks apart": {
			events: []kvevent.Event{with(chain(0, 1, 2, 3), func(e *kvevent.Event) {
				e.Items = []kvevent.Item{{Block: 1, Key: "image", Offset: -2}, {Block: 1, Key: "sound"}, {Block: 2, Key: "image"}}
			})},
			want: func() map[place]int {
				first := keyOf(1)
				second := kvblock.Next(first, tokens(2), kvblock.ItemExtra(kvblock.ItemExtra(0, "image", -2), "sound", 0))
				return gpu(first, second, kvblock.Next(second, tokens(3), kvblock.ItemExtra(0, "image", 0)))
			}(),
		},
		"a group's hashes are its own": {
			events: []kvevent.Event{
				with(chain(0, 1), func(e *kvevent.Event) { e.Group = 1 }), chain(1, 2), removed(1),
			},
			want: gpu(keyOf(1)), counter: func(s *Stats) uint64 { return s.RemovedUnknown.Load() }, count: 1,
		},
		"a group that extends no prefix": {
			events: []kvevent.Event{with(chain(0, 1, 2), func(e *kvevent.Event) { e.Partial = true })}, want: gpu(),
			counter: func(s *Stats) uint64 { return s.Partial.Load() }, count: 2,
		},
		"blocks without what tells them apart": {
			events: []kvevent.Event{with(chain(0, 1, 2), func(e *kvevent.Event) { e.Unkeyed = true })}, want: gpu(),
			counter: func(s *Stats) uint64 { return s.Unkeyed.Load() }, count: 2,
		},
		"more tokens than blocks": {
			events: []kvevent.Event{with(chain(0, 1, 2), func(e *kvevent.Event) { e.Hashes = e.Hashes[:1] })}, want: gpu(),
			counter: func(s *Stats) uint64 { return s.Misaligned.Load() }, count: 1,
		},
		"fewer tokens than blocks": {
			events: []kvevent.Event{with(chain(0, 1), func(e *kvevent.Event) { e.Tokens = nil })}, want: gpu(),
			counter: func(s *Stats) uint64 { return s.Misaligned.Load() }, count: 1,
		},
		"blocks smaller than ours": {
			events: []kvevent.Event{with(chain(0, 1, 2), func(e *kvevent.Event) { e.BlockSize = 2; e.Hashes = []kvevent.Hash{1, 2, 3, 4} })},
			want:   gpu(), counter: func(s *Stats) uint64 { return s.BlockSizeUnsupported.Load() }, count: 4,
		},
		"blocks one and a half times ours": {
			events: []kvevent.Event{with(chain(0, 1, 2, 3), func(e *kvevent.Event) { e.BlockSize = 6; e.Hashes = []kvevent.Hash{1, 2} })},
			want:   gpu(), counter: func(s *Stats) uint64 { return s.BlockSizeUnsupported.Load() }, count: 2,
		},
		"blocks of two of ours have two keys": {
			events: []kvevent.Event{
				with(chain(12, 3, 4), func(e *kvevent.Event) { e.BlockSize = 8; e.Hashes = []kvevent.Hash{34} }),
				with(chain(0, 1, 2, 5, 6), func(e *kvevent.Event) { e.BlockSize = 8; e.Hashes = []kvevent.Hash{12, 56} }),
				removed(56),
			},
			want: gpu(keyOf(1), keyOf(1, 2), keyOf(1, 2, 3), keyOf(1, 2, 3, 4)),
		},
		"nothing at all": {events: []kvevent.Event{{Kind: kvevent.Stored}, {Kind: kvevent.Removed}, {}}, want: gpu()},
	} {
		t.Run(name, func(t *testing.T) {
			for how, batches := range map[string][][]kvevent.Event{
				"in one batch":              {tc.events},
				"in a batch for each event": slices.Collect(slices.Chunk(tc.events, 1)),
			} {
				m, x := testMirror(Config{})
				for _, events := range batches {
					m.apply(&kvevent.Batch{Events: events})
				}
				if diff := cmp.Diff(tc.want, x.snapshot()); diff != "" {
					t.Errorf("%s: index (-want +got):\n%s", how, diff)
				}
				if tc.counter != nil {
					if got := tc.counter(m.stats); got != tc.count {
						t.Errorf("%s: counted %d, want %d", how, got, tc.count)
					}
				}
				if len(x.wrong) > 0 {
					t.Error(x.wrong)
				}
				check(t, m, x)
			}
		})
	}
}

// check looks for what must not be.
func check(t *testing.T, m *mirror, x *fakeIndex) {
	t.Helper()
	known := map[blockID]bool{}
	x.Each(func(b kvindex.Block) bool {
		known[blockID{b.Hash, int32(b.Group)}] = true
		if b.Copies == [kvblock.NumTiers]int{} {
			t.Errorf("%v is kept without a copy", b)
		}
		return true
	})
	for id := range known {
		if m.orphans.byID[id] != nil {
			t.Errorf("%v is an orphan too", id)
		}
	}
	if x.snapshot(); len(x.wrong) > 0 {
		t.Error(x.wrong)
	}
	s := m.orphans
	bytes, siblings := 0, 0
	for _, o := range s.byID {
		bytes += o.size()
		if known[o.parent] {
			t.Errorf("%v waits for %v, which is held", o.id, o.parent)
		}
	}
	for parent, o := range s.byParent {
		for ; o != nil; o = o.next {
			siblings++
			if o.parent != parent || s.byID[o.id] != o || o.next != nil && o.next.prev != o {
				t.Errorf("%v is out of place among the siblings of %v", o.id, parent)
			}
		}
	}
	if bytes != s.bytes || siblings != len(s.byID) || s.ages.Len() != len(s.byID) {
		t.Errorf("%d orphans, %d siblings, %d ages; %d bytes counted as %d", len(s.byID), siblings, s.ages.Len(), bytes, s.bytes)
	}
	if len(s.byID) > s.maxCount || s.bytes > s.maxBytes || x.Len() > m.max {
		t.Errorf("beyond the bounds: %d orphans, %d bytes, %d blocks", len(s.byID), s.bytes, x.Len())
	}
	if m.stats.Blocks.Load() != int64(x.Len()) || m.stats.Orphans.Load() != int64(len(s.byID)) ||
		m.stats.OrphanBytes.Load() != int64(s.bytes) {
		t.Error("the gauges are not what is held")
	}
}

// plainMirror is the mirror as one would explain it: copies of blocks by hash, and blocks get their key once their
// parent has one.
type plainMirror map[kvevent.Hash]*plainBlock

type plainBlock struct {
	parent kvevent.Hash
	tokens []uint32
	key    kvblock.Key // 0 while its parent has none
	copies [kvblock.NumTiers]int
}

func (p plainMirror) store(parent kvevent.Hash, tier kvblock.Tier, tokens []uint32, hashes ...kvevent.Hash) {
	for i, h := range hashes {
		if p[h] == nil {
			p[h] = &plainBlock{parent: parent, tokens: tokens[i*blockTokens : (i+1)*blockTokens]}
		}
		p[h].copies[tier]++
		parent = h
		p.key()
	}
}

func (p plainMirror) key() {
	for again := true; again; {
		again = false
		for _, b := range p {
			parent := seed.Root("m", "")
			if b.parent != 0 {
				if p[b.parent] == nil {
					continue
				}
				parent = p[b.parent].key
			}
			if b.key == 0 && parent != 0 {
				b.key, again = kvblock.Next(parent, b.tokens, 0), true
			}
		}
	}
}

func (p plainMirror) remove(tier kvblock.Tier, h kvevent.Hash) {
	if b := p[h]; b != nil && b.copies[tier] > 0 {
		if b.copies[tier]--; b.copies == [kvblock.NumTiers]int{} {
			delete(p, h)
		}
	}
}

func (p plainMirror) places() map[place]int {
	out := map[place]int{}
	for _, b := range p {
		for tier, n := range b.copies {
			if n > 0 && b.key != 0 {
				out[place{kvblock.Tier(tier), b.key}]++
			}
		}
	}
	return out
}

func TestMirrorAgreesWithThePlainOne(t *testing.T) {
	const hashes = 24
	seeds := uint64(60)
	if race.Enabled { // there is one goroutine
		seeds /= 10
	}
	for n := range seeds {
		rng := rand.New(rand.NewPCG(n, 4))
		// A fixed forest: the parent of a block is a lower one, or none.
		parents := make([]kvevent.Hash, hashes+1)
		for h := 1; h <= hashes; h++ {
			parents[h] = kvevent.Hash(rng.IntN(h))
		}
		tokens := func(h kvevent.Hash) []uint32 { return chain(0, h).Tokens }
		m, x := testMirror(Config{})
		p := plainMirror{}
		for step := range 300 {
			h := kvevent.Hash(1 + rng.IntN(hashes))
			tier := kvblock.Tier(rng.IntN(2))
			medium := [...]string{"GPU", "CPU"}[tier]
			var e kvevent.Event
			switch n := rng.IntN(20); {
			case n < 9:
				// A path of the forest downwards, ending at h.
				path := []kvevent.Hash{h}
				for parents[path[0]] != 0 && rng.IntN(2) == 0 {
					path = slices.Insert(path, 0, parents[path[0]])
				}
				e = chain(parents[path[0]], path...)
				p.store(parents[path[0]], tier, e.Tokens, path...)
			case n < 11:
				e = kvevent.Event{Kind: kvevent.Stored, Hashes: []kvevent.Hash{h}}
				if p[h] != nil {
					p.store(parents[h], tier, tokens(h), h)
				}
			default:
				e = removed(h)
				p.remove(tier, h)
			}
			e.Medium = strings.ToLower(medium)
			if e.Medium == "cpu" {
				e.Medium = "CPU" // "cpu" is another tier in this pool
			}
			m.apply(&kvevent.Batch{Events: []kvevent.Event{e}})
			if want, got := p.places(), x.snapshot(); !maps.Equal(want, got) {
				diff := cmp.Diff(want, got)
				t.Fatalf("seed %d, step %d, %+v: index (-plain +mirror):\n%s", n, step, e, diff)
			}
		}
		check(t, m, x)
		if len(x.wrong) > 0 {
			t.Fatal(x.wrong)
		}
	}
}

func TestOrphansAreBoundedAndTheOldestGo(t *testing.T) {
	for name, c := range map[string]Config{
		"in number": {MaxOrphans: 3},
		"in bytes":  {MaxOrphanBytes: 3 * (orphanBytes + 4*blockTokens)},
	} {
		t.Run(name, func(t *testing.T) {
			m, x := testMirror(c)
			m.apply(&kvevent.Batch{Events: []kvevent.Event{chain(1, 11), chain(1, 12), chain(2, 13), chain(1, 14), chain(2, 15)}})
			check(t, m, x)
			if got := m.stats.OrphansDropped.Load(); got != 2 {
				t.Errorf("%d dropped, want 2", got)
			}
			m.apply(&kvevent.Batch{Events: []kvevent.Event{chain(0, 1), chain(0, 2)}})
			want := gpu(keyOf(1), keyOf(2), keyOf(2, 13), keyOf(1, 14), keyOf(2, 15))
			if diff := cmp.Diff(want, x.snapshot()); diff != "" {
				t.Errorf("index (-want +got):\n%s", diff)
			}
			check(t, m, x)
		})
	}
}

func TestBlocksAreBounded(t *testing.T) {
	m, x := testMirror(Config{MaxBlocks: 2})
	m.apply(&kvevent.Batch{Events: []kvevent.Event{chain(0, 1, 2, 3, 4), chain(0, 5)}})
	if diff := cmp.Diff(gpu(keyOf(1), keyOf(1, 2)), x.snapshot()); diff != "" {
		t.Errorf("index (-want +got):\n%s", diff)
	}
	if m.stats.Refused.Load() == 0 {
		t.Error("nothing counted as refused")
	}
	check(t, m, x)
	m.apply(&kvevent.Batch{Events: []kvevent.Event{removed(2), chain(0, 6)}})
	if diff := cmp.Diff(gpu(keyOf(1), keyOf(6)), x.snapshot()); diff != "" {
		t.Errorf("index after a removal (-want +got):\n%s", diff)
	}
	check(t, m, x)
}

func TestCopiesDoNotWrapAround(t *testing.T) {
	m, x := testMirror(Config{})
	e := chain(0, 1)
	for range math.MaxUint16 + 10 {
		m.apply(&kvevent.Batch{Events: []kvevent.Event{e}})
	}
	if diff := cmp.Diff(gpu(keyOf(1)), x.snapshot()); diff != "" {
		t.Errorf("index (-want +got):\n%s", diff)
	}
}

// Applying what is known already, and removing it, costs no memory.
func TestApplyingKnownBlocksAllocatesNothing(t *testing.T) {
	m, _ := testMirror(Config{})
	index := kvindex.NewIndex(kvindex.Options{})
	m.writer = index.Writer(index.Join())
	m.apply(&kvevent.Batch{Events: []kvevent.Event{chain(0, 1, 2, 3, 4)}})
	b := &kvevent.Batch{Events: []kvevent.Event{chain(0, 1, 2, 3, 4), removed(4, 3, 2, 1)}}
	m.apply(b)
	if got := testing.AllocsPerRun(100, func() { m.apply(b) }); got > 0 {
		t.Errorf("%v allocations per batch", got)
	}
}

// goldenPayloads are event batches of real publishers.
func goldenPayloads(t testing.TB) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("../vllm/testdata/kv-events/*/*.hex")
	if err != nil || len(paths) < 90 {
		t.Fatalf("%d golden frames, %v", len(paths), err)
	}
	out := map[string][]byte{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		payload, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		out[filepath.Base(filepath.Dir(path))+"/"+strings.TrimSuffix(filepath.Base(path), ".hex")] = payload
	}
	return out
}

// FuzzMirror applies anything that an engine can publish: the bounds hold and the index equals the mirror.
func FuzzMirror(f *testing.F) {
	for _, payload := range goldenPayloads(f) {
		f.Add(payload, payload)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		m, x := testMirror(Config{MaxBlocks: 8, MaxOrphans: 4, MaxOrphanBytes: 4 << 10})
		decoder := vllm.NewDecoder("VLLM")
		var b kvevent.Batch
		for _, payload := range [][]byte{first, second, first} {
			if err := decoder.Decode(payload, &b); err == nil {
				m.apply(&b)
			}
			check(t, m, x)
		}
		if len(x.wrong) > 0 {
			t.Error(x.wrong)
		}
	})
}

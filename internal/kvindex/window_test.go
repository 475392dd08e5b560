package kvindex

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// hybrid is an engine with a group of full attention (number 0, unless there is none) and others, as vLLM decides about
// hits: each group shortens the hit from right to left until all of them agree.
type hybrid struct {
	full  int // keys in a block of the group of full attention, 0 for none
	rules []Window
	held  []map[int]bool // by group, of the blocks of one chain by number; the first is full attention's
	known []bool         // groups that have stored something
}

// hit is the longest hit among the first most keys.
func (h *hybrid) hit(most int) int {
	align := max(1, h.full)
	for _, rule := range h.rules {
		for n := align; ; n += align {
			if n%rule.Keys == 0 {
				align = n
				break
			}
		}
	}
	n := most / align * align
	for {
		before := n
		if h.full > 0 {
			blocks := 0
			for h.held[0][blocks] && (blocks+1)*h.full <= n {
				blocks++
			}
			n = blocks * h.full / align * align
		}
		for i, rule := range h.rules {
			n = h.byWindow(rule, h.held[i+1], n, align)
		}
		if n == before {
			return n
		}
	}
}

// byWindow looks for enough blocks without a gap that end at an aligned place, from the right.
func (h *hybrid) byWindow(rule Window, held map[int]bool, most, align int) int {
	run, end := 0, 0
	for block := most/rule.Keys - 1; block >= 0; block-- {
		if !held[block] {
			run = 0
			continue
		}
		if run == 0 {
			if (block+1)*rule.Keys%align != 0 {
				continue
			}
			end = (block + 1) * rule.Keys
		}
		if run++; run >= rule.Blocks {
			return end
		}
	}
	if run > 0 {
		return end // down to the first block
	}
	return 0
}

// TestWindowsEndAMatchWhereTheEngineDoes: the model above follows vLLM's v1/core/kv_cache_coordinator.py. Real engines judge sliding
// windows (test/real); what holds for Mamba layers comes from the source only.
func TestWindowsEndAMatchWhereTheEngineDoes(t *testing.T) {
	for name, newBook := range map[string]func() Book{"index": func() Book { return NewIndex(Options{}) }, "table": func() Book { return New() }} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(7, 8))
			shorter := 0
			for range 300 {
				shorter += playWindows(t, rng, newBook())
			}
			if shorter < 100 {
				t.Errorf("windows shortened only %d matches", shorter)
			}
		})
	}
}

// playWindows adds and removes blocks of a random hybrid, and compares matches with its hits.
func playWindows(t *testing.T, rng *rand.Rand, book Book) (shorter int) {
	h := &hybrid{full: []int{0, 1, 2, 4}[rng.IntN(4)], held: []map[int]bool{{}}}
	for range 1 + rng.IntN(3) {
		h.rules = append(h.rules, Window{Keys: []int{1, 2, 4}[rng.IntN(3)], Blocks: 1 + rng.IntN(5)})
		h.held = append(h.held, map[int]bool{})
	}
	h.known = make([]bool, len(h.held))
	h.known[0] = h.full == 0
	f := newForest(rng, 48, 48)
	keys := f.keysOf(f.path(longestPath(f), 1<<20))
	holder := book.Join()
	w := book.Writer(holder)
	for range 400 {
		group := rng.IntN(len(h.held))
		block, size := rng.IntN(len(keys)), h.full
		if group > 0 {
			size = h.rules[group-1].Keys
		}
		if size == 0 || (block+1)*size > len(keys) {
			continue
		}
		hash := []kvevent.Hash{kvevent.Hash(1000*size + block + 1)}
		switch come := rng.IntN(5) > 0; {
		case come == h.held[group][block]:
		case !come:
			w.Drop(kvblock.GPU, group, hash)
		case group == 0 && block > 0 && !h.held[0][block-1]:
			continue // full attention is filled from the left
		case group == 0:
			parent := Parent{Hash: hash[0] - 1, OK: block > 0}
			w.Store(kvblock.GPU, 0, parent, hash, keys[block*size:(block+1)*size])
			h.held[group][block] = true
		default:
			w.StoreWindow(kvblock.GPU, group, h.rules[group-1], hash, []kvblock.Key{keys[(block+1)*size-1]})
			h.held[group][block] = true
		}
		if w.Copies(kvblock.GPU, group, hash[0]) == 0 {
			delete(h.held[group], block)
		}
		h.known[group] = h.known[group] || h.held[group][block]
		shorter += judgeWindows(t, rng, h, book, holder, keys)
	}
	w.Clear()
	var out [1]Match
	if book.Match(keys, []Holder{holder}, out[:]); out[0] != (Match{}) || w.Len() != 0 {
		t.Fatalf("a cleared holder matches %+v and knows %d blocks", out[0], w.Len())
	}
	return shorter
}

func judgeWindows(t *testing.T, rng *rand.Rand, h *hybrid, book Book, holder Holder, keys []kvblock.Key) (shorter int) {
	t.Helper()
	if slices.Contains(h.known, false) {
		return 0 // a group that has not stored anything is not known, but a hit needs it
	}
	n := 1 + rng.IntN(len(keys))
	var out [1]Match
	book.Match(keys[:n], []Holder{holder}, out[:])
	got, want := out[0].Blocks(), h.hit(n)
	if got != want {
		t.Fatalf("%d of %d keys match, the engine finds %d: %+v", got, n, want, h)
	}
	if want < n {
		shorter++
	}
	return shorter
}

// longestPath is the last block of the longest chain.
func longestPath(f *forest) int {
	deepest := 0
	for i, depth := range f.depth {
		if depth > f.depth[deepest] {
			deepest = i
		}
	}
	return deepest
}

// A window is kept through a shadow, and its memory is freed.
func TestWindowsGoWithTheirLife(t *testing.T) {
	ix := NewIndex(Options{})
	windowsGo(t, ix)
	once := ix.Bytes()
	windowsGo(t, ix)
	if twice := ix.Bytes(); twice != once {
		t.Errorf("the index takes %d bytes after the first time and %d after the second", once, twice)
	}
}

func windowsGo(t *testing.T, ix *Index) {
	t.Helper()
	holder := ix.Join()
	w := ix.Writer(holder)
	keys := []kvblock.Key{11, 12, 13, 14}
	hashes := []kvevent.Hash{1, 2, 3, 4}
	shadow := w.Shadow()
	shadow.Store(kvblock.GPU, 0, Parent{}, hashes, keys)
	shadow.StoreWindow(kvblock.GPU, 1, Window{Keys: 1, Blocks: 2}, hashes[2:], keys[2:])
	var out [1]Match
	if ix.Match(keys, []Holder{holder}, out[:]); out[0].Blocks() != 0 {
		t.Errorf("a shadow is seen: %+v", out[0])
	}
	shadow.Commit()
	if ix.Match(keys, []Holder{holder}, out[:]); out[0].Blocks() != 4 {
		t.Errorf("%d blocks match, not 4", out[0].Blocks())
	}
	if ix.Match(keys[:3], []Holder{holder}, out[:]); out[0].Blocks() != 0 {
		t.Errorf("%d blocks match without the window, not 0", out[0].Blocks())
	}
	if n := w.Drop(kvblock.GPU, 1, hashes[2:]); n != 0 {
		t.Errorf("%d blocks of the window are not known", n)
	}
	if ix.Match(keys, []Holder{holder}, out[:]); out[0].Blocks() != 0 {
		t.Errorf("%d blocks match after the window has gone", out[0].Blocks())
	}
	ix.Leave(holder)
	ix.Settle()
}

func TestTheDigestOfAGroupWithAWindowIsThatOfItsBlocks(t *testing.T) {
	index, table := NewIndex(Options{}), New()
	for name, w := range map[string]Writer{"index": index.Writer(index.Join()), "table": table.Writer(table.Join())} {
		t.Run(name, func(t *testing.T) {
			rule := Window{Keys: 1, Blocks: 2}
			w.StoreWindow(kvblock.GPU, 1, rule, nil, nil) // known, and empty
			if d := w.Digest(kvblock.GPU, 1); d != (Digest{}) {
				t.Errorf("%d blocks in an empty group", d.Blocks)
			}
			w.StoreWindow(kvblock.GPU, 1, rule, []kvevent.Hash{1, 2, 3, 2}, []kvblock.Key{11, 12, 13, 12})
			w.StoreWindow(kvblock.CPU, 1, rule, []kvevent.Hash{1}, []kvblock.Key{11})
			w.Drop(kvblock.GPU, 1, []kvevent.Hash{1, 2})
			var want Digest
			want.Add(12) // its second copy
			want.Add(13)
			if d := w.Digest(kvblock.GPU, 1); d != want {
				t.Errorf("%d blocks, want %d", d.Blocks, want.Blocks)
			}
		})
	}
}

func TestAModelWhoseFullAttentionHoldsNothingHasNoHits(t *testing.T) {
	index := NewIndex(Options{})
	h := index.Join()
	index.Writer(h).StoreWindow(kvblock.GPU, 1, Window{Keys: 1, Blocks: 1, Full: 1}, []kvevent.Hash{1}, []kvblock.Key{11})
	var out [1]Match
	index.Match([]kvblock.Key{11}, []Holder{h}, out[:])
	if n := out[0].Blocks(); n != 0 {
		t.Errorf("%d blocks match", n)
	}
}

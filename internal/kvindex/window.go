package kvindex

import (
	"sync"
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// Window is the rule of a KV cache group whose hits need only the last blocks before the hit's end: sliding-window
// attention, or the state of a Mamba layer.
type Window struct {
	// Keys in one engine block of the group, at least 1.
	Keys int
	// Blocks of the group that must be held up to the end of a hit, at least 1. A hit that is shorter needs all of it.
	Blocks int
	// Full is the number of keys in one block of the full-attention groups, if known; groups that have stored blocks
	// provide it themselves. 0 is a model without such groups: its windows alone decide.
	Full int
}

// windows are the groups of one generation that have a Window: hybrid and sliding-window models. A generation of any other model has
// none, and costs nothing for them.
//
// A hit ends where every group can begin to compute: all blocks of the groups of full attention up to there, and the last
// Window.Blocks of each other group. So a match by full attention is shortened to the last place where all windows are
// held. A model without full attention has no such match to begin with: its windows alone decide.
//
// Blocks are maps here, about 100 bytes each: a group is not a prefix tree, because its early blocks are evicted first.
type windows struct {
	bytes *atomic.Int64 // of the index; nil where it is not counted

	mu     sync.RWMutex // guards all that follows; writers hold the generation's mutex, too
	full   int          // keys in a block of the groups of full attention, 0 while they have stored none
	groups []windowGroup
}

type windowGroup struct {
	Window
	group  int
	blocks map[kvevent.Hash]windowBlock
	held   map[kvblock.Key]uint32 // hashes by the key at their end
}

type windowBlock struct {
	key    kvblock.Key // at the block's end
	copies [kvblock.NumTiers]uint16
}

// windowBlockBytes is about what a block takes in both maps.
const windowBlockBytes = 100

// find returns a group; nil if it is none with a window. It can be called on nil. mu is locked, or the generation's.
func (w *windows) find(group int) *windowGroup {
	if w == nil {
		return nil
	}
	for i := range w.groups {
		if w.groups[i].group == group {
			return &w.groups[i]
		}
	}
	return nil
}

// store counts one more copy of blocks. keys are those at the blocks' ends, 0 for blocks that are skipped.
func (w *windows) store(tier kvblock.Tier, group int, rule Window, hashes []kvevent.Hash, keys []kvblock.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.find(group)
	if g == nil {
		w.groups = append(w.groups, windowGroup{
			Window: rule, group: group, blocks: map[kvevent.Hash]windowBlock{}, held: map[kvblock.Key]uint32{},
		})
		g = &w.groups[len(w.groups)-1]
	}
	g.Window = rule
	w.full = max(w.full, rule.Full)
	for i, hash := range hashes {
		b, known := g.blocks[hash]
		switch {
		case known:
		case keys[i] == 0:
			continue
		default:
			b.key = keys[i]
			g.held[b.key]++
			w.take(windowBlockBytes)
		}
		if b.copies[tier] < ^uint16(0) {
			b.copies[tier]++
		}
		g.blocks[hash] = b
	}
}

// copy counts one more copy of a known block.
func (w *windows) copy(g *windowGroup, tier kvblock.Tier, hash kvevent.Hash) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	b, ok := g.blocks[hash]
	if ok && b.copies[tier] < ^uint16(0) {
		b.copies[tier]++
		g.blocks[hash] = b
	}
	return ok
}

// drop removes one copy; gone is the key of the block if that was its last copy in all tiers, else 0.
func (w *windows) drop(g *windowGroup, tier kvblock.Tier, hash kvevent.Hash) (gone kvblock.Key, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b, ok := g.blocks[hash]
	if !ok || b.copies[tier] == 0 {
		return 0, false
	}
	b.copies[tier]--
	return w.put(g, hash, b), true
}

// put stores the remaining copies of a block, and returns its key if none remains.
func (w *windows) put(g *windowGroup, hash kvevent.Hash, b windowBlock) (gone kvblock.Key) {
	if b.copies != [kvblock.NumTiers]uint16{} {
		g.blocks[hash] = b
		return 0
	}
	delete(g.blocks, hash)
	w.take(-windowBlockBytes)
	if g.held[b.key]--; g.held[b.key] == 0 {
		delete(g.held, b.key)
	}
	return b.key
}

func (w *windows) take(bytes int64) {
	if w.bytes != nil {
		w.bytes.Add(bytes)
	}
}

// clearTier forgets all copies in a tier.
func (w *windows) clearTier(tier kvblock.Tier) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.groups {
		g := &w.groups[i]
		for hash, b := range g.blocks {
			b.copies[tier] = 0
			w.put(g, hash, b)
		}
	}
}

// release frees the memory.
func (w *windows) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.take(-windowBlockBytes * int64(w.len()))
	w.groups = nil
}

// len is the number of blocks. mu is locked, or the generation's.
func (w *windows) len() (n int) {
	if w != nil {
		for i := range w.groups {
			n += len(w.groups[i].blocks)
		}
	}
	return n
}

// each calls f for every block until it returns false.
func (w *windows) each(f func(Block) bool) {
	if w == nil {
		return
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	for i := range w.groups {
		for hash, b := range w.groups[i].blocks {
			out := Block{Hash: hash, Group: w.groups[i].group, Key: b.key}
			for tier, n := range b.copies {
				out.Copies[tier] = int(n)
			}
			if !f(out) {
				return
			}
		}
	}
}

// digest is made when it is asked for: few groups have so many blocks that it would be worth keeping. It can be called on
// nil.
func (w *windows) digest(tier kvblock.Tier, group int) (d Digest) {
	if w == nil {
		return d
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	if g := w.find(group); g != nil {
		for _, b := range g.blocks {
			if b.copies[tier] > 0 {
				d.Add(b.key)
			}
		}
	}
	return d
}

// stored notes that groups of full attention have blocks of so many keys.
func (w *windows) stored(perHash int) {
	if w == nil || w.full >= perHash {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.full = perHash
}

// trim shortens a match by full attention to where all windows are held. A match that a guess completes stays as it is:
// the request that the guess is about fills all groups.
func (w *windows) trim(keys []kvblock.Key, m Match) Match {
	if m.Speculative > 0 {
		return m
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	if len(w.groups) == 0 {
		return m // the generation has ended
	}
	n := m.Blocks()
	if w.full == 0 {
		n = len(keys)
	}
	if n = w.longest(keys, n); n > m.Blocks() {
		m = Match{}
		m.Tiers[kvblock.GPU] = uint32(n) // keys of one prompt
	}
	return m.Whole(n, 1)
}

// longest is the last place among the first n keys where all windows are held; mu is locked.
func (w *windows) longest(keys []kvblock.Key, n int) int {
	align := max(1, w.full)
	for i := range w.groups {
		align = commonMultiple(align, w.groups[i].Keys)
	}
	for n -= n % align; n > 0; {
		missing := 0
		for i := range w.groups {
			missing = max(missing, w.groups[i].missing(keys, n))
		}
		if missing == 0 {
			return n
		}
		n = (missing - 1) / align * align // a hit that ends later needs the missing block, too
	}
	return 0
}

// missing is where the last block that a hit of n keys needs and the group lacks ends; 0 if it lacks none.
func (g *windowGroup) missing(keys []kvblock.Key, n int) int {
	for block := 0; block < g.Blocks && n > 0; block++ {
		if g.held[keys[n-1]] == 0 {
			return n
		}
		n -= g.Keys
	}
	return 0
}

// maxMultiple bounds the alignment of hits, in keys.
const maxMultiple = 1 << 16

func commonMultiple(a, b int) int {
	x, y := a, max(1, b)
	for y != 0 {
		x, y = y, x%y
	}
	return min(a/x*max(1, b), maxMultiple)
}

// windowable reports whether blocks of a group with a window can be stored.
func windowable(tier kvblock.Tier, group int, rule Window, hashes []kvevent.Hash, keys []kvblock.Key) bool {
	return indexable(tier, group) && rule.Keys > 0 && rule.Blocks > 0 && len(hashes) == len(keys)
}

// StoreWindow implements Writer.
func (w *writer) StoreWindow(tier kvblock.Tier, group int, rule Window, hashes []kvevent.Hash, keys []kvblock.Key) (refused int) {
	if !windowable(tier, group, rule, hashes, keys) {
		return len(hashes)
	}
	l := w.lock()
	if l == nil {
		return 0
	}
	ws := l.windows.Load()
	if ws == nil {
		ws = &windows{bytes: &w.ix.bytes, full: l.full}
		l.windows.Store(ws)
		w.ix.flag(l)
	}
	ws.store(tier, group, rule, hashes, keys)
	l.mu.Unlock()
	w.ix.balance()
	return countZero(keys)
}

// countZero is how many blocks have no key.
func countZero(keys []kvblock.Key) (n int) {
	for _, key := range keys {
		if key == 0 {
			n++
		}
	}
	return n
}

// count counts one copy less of blocks, or one more, and returns how many are not known.
func (w *windows) count(g *windowGroup, tier kvblock.Tier, hashes []kvevent.Hash, less bool, gone func(kvblock.Key)) (unknown int) {
	for _, hash := range hashes {
		if !less {
			if !w.copy(g, tier, hash) {
				unknown++
			}
			continue
		}
		key, ok := w.drop(g, tier, hash)
		if !ok {
			unknown++
		} else if key != 0 && gone != nil {
			gone(key)
		}
	}
	return unknown
}

// matchWindows shortens the matches of holders that have groups with windows.
func (ix *Index) matchWindows(l *lookup, keys []kvblock.Key, out []Match) {
	for i, word := range l.words {
		if word&windowsBit == 0 {
			continue
		}
		if generation := ix.generationOf(l.holders[i]); generation != nil {
			if ws := generation.windows.Load(); ws != nil {
				out[i] = ws.trim(keys, out[i])
			}
		}
	}
}

// StoreWindow implements Writer.
func (w *plainWriter) StoreWindow(tier kvblock.Tier, group int, rule Window, hashes []kvevent.Hash, keys []kvblock.Key) (refused int) {
	if !windowable(tier, group, rule, hashes, keys) {
		return len(hashes)
	}
	if !w.ready() {
		return 0
	}
	ws := w.windows()
	if ws == nil {
		ws = &windows{full: w.full}
		w.table.mu.Lock()
		w.table.windows[w.slot] = ws
		w.table.mu.Unlock()
	}
	ws.store(tier, group, rule, hashes, keys)
	return countZero(keys)
}

// windows are those of the writer's generation, nil if there are none.
func (w *plainWriter) windows() *windows {
	if !w.ready() {
		return nil
	}
	w.table.mu.RLock()
	defer w.table.mu.RUnlock()
	return w.table.windows[w.slot]
}

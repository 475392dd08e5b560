package kvindex

import (
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// check visits all parts of an index and fails the test where one contradicts another. The index must not be in use
// meanwhile.
func (ix *Index) check(t *testing.T) {
	t.Helper()
	ix.Settle()
	bytes := int64(0)
	for i := range ix.heads.shards {
		shard := &ix.heads.shards[i]
		table := *shard.table.Load()
		bytes += int64(len(table)) * headSlotSize
		live := 0
		for j := range table {
			id := table[j].run.Load()
			if id == 0 {
				continue
			}
			live++
			r := ix.runs.get(id)
			if r == nil {
				t.Fatalf("key %x heads run %d, which is not there", table[j].key.Load(), id)
			}
			if uint64(r.keys[0]) != table[j].key.Load() {
				t.Fatalf("key %x heads run %d, which begins with %x", table[j].key.Load(), id, r.keys[0])
			}
		}
		if live != shard.live || shard.used < live || shard.used >= len(table) {
			t.Fatalf("shard has %d keys, says %d of %d used, table %d", live, shard.live, shard.used, len(table))
		}
	}
	bytes += ix.checkRuns(t)
	bytes += ix.checkLives(t)
	for _, p := range *ix.pages.Load() {
		if p != nil {
			bytes += pageSize
		}
	}
	if got := ix.bytes.Load(); got != bytes {
		t.Fatalf("index says it takes %d bytes, it takes %d", got, bytes)
	}
}

func (ix *Index) checkRuns(t *testing.T) (bytes int64) {
	t.Helper()
	where := map[kvblock.Key]spot{}
	for at, chunk := range *ix.runs.chunks.Load() {
		if chunk == nil {
			continue
		}
		bytes += runChunkSize
		for i := range chunk.runs {
			r := chunk.runs[i].Load()
			if r == nil {
				continue
			}
			id := uint32(at*runChunkLen + i)
			bytes += r.bytes()
			if r.id != id || int(r.width) != (len(r.keys)+63)/64 || len(r.cells)*(int(r.width)+1) != cap(r.cells) || len(r.cells) == 0 {
				t.Fatalf("run %d: id %d, width %d, %d words of cells", id, r.id, r.width, len(r.cells))
			}
			if ix.heads.find(r.keys[0]) != id {
				t.Fatalf("run %d is not found by its first key", id)
			}
			held := r.held()
			if int(r.top) != held.top() || int(r.n.Load()) < int(r.top) || int(r.n.Load()) > len(r.keys) {
				t.Fatalf("run %d: top %d, held up to %d, n %d, room %d", id, r.top, held.top(), r.n.Load(), len(r.keys))
			}
			if !r.wanted(0, 0) {
				t.Fatalf("run %d has only idle cells", id)
			}
			for c, header := range r.cells {
				if m := r.load(c); m.empty() && !idle(header) || m.ones() != int(header&onesMask) {
					t.Fatalf("run %d has a cell %x with a header %x", id, m, header)
				}
				if c > 0 && header&^onesMask <= r.cells[c-1]&^onesMask {
					t.Fatalf("run %d: cells are not sorted", id)
				}
			}
			for offset, key := range r.keys[:r.n.Load()] {
				if offset >= int(r.top) {
					continue // not in use
				}
				if other, ok := where[key]; ok {
					t.Fatalf("key %x stands at %x and %x", key, other, spotOf(id, offset))
				}
				where[key] = spotOf(id, offset)
			}
		}
	}
	return bytes
}

func (ix *Index) checkLives(t *testing.T) (bytes int64) {
	t.Helper()
	bits := map[uint64]int{}
	for l := range ix.generations {
		bytes += generationBytes + l.rev.bytes() + int64(len(l.digests))*digestBytes + int64(l.windows.Load().len())*windowBlockBytes
		announced := map[spotTier]uint32{}
		keys := map[kvblock.Key]bool{}
		n, orphans := 0, 0
		for i := range l.rev.entries {
			e := &l.rev.entries[i]
			if e.vacant() {
				continue
			}
			n++
			if at, ok := l.rev.find(e.hash, e.group()); !ok || at != i {
				t.Fatalf("slot %d: block %x is not found where it is", l.slot, e.hash)
			}
			keys[l.keyOf(ix, e)] = true
			if e.at == noSpot {
				orphans++
				continue
			}
			for tier := range kvblock.Tier(kvblock.NumTiers) {
				if e.count(tier) > 0 {
					announced[spotTier{e.at, tier}]++
				}
			}
		}
		if n != l.rev.n || orphans != len(l.orphans) {
			t.Fatalf("slot %d: %d entries and %d orphans, says %d and %d", l.slot, n, orphans, l.rev.n, len(l.orphans))
		}
		if orphans == 0 && int(l.held.Load()) != len(keys) {
			t.Fatalf("slot %d has %d keys, says %d", l.slot, len(keys), l.held.Load())
		}
		aliases := 0
		for at, n := range announced {
			bits[headerOf(l.slot, uint8(at.tier))]++
			r := ix.runs.get(at.at.run())
			c, ok := r.cellOf(l.slot, uint8(at.tier))
			if m := r.load(c); !ok || !m.has(at.at.offset()) {
				t.Fatalf("slot %d: nothing at %x", l.slot, at.at)
			}
			if n-1 != l.aliases[at] {
				t.Fatalf("slot %d: %d announcers at %x, %d aliases", l.slot, n, at.at, l.aliases[at])
			}
			if n > 1 {
				aliases++
			}
		}
		if aliases != len(l.aliases) {
			t.Fatalf("slot %d: %d keys with aliases, says %d", l.slot, aliases, len(l.aliases))
		}
		guessed, parts := int64(0), 0
		for run, list := range l.guesses {
			guessed += int64(covered(list))
			c, ok := ix.runs.get(run).cellOf(l.slot, tierGuess)
			if m := ix.runs.get(run).load(c); !ok || m != stretchMask(0, covered(list)) {
				t.Fatalf("slot %d: guesses cover %d blocks of run %d, mask is %x", l.slot, covered(list), run, m)
			}
			bits[headerOf(l.slot, tierGuess)] += covered(list)
			for _, g := range list {
				parts += g.n
			}
		}
		if guessed != l.guessed.Load() {
			t.Fatalf("slot %d: %d blocks guessed, says %d", l.slot, guessed, l.guessed.Load())
		}
		if parts < l.guessN {
			t.Fatalf("slot %d: %d guesses cover %d runs", l.slot, l.guessN, parts)
		}
		bytes += guessSize * int64(l.guessN)
	}
	for _, chunk := range *ix.runs.chunks.Load() {
		if chunk == nil {
			continue
		}
		for i := range chunk.runs {
			if r := chunk.runs[i].Load(); r != nil {
				for c, header := range r.cells {
					m := r.load(c)
					bits[header&^onesMask] -= m.blocks()
				}
			}
		}
	}
	for header, n := range bits {
		if n != 0 {
			t.Fatalf("slot %d, tier %d: %d blocks told minus bits set", header>>slotShift, tierOf(header), n)
		}
	}
	return bytes
}

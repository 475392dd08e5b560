package kvindex

import (
	"sync"
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

const (
	headShards   = 64
	headSlots    = 8 // of an empty shard
	headSlotSize = 16
)

// heads maps the first keys of runs to the runs' numbers. Readers take no lock; writers lock a shard. A number can be out
// of date by the time it is used, so readers compare keys after following it.
type heads struct {
	shards [headShards]headShard
	salt   uint64
	bytes  *atomic.Int64
}

type headShard struct {
	mu    sync.Mutex
	live  int // keys with a run
	used  int // keys, including those whose run was deleted
	table atomic.Pointer[[]headSlot]
	_     [64]byte
}

// headSlot is vacant while its key is 0. The key never changes afterwards; the run is 0 once it was deleted.
type headSlot struct {
	key atomic.Uint64
	run atomic.Uint32
}

func (h *heads) init(salt uint64, bytes *atomic.Int64) {
	h.salt, h.bytes = salt, bytes
	for i := range h.shards {
		table := make([]headSlot, headSlots)
		h.shards[i].table.Store(&table)
	}
	bytes.Add(headShards * headSlots * headSlotSize)
}

// find is the run that begins with a key, 0 if there is none.
func (h *heads) find(key kvblock.Key) uint32 {
	where := blend(uint64(key), h.salt)
	table := *h.shards[where>>58].table.Load()
	mask := uint64(len(table) - 1)
	for i := where; ; i++ {
		s := &table[i&mask]
		switch s.key.Load() {
		case uint64(key):
			return s.run.Load()
		case 0:
			return 0
		}
	}
}

// insert lets a key lead to a run, unless it leads to another one already, which it returns.
func (h *heads) insert(key kvblock.Key, run uint32) (other uint32) {
	where := blend(uint64(key), h.salt)
	shard := &h.shards[where>>58]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	table := *shard.table.Load()
	if (shard.used+1)*4 > len(table)*3 {
		table = h.rebuild(shard)
	}
	mask := uint64(len(table) - 1)
	for i := where; ; i++ {
		s := &table[i&mask]
		switch s.key.Load() {
		case uint64(key):
			if other = s.run.Load(); other == 0 {
				s.run.Store(run)
				shard.live++
			}
			return other
		case 0:
			s.run.Store(run)
			s.key.Store(uint64(key))
			shard.live++
			shard.used++
			return 0
		}
	}
}

// remove takes a key away from a run.
func (h *heads) remove(key kvblock.Key, run uint32) {
	where := blend(uint64(key), h.salt)
	shard := &h.shards[where>>58]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	table := *shard.table.Load()
	mask := uint64(len(table) - 1)
	for i := where; ; i++ {
		s := &table[i&mask]
		switch s.key.Load() {
		case uint64(key):
			if s.run.Load() == run {
				s.run.Store(0)
				shard.live--
			}
			if len(table) > headSlots && shard.live*8 < len(table) {
				h.rebuild(shard)
			}
			return
		case 0:
			return
		}
	}
}

// rebuild copies the keys that have runs to a table of the right size; readers continue in the old one.
func (h *heads) rebuild(shard *headShard) []headSlot {
	old := *shard.table.Load()
	size := headSlots
	for size < (shard.live+1)*2 {
		size *= 2
	}
	table := make([]headSlot, size)
	mask := uint64(size - 1)
	for i := range old {
		run := old[i].run.Load()
		if run == 0 {
			continue
		}
		key := old[i].key.Load()
		j := blend(key, h.salt)
		for table[j&mask].key.Load() != 0 {
			j++
		}
		table[j&mask].key.Store(key)
		table[j&mask].run.Store(run)
	}
	shard.used = shard.live
	shard.table.Store(&table)
	h.bytes.Add(int64(size-len(old)) * headSlotSize)
	return table
}

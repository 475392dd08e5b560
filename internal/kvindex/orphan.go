package kvindex

import (
	"sync"
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// orphan is a block whose parent its holder lacks: it arrived out of order, or the parent was dropped and announced again.
// The position of its key is unknown without the parent, so it is in no run.
type orphan struct {
	key    kvblock.Key
	parent name
}

// orphanBytes is about what an orphan takes.
const orphanBytes = 320

// orphans lets readers find orphans by key: a plain table. It is asked only about holders that have orphans, and only for
// the block at which their match would end.
type orphans struct {
	bytes atomic.Int64

	mu    sync.RWMutex
	byKey map[kvblock.Key][]orphanCopies
}

// orphanCopies is the number of a slot's announcements of a key, by tier.
type orphanCopies struct {
	slot uint32
	n    [kvblock.NumTiers]uint32
}

func (s *orphans) init() { s.byKey = map[kvblock.Key][]orphanCopies{} }

// add counts an announcement more.
func (s *orphans) add(key kvblock.Key, slot uint32, tier kvblock.Tier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.byKey[key]
	for i := range list {
		if list[i].slot == slot {
			list[i].n[tier]++
			return
		}
	}
	c := orphanCopies{slot: slot}
	c.n[tier] = 1
	s.byKey[key] = append(list, c)
	s.bytes.Add(orphanBytes)
}

// remove counts an announcement less.
func (s *orphans) remove(key kvblock.Key, slot uint32, tier kvblock.Tier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.byKey[key]
	for i := range list {
		if list[i].slot != slot {
			continue
		}
		if list[i].n[tier]--; list[i].n == [kvblock.NumTiers]uint32{} {
			s.cut(key, i)
		}
		return
	}
}

// forget removes what a slot has of a key.
func (s *orphans) forget(key kvblock.Key, slot uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range s.byKey[key] {
		if c.slot == slot {
			s.cut(key, i)
			return
		}
	}
}

func (s *orphans) cut(key kvblock.Key, i int) {
	list := s.byKey[key]
	list[i] = list[len(list)-1]
	if list = list[:len(list)-1]; len(list) == 0 {
		delete(s.byKey, key)
	} else {
		s.byKey[key] = list
	}
	s.bytes.Add(-orphanBytes)
	if len(s.byKey) == 0 {
		s.byKey = map[kvblock.Key][]orphanCopies{} // maps do not shrink
	}
}

// nearest is the fastest tier in which a slot has an orphan with a key.
func (s *orphans) nearest(key kvblock.Key, slot uint32) (kvblock.Tier, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, c := range s.byKey[key] {
		if c.slot == slot {
			for tier, n := range c.n {
				if n > 0 {
					return kvblock.Tier(tier), true
				}
			}
		}
	}
	return 0, false
}

func (s *orphans) len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.byKey)
}

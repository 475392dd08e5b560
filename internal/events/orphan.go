package events

import (
	"container/list"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// orphan is a block whose parent is not known yet, with everything needed to compute its key later.
type orphan struct {
	id, parent blockID
	tokens     []uint32
	extra      uint64
	copies     [kvblock.NumTiers]uint16

	age        *list.Element
	prev, next *orphan // siblings: orphans of the same parent
}

// orphanBytes is what an orphan takes besides its tokens.
const orphanBytes = 256

func (o *orphan) size() int { return orphanBytes + 4*len(o.tokens) }

// orphanage holds orphans, bounded in number and bytes, which draw on a share.
type orphanage struct {
	maxCount, maxBytes int
	share              *budget.Share
	stats              *Stats

	bytes    int
	byID     map[blockID]*orphan
	byParent map[blockID]*orphan // the first sibling
	ages     list.List           // of *orphan, the oldest in front
}

func newOrphanage(c *Config, share *budget.Share, stats *Stats) *orphanage {
	o := &orphanage{maxCount: c.MaxOrphans, maxBytes: c.MaxOrphanBytes, share: share, stats: stats}
	o.reset()
	return o
}

func (s *orphanage) reset() {
	s.share.Put(s.bytes)
	s.bytes = 0
	s.byID = map[blockID]*orphan{}
	s.byParent = map[blockID]*orphan{}
	s.ages.Init()
}

// add takes an orphan in; the oldest ones leave if there is no room. It returns false if there is none even so.
func (s *orphanage) add(o *orphan) bool {
	for !s.share.Take(o.size()) {
		if len(s.byID) == 0 {
			s.stats.OrphansDropped.Add(1)
			return false
		}
		s.dropOldest()
	}
	s.byID[o.id] = o
	s.bytes += o.size()
	o.age = s.ages.PushBack(o)
	if first := s.byParent[o.parent]; first != nil {
		first.prev, o.next = o, first
	}
	s.byParent[o.parent] = o
	for len(s.byID) > s.maxCount || s.bytes > s.maxBytes {
		s.dropOldest()
	}
	return true
}

func (s *orphanage) dropOldest() {
	s.remove(s.ages.Front().Value.(*orphan))
	s.stats.OrphansDropped.Add(1)
}

// remove takes an orphan out that is in.
func (s *orphanage) remove(o *orphan) {
	delete(s.byID, o.id)
	s.bytes -= o.size()
	s.share.Put(o.size())
	s.ages.Remove(o.age)
	switch {
	case o.prev != nil:
		o.prev.next = o.next
	case o.next != nil:
		s.byParent[o.parent] = o.next
	default:
		delete(s.byParent, o.parent)
	}
	if o.next != nil {
		o.next.prev = o.prev
	}
	o.prev, o.next, o.age = nil, nil, nil
}

// release takes out all orphans of a parent and appends them to dst.
func (s *orphanage) release(parent blockID, dst []*orphan) []*orphan {
	for o := s.byParent[parent]; o != nil; o = s.byParent[parent] {
		s.remove(o)
		dst = append(dst, o)
	}
	return dst
}

// clear forgets the copies in a tier.
func (s *orphanage) clear(tier kvblock.Tier) {
	for _, o := range s.byID {
		if o.copies[tier] == 0 {
			continue
		}
		if o.copies[tier] = 0; o.copies == [kvblock.NumTiers]uint16{} {
			s.remove(o)
		}
	}
}

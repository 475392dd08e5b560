package cachesync

import (
	"math"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// tallies counts blocks by key, group and tier. Nearly all counts are 0 or 1, so they take a byte each; larger ones
// go elsewhere.
type tallies struct {
	few  map[uint64][kvblock.NumTiers]uint8
	many map[tally]uint32 // what a byte does not hold
}

type tally struct {
	name uint64
	tier kvblock.Tier
}

func newTallies() tallies { return tallies{few: map[uint64][kvblock.NumTiers]uint8{}} }

// nameOf folds key and group to one number. That two are folded to the same is as likely as that two blocks have the
// same key.
func nameOf(key kvblock.Key, group int) uint64 {
	return uint64(key) ^ uint64(group)*0x9e3779b97f4a7c15
}

// add counts one more and returns the count.
func (t *tallies) add(name uint64, tier kvblock.Tier) uint32 {
	n := t.few[name]
	if n[tier] == math.MaxUint8 {
		if t.many == nil {
			t.many = map[tally]uint32{}
		}
		at := tally{name, tier}
		t.many[at]++
		return math.MaxUint8 + t.many[at]
	}
	n[tier]++
	t.few[name] = n
	return uint32(n[tier])
}

// remove counts one less and returns the count. There must be one.
func (t *tallies) remove(name uint64, tier kvblock.Tier) uint32 {
	at := tally{name, tier}
	if more := t.many[at]; more > 0 {
		if more == 1 {
			delete(t.many, at)
		} else {
			t.many[at] = more - 1
		}
		return math.MaxUint8 + more - 1
	}
	n := t.few[name]
	n[tier]--
	if n == [kvblock.NumTiers]uint8{} {
		delete(t.few, name)
	} else {
		t.few[name] = n
	}
	return uint32(n[tier])
}

// several reports whether there is more than one.
func (t *tallies) several(name uint64, tier kvblock.Tier) bool { return t.few[name][tier] > 1 }

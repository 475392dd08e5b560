package kvindex

import (
	"cmp"
	"slices"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// Chains implements Writer. The chains of an Index are stretches of its runs. A run's key is preceded by the key before
// it, regardless of its holders, or by the run's parent.
func (w *writer) Chains(tier kvblock.Tier, group int) []Chain {
	l := w.lock()
	if l == nil || !indexable(tier, group) {
		if l != nil {
			l.mu.Unlock()
		}
		return nil
	}
	defer l.mu.Unlock()
	var spots []spot
	var orphans []Chain
	for i := range l.rev.entries {
		e := &l.rev.entries[i]
		switch {
		case e.vacant() || e.group() != group || e.count(tier) == 0:
		case e.at == noSpot:
			s := l.orphans[name{e.hash, group}]
			orphans = append(orphans, Chain{Parent: kvblock.Key(s.parent.hash), Keys: []kvblock.Key{s.key}})
		default:
			spots = append(spots, e.at)
		}
	}
	slices.Sort(spots)
	spots = slices.Compact(spots)
	type deep struct {
		Chain
		depth uint32
	}
	var chains []deep
	for i := 0; i < len(spots); {
		n := 1
		for i+n < len(spots) && spots[i+n] == spots[i]+spot(n) && spots[i+n].run() == spots[i].run() {
			n++
		}
		r, offset := w.ix.runs.get(spots[i].run()), spots[i].offset()
		c := deep{Chain{Parent: r.parent, Keys: slices.Clone(r.keys[offset : offset+n])}, r.depth + uint32(offset)}
		if offset > 0 {
			c.Parent = r.keys[offset-1]
		}
		chains = append(chains, c)
		i += n
	}
	slices.SortFunc(chains, func(a, b deep) int { return cmp.Compare(a.depth, b.depth) })
	out := make([]Chain, 0, len(chains)+len(orphans))
	for _, c := range chains {
		out = append(out, c.Chain)
	}
	return append(out, orphans...)
}

// Chains implements Writer. Those of a Table are as long as an engine's block.
func (w *plainWriter) Chains(tier kvblock.Tier, group int) []Chain {
	if !w.ready() || !indexable(tier, group) {
		return nil
	}
	children := map[kvblock.Key][]Chain{} // by parent
	held := map[kvblock.Key]bool{}
	for at, b := range w.blocks {
		if last := b.keys[len(b.keys)-1]; at.group == group && b.copies[tier] > 0 && !held[last] {
			held[last] = true
			children[b.parent] = append(children[b.parent], Chain{Parent: b.parent, Keys: slices.Clone(b.keys)})
		}
	}
	var out []Chain
	for parent := range children {
		if held[parent] {
			continue // it follows its parent
		}
		for work := []kvblock.Key{parent}; len(work) > 0; {
			from := work[len(work)-1]
			work = work[:len(work)-1]
			for _, c := range children[from] {
				out = append(out, c)
				work = append(work, c.Keys[len(c.Keys)-1])
			}
		}
	}
	return out
}

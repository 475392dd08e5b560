package cachesync

import (
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// walk calls f for every (tier, group, key) that a view holds, once each, along the chains as far as there are any.
// parent is 0 where there is none. The mirror is locked.
func (m *Mirror) walk(v *view, f func(tier kvblock.Tier, group int, parent, key kvblock.Key)) {
	told := map[tally]bool{} // keys that several blocks have
	visit := func(n id, r *record, tier kvblock.Tier) {
		if r.keys[v.slot].last == 0 || r.over != 0 || !m.whole(n, tier) {
			return
		}
		m.keysOf(n, r, v, func(parent, key kvblock.Key) {
			if at := (tally{nameOf(key, int(r.group)), tier}); v.held.several(at.name, tier) {
				if told[at] {
					return
				}
				told[at] = true
			}
			f(tier, int(r.group), parent, key)
		})
	}
	var tiers [kvblock.NumTiers]bool
	for at, d := range v.digests {
		tiers[at.tier] = tiers[at.tier] || d.Blocks > 0
	}
	var stack []id
	for tier, used := range tiers {
		if !used {
			continue
		}
		m.arena.each(func(n id, r *record) {
			if !r.rooted || r.up != 0 {
				return
			}
			stack = append(stack, n)
			for len(stack) > 0 {
				n := stack[len(stack)-1]
				stack = stack[:len(stack)-1]
				r := m.arena.at(n)
				visit(n, r, kvblock.Tier(tier))
				for c := r.down; c != 0; c = m.arena.at(c).next {
					stack = append(stack, c)
				}
			}
		})
	}
}

// keysOf calls f for the keys of a block that has some, each with the one before it.
func (m *Mirror) keysOf(n id, r *record, v *view, f func(parent, key kvblock.Key)) {
	k := r.keys[v.slot]
	if v.rules.has(r.group) {
		if v.windows {
			f(0, k.last)
		}
		return
	}
	before := k.base
	if r.leads {
		before = 0
	}
	if int(r.size) <= m.blockTokens {
		f(before, k.last)
		return
	}
	v.each(m.arena.tokens(n), k.base, r.extra, func(key kvblock.Key) {
		f(before, key)
		before = key
	})
}

// emptyWindows are changes that carry only the rules of groups with a window: a picker must know the rules even while the
// groups hold nothing.
func (v *view) emptyWindows() (out []*pb.Change) {
	for group := range v.rules.of {
		if window := v.rules.window(group, v.root.BlockTokens); window != nil && v.windows {
			out = append(out, &pb.Change{Kind: pb.Change_KIND_STORED, Group: uint32(group), Window: window})
		}
	}
	return out
}

// snapshot is all that a view holds, as chains.
func (m *Mirror) snapshot(v *view) []*pb.Change {
	out := v.emptyWindows()
	var open *pb.Change
	var last kvblock.Key
	m.walk(v, func(tier kvblock.Tier, group int, parent, key kvblock.Key) {
		window := v.rules.window(int32(group), v.root.BlockTokens)
		chained := last == parent && parent != 0 || window != nil
		if open == nil || !chained || open.Tier != uint32(tier) || open.Group != uint32(group) || len(open.Keys) >= maxChangeKeys {
			open = &pb.Change{Kind: pb.Change_KIND_STORED, Tier: uint32(tier), Group: uint32(group), Parent: uint64(parent), Window: window}
			out = append(out, open)
		}
		open.Keys = append(open.Keys, uint64(key))
		last = key
	})
	return out
}

// buckets is all that a view holds in some buckets.
func (m *Mirror) buckets(v *view, wanted []*pb.Wanted) []*pb.Bucket {
	type place struct {
		section
		bucket int
	}
	at := map[place]*pb.Bucket{}
	var out []*pb.Bucket
	for _, w := range wanted {
		for _, b := range w.GetBuckets() {
			p := place{section{kvblock.Tier(w.GetTier()), int(w.GetGroup())}, int(b)}
			if at[p] == nil {
				at[p] = &pb.Bucket{Tier: w.GetTier(), Group: w.GetGroup(), Bucket: b}
				if d := v.digests[p.section]; d != nil {
					at[p].SectionBlocks = d.Blocks
				}
				out = append(out, at[p])
			}
		}
	}
	m.walk(v, func(tier kvblock.Tier, group int, parent, key kvblock.Key) {
		if b := at[place{section{tier, group}, kvindex.Bucket(key)}]; b != nil {
			b.Keys = append(b.Keys, uint64(key))
			b.Parents = append(b.Parents, uint64(parent))
		}
	})
	return out
}

// digest is the digest of all that a view holds.
func (m *Mirror) digest(v *view) *pb.Digest {
	out := &pb.Digest{
		Seq: v.log.next, State: m.state,
		Orphans: uint64(m.classes[orphan]), Unindexable: m.unindexable, Refused: m.refused,
		Unsupported: m.stats.BlockSizeUnsupported, Unreadable: m.unreadable, Lookahead: m.lookahead,
	}
	if !v.windows {
		out.Unindexable += m.windowed
	}
	for _, c := range v.emptyWindows() {
		if d := v.digests[section{kvblock.GPU, int(c.Group)}]; d == nil || d.Blocks == 0 {
			out.Sections = append(out.Sections, &pb.Section{Group: c.Group, Sums: make([]uint64, kvindex.DigestBuckets), Window: c.Window})
		}
	}
	for at, d := range v.digests {
		if d.Blocks > 0 {
			sums := d.Sums
			out.Sections = append(out.Sections, &pb.Section{
				Tier: uint32(at.tier), Group: uint32(at.group), Blocks: d.Blocks, Sums: sums[:],
				Window: v.rules.window(int32(at.group), v.root.BlockTokens),
			})
		}
	}
	return out
}

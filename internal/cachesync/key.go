package cachesync

import (
	"fmt"
	"maps"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// Root is what a picker makes keys with.
type Root struct {
	// ID is the seed's.
	ID   string
	Seed kvblock.Seed
	// Model is the canonical name of the base model.
	Model string
	// BlockTokens is the size of a key's block.
	BlockTokens int
	// Media maps further lower-case words of engines to tiers.
	Media map[string]kvblock.Tier
}

// maxBlockTokens bounds the size of a key's block, maxMedia the words for tiers.
const (
	maxBlockTokens = 4096
	maxMedia       = 64
)

// NewRoot makes a root from what identifies it.
func NewRoot(seed kvblock.Seed, model string, blockTokens int, media map[string]kvblock.Tier) Root {
	return Root{ID: seed.ID(), Seed: seed, Model: model, BlockTokens: blockTokens, Media: media}
}

func (r *Root) message() *pb.Root {
	secret := r.Seed.Secret()
	out := &pb.Root{Id: r.ID, Secret: secret[:], Model: r.Model, BlockTokens: uint32(r.BlockTokens)}
	if len(r.Media) > 0 {
		out.Media = make(map[string]uint32, len(r.Media))
		for medium, tier := range r.Media {
			out.Media[medium] = uint32(tier)
		}
	}
	return out
}

// readRoot checks a root received from a peer.
func readRoot(in *pb.Root) (Root, error) {
	if len(in.GetSecret()) != kvblock.SecretBytes {
		return Root{}, fmt.Errorf("a root's secret has %d bytes, not %d", len(in.GetSecret()), kvblock.SecretBytes)
	}
	r := Root{Seed: kvblock.SeedOf([kvblock.SecretBytes]byte(in.GetSecret())), Model: in.GetModel(), BlockTokens: int(in.GetBlockTokens())}
	r.ID = r.Seed.ID()
	switch {
	case in.GetId() != r.ID:
		return Root{}, fmt.Errorf("a root's id %q does not belong to its secret", in.GetId())
	case r.BlockTokens <= 0 || r.BlockTokens > maxBlockTokens:
		return Root{}, fmt.Errorf("a root's blocks have %d tokens", r.BlockTokens)
	case len(in.GetMedia()) > maxMedia:
		return Root{}, fmt.Errorf("a root has %d words for tiers", len(in.GetMedia()))
	}
	for medium, tier := range in.GetMedia() {
		if tier >= uint32(kvblock.NumTiers) {
			return Root{}, fmt.Errorf("a root's tier %d of medium %q is not known", tier, medium)
		}
		if r.Media == nil {
			r.Media = map[string]kvblock.Tier{}
		}
		r.Media[medium] = kvblock.Tier(tier)
	}
	return r, nil
}

// Same reports whether two roots make the same keys.
func (r *Root) Same(o *Root) bool {
	return r.ID == o.ID && r.Seed == o.Seed && r.Model == o.Model && r.BlockTokens == o.BlockTokens && maps.Equal(r.Media, o.Media)
}

// settle notifies the views of a rooted block that has just been attached, and of all that follow it.
func (m *Mirror) settle(n id) {
	m.stack = append(m.stack[:0], n)
	for len(m.stack) > 0 {
		n := m.stack[len(m.stack)-1]
		m.stack = m.stack[:len(m.stack)-1]
		r := m.arena.at(n)
		fresh := !r.rooted
		if fresh {
			m.changeClass(r, func() { r.rooted = true })
		}
		for _, v := range m.views {
			if v != nil {
				m.key(n, r, v)
			}
		}
		if fresh && r.over != 0 {
			// Key blocks might have waited for this part of them.
			for tier, copies := range r.copies {
				if copies > 0 {
					m.notify(n, kvblock.Tier(tier), true)
				}
			}
		}
		for c := r.down; c != 0; c = m.arena.at(c).next {
			m.stack = append(m.stack, c)
		}
	}
}

// key gives a block its key in a view, if it has none and its parent has one, and adds its copies to the view.
func (m *Mirror) key(n id, r *record, v *view) {
	if r.keys[v.slot].last != 0 {
		return
	}
	var base kvblock.Key
	over := 0 // tokens beyond base before the block
	switch {
	case r.first():
		base = v.rootKey(r.root, m.roots[r.root-1].chainRoot)
	case r.up == 0:
		return
	default:
		up := m.arena.at(r.up)
		if base = up.keys[v.slot].last; base == 0 || up.over == unfit {
			return
		}
		over = int(up.over)
	}
	r.leads = r.first() || over > 0 && m.arena.at(r.up).leads
	size, bt := int(r.size), m.blockTokens
	windowed := m.rules.has(r.group)
	switch {
	case windowed && (over > 0 || m.rules.window(r.group, bt) == nil):
		if r.over != unfit {
			r.over = unfit
			m.lost(&m.stats.BlockSizeUnsupported, 1)
		}
		return
	case over == 0 && size%bt == 0:
		last := base
		v.each(m.arena.tokens(n), base, r.extra, func(key kvblock.Key) { last = key })
		r.over, r.keys[v.slot] = 0, keyed{base, last}
	case over+size < bt:
		r.over, r.keys[v.slot] = uint16(over+size), keyed{base, base}
		return
	case over+size == bt:
		last := m.join(n, base)
		if last == 0 { // until the part arrives again
			if r.over != unfit {
				r.over = unfit
				m.keyless()
			}
			return
		}
		r.over, r.keys[v.slot] = 0, keyed{base, last}
	default:
		if r.over != unfit {
			r.over = unfit
			m.lost(&m.stats.BlockSizeUnsupported, 1)
		}
		return
	}
	for tier := range kvblock.Tier(kvblock.NumTiers) {
		if m.whole(n, tier) {
			m.put(n, r, v, tier, true)
		}
	}
}

// join is the key of a key block that ends with an engine's block and consists of several; 0 if one of them is missing,
// which was a ghost for which there was no room.
func (m *Mirror) join(n id, base kvblock.Key) kvblock.Key {
	tokens := make([]uint32, m.blockTokens)
	at := m.blockTokens
	var extra uint64
	for {
		r := m.arena.at(n)
		at -= int(r.size)
		copy(tokens[at:], m.arena.tokens(n))
		if r.extra != 0 {
			extra = kvblock.Digest(extra^r.extra, "part")
		}
		if at == 0 {
			return kvblock.Next(base, tokens, extra)
		}
		if n = r.up; n == 0 {
			return 0
		}
	}
}

// whole reports whether all of the key block that ends with an engine's block is in a tier.
func (m *Mirror) whole(n id, tier kvblock.Tier) bool {
	r := m.arena.at(n)
	if r.size == 0 { // it has no part in its prefix record's copies
		return r.copies[tier] > 0 && r.rooted
	}
	for have := int(r.size); ; have += int(r.size) {
		if r.copies[tier] == 0 || !r.rooted {
			return false
		}
		if have >= m.blockTokens {
			return true
		}
		if r.up == 0 {
			return false
		}
		r = m.arena.at(r.up)
	}
}

// notify notifies the views that the first copy of a block was added to a tier, or that the last will be removed. The block
// can be a part of several key blocks.
func (m *Mirror) notify(n id, tier kvblock.Tier, come bool) {
	r := m.arena.at(n)
	if m.blockTokens == 0 || !r.rooted || r.over == unfit {
		return
	}
	if r.over == 0 {
		m.notifyOne(n, tier, come)
		return
	}
	parts := m.parts[:0]
	parts = append(parts, n)
	for len(parts) > 0 {
		n := parts[len(parts)-1]
		parts = parts[:len(parts)-1]
		for c := m.arena.at(n).down; c != 0; c = m.arena.at(c).next {
			switch m.arena.at(c).over {
			case 0:
				m.notifyOne(c, tier, come)
			case unfit:
			default:
				parts = append(parts, c)
			}
		}
	}
	m.parts = parts
}

func (m *Mirror) notifyOne(n id, tier kvblock.Tier, come bool) {
	if !m.whole(n, tier) {
		return
	}
	r := m.arena.at(n)
	for _, v := range m.views {
		switch {
		case v == nil:
		case r.keys[v.slot].last != 0:
			m.put(n, r, v, tier, come)
		case come:
			m.keyless()
		}
	}
}

// keyless counts a block that has no key in a view because one before it is forgotten, a ghost for which there was no
// room. Without it, pickers must not treat the reported state as complete.
func (m *Mirror) keyless() {
	m.refused++
	m.stats.Refused++
}

// put adds the keys of a block to a tier of a view, or removes them.
func (m *Mirror) put(n id, r *record, v *view, tier kvblock.Tier, come bool) {
	m.keysOf(n, r, v, func(parent, key kvblock.Key) { v.put(tier, int(r.group), parent, key, come) })
}

// acquire finds or makes the view of a root, with the groups that have a window or without. It is nil when too many others
// are in use.
func (m *Mirror) acquire(root *Root, windows bool) *view {
	free := -1
	for i, v := range m.views {
		switch {
		case v == nil:
			free = i
		case v.root.Same(root) && v.windows == windows:
			v.uses++
			return v
		case v.uses == 0 && free < 0:
			free = i
		case v.uses > 0 && v.root.BlockTokens != root.BlockTokens:
			return nil // one of the pickers is wrong
		}
	}
	if free < 0 {
		return nil
	}
	m.forget(free)
	for i, v := range m.views {
		if v != nil && v.root.BlockTokens != root.BlockTokens {
			m.forget(i)
		}
	}
	v := newView(*root, free, &m.options)
	v.windows, v.rules = windows, &m.rules
	v.uses = 1
	m.views[free] = v
	m.media = root.Media
	if m.blockTokens != root.BlockTokens {
		m.blockTokens = root.BlockTokens
		m.arena.each(func(_ id, r *record) { r.over = 0 })
	}
	m.arena.each(func(n id, r *record) {
		if r.first() {
			m.settle(n)
		}
	})
	m.arena.each(func(_ id, r *record) {
		if r.class() == placed && r.keys[free].last == 0 && r.over != unfit {
			m.keyless()
		}
	})
	v.begin(m.options.NewID())
	return v
}

// release returns a view. The last one is kept, since a picker will connect again.
func (m *Mirror) release(v *view) {
	v.uses--
	if v.uses > 0 {
		return
	}
	for i, o := range m.views {
		if o == v && m.views[1-i] != nil && m.views[1-i].uses > 0 {
			m.forget(i)
		}
	}
}

// forget ends a view.
func (m *Mirror) forget(slot int) {
	if m.views[slot] == nil {
		return
	}
	m.views[slot] = nil
	m.arena.each(func(_ id, r *record) { r.keys[slot] = keyed{} })
}

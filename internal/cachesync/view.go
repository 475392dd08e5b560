package cachesync

import (
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

const maxGroup = kvindex.MaxGroup

// section is one tier and group. Each has a digest of its own, so that a difference is found and repaired there alone.
type section struct {
	tier  kvblock.Tier
	group int
}

// view is what a mirror holds as sets of keys of one root. It belongs to the mirror and is guarded by its mutex.
type view struct {
	root Root
	// windows: groups with a window are reported; rules are the mirror's.
	windows  bool
	rules    *rules
	slot     int // in record.keys
	uses     int // senders that use it
	newID    func() uint64
	rootKeys map[uint32]kvblock.Key
	// held counts the blocks with a key by tier. Several blocks of an engine can have one key, if they differ in something
	// that keys leave out.
	held    tallies
	digests map[section]*kvindex.Digest
	log     changeLog
	quiet   bool // while it is filled for the first time
	// open is the change that is being built, last the key that a stored one ends with.
	open *pb.Change
	last kvblock.Key
}

func newView(root Root, slot int, o *Options) *view {
	v := &view{root: root, slot: slot, newID: o.NewID, quiet: true, rootKeys: map[uint32]kvblock.Key{}}
	v.log.maxBytes = o.LogBytes
	v.empty()
	return v
}

func (v *view) empty() {
	v.held = newTallies()
	v.digests = map[section]*kvindex.Digest{}
	v.open = nil
}

// begin begins a log with what is held now.
func (v *view) begin(log uint64) {
	v.quiet = false
	v.log.reset(log)
}

// reset marks everything as not held, and begins another log.
func (v *view) reset() {
	v.empty()
	v.rootKeys = map[uint32]kvblock.Key{} // roots are renumbered
	v.begin(v.newID())
}

// clear logs that all blocks were removed.
func (v *view) clear() {
	v.flush()
	v.empty()
	v.rootKeys = map[uint32]kvblock.Key{}
	v.log.append(&pb.Change{Kind: pb.Change_KIND_CLEARED})
}

// rootKey is the key before the first of a chain.
func (v *view) rootKey(n uint32, root chainRoot) kvblock.Key {
	key, ok := v.rootKeys[n]
	if !ok {
		model := root.model
		if model == "" {
			model = v.root.Model
		}
		key = v.root.Seed.Root(model, root.salt)
		v.rootKeys[n] = key
	}
	return key
}

// each calls f for the keys of an engine block that is a whole number of key blocks.
func (v *view) each(tokens []uint32, base kvblock.Key, extra uint64, f func(kvblock.Key)) {
	for bt := v.root.BlockTokens; len(tokens) > 0; tokens = tokens[bt:] {
		base = kvblock.Next(base, tokens[:bt:bt], extra)
		f(base)
	}
}

// put counts a block that is added to a tier, or removed.
func (v *view) put(tier kvblock.Tier, group int, parent, key kvblock.Key, added bool) {
	name := nameOf(key, group)
	switch {
	case !added:
		if v.held.remove(name, tier) == 0 {
			v.digest(tier, group).Remove(key)
			v.change(pb.Change_KIND_REMOVED, tier, group, 0, key)
		}
	case v.held.add(name, tier) == 1:
		v.digest(tier, group).Add(key)
		v.change(pb.Change_KIND_STORED, tier, group, parent, key)
	}
}

func (v *view) digest(tier kvblock.Tier, group int) *kvindex.Digest {
	at := section{tier, group}
	d := v.digests[at]
	if d == nil {
		d = &kvindex.Digest{}
		v.digests[at] = d
	}
	return d
}

// change adds a key to the change that is being built, or begins another.
func (v *view) change(kind pb.Change_Kind, tier kvblock.Tier, group int, parent, key kvblock.Key) {
	if v.quiet {
		return
	}
	var window *pb.Window
	if kind == pb.Change_KIND_STORED {
		window = v.rules.window(int32(group), v.root.BlockTokens)
	}
	if c := v.open; c == nil || c.Kind != kind || c.Tier != uint32(tier) || c.Group != uint32(group) ||
		kind == pb.Change_KIND_STORED && v.last != parent && window == nil || len(c.Keys) >= maxChangeKeys {
		v.flush()
		v.open = &pb.Change{Kind: kind, Tier: uint32(tier), Group: uint32(group), Parent: uint64(parent), Window: window}
	}
	v.open.Keys = append(v.open.Keys, uint64(key))
	v.last = key
}

// maxChangeKeys bounds the keys of a change.
const maxChangeKeys = 4096

// flush ends the change that is being built.
func (v *view) flush() {
	if v.open != nil {
		v.log.append(v.open)
		v.open = nil
	}
}

// changeLog is the last changes of a view, bounded in bytes. Changes are never changed once they are in it.
type changeLog struct {
	id       uint64
	maxBytes int
	// next is the number of changes so far; the last ones are kept[head:].
	next  uint64
	kept  []*pb.Change
	head  int
	bytes int
}

// changeBytes is about what a change takes besides its keys.
const changeBytes = 128

func (l *changeLog) reset(id uint64) {
	*l = changeLog{id: id, maxBytes: l.maxBytes}
}

func (l *changeLog) append(c *pb.Change) {
	l.kept = append(l.kept, c)
	l.next++
	l.bytes += changeBytes + 8*cap(c.Keys)
	for l.bytes > l.maxBytes {
		l.bytes -= changeBytes + 8*cap(l.kept[l.head].Keys)
		l.kept[l.head] = nil
		l.head++
	}
	if l.head >= 1024 && l.head*2 >= len(l.kept) {
		n := copy(l.kept, l.kept[l.head:])
		clear(l.kept[n:])
		l.kept, l.head = l.kept[:n], 0
	}
}

// oldest is the number of the oldest change that is kept, next if there is none.
func (l *changeLog) oldest() uint64 { return l.next - uint64(len(l.kept)-l.head) }

// from returns the changes from a number on that is kept.
func (l *changeLog) from(n uint64) []*pb.Change {
	return l.kept[len(l.kept)-int(l.next-n):]
}

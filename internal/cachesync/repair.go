package cachesync

import (
	"math"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// readDigest checks a digest received from a peer.
func readDigest(d *pb.Digest) (map[section]*kvindex.Digest, map[int]kvindex.Window, error) {
	if len(d.GetSections()) > maxWanted {
		return nil, nil, wrong("a digest of %d sections", len(d.GetSections()))
	}
	out := make(map[section]*kvindex.Digest, len(d.GetSections()))
	windows := map[int]kvindex.Window{}
	for _, s := range d.GetSections() {
		at, err := readSection(s.GetTier(), s.GetGroup())
		if err != nil {
			return nil, nil, err
		}
		if len(s.GetSums()) != kvindex.DigestBuckets || out[at] != nil {
			return nil, nil, wrong("a section with %d buckets, or twice", len(s.GetSums()))
		}
		if s.GetWindow() != nil {
			if windows[at.group], err = readWindow(s.GetWindow()); err != nil {
				return nil, nil, err
			}
		}
		out[at] = &kvindex.Digest{Blocks: s.GetBlocks(), Sums: [kvindex.DigestBuckets]uint64(s.GetSums())}
	}
	return out, windows, nil
}

// apart is how far two numbers of blocks are apart. Like sums they wrap: after a gap, a receiver can get removals
// of blocks that it has never received, and then holds a negative number.
func apart(a, b uint64) uint64 {
	if atLeast(a, b) {
		return a - b
	}
	return b - a
}

// atLeast compares numbers of blocks, which can be less than none.
func atLeast(a, b uint64) bool { return int64(a-b) >= 0 }

// compare returns the buckets in which the holding differs from a digest, and by how many blocks at least: one for each
// bucket that differs, or the difference in numbers. That number is 0 only if no bucket is wanted: the differences of
// sections add up, and the sum cannot overflow to 0.
//
// The reported state must be equal. What the index holds must be equal too, unless there is less of it and room is short:
// then it has refused or evicted blocks, which asking for them again would not change.
func (h *holding) compare(theirs map[section]*kvindex.Digest, short bool) (wanted []*pb.Wanted, divergent uint64) {
	var empty kvindex.Digest
	// All tiers of every group that was ever mentioned, so that no blocks stay unchecked.
	var all []section
	for at := range theirs {
		h.groups |= 1 << at.group
	}
	for group := range kvindex.MaxGroup + 1 {
		for tier := range kvblock.Tier(kvblock.NumTiers) {
			if h.groups&(1<<group) != 0 {
				all = append(all, section{tier, group})
			}
		}
	}
	for _, at := range all {
		their := theirs[at]
		if their == nil {
			their = &empty
		}
		told, has := h.reported[at], h.has(at)
		if told == nil {
			told = &empty
		}
		differ := their.Diff(told, nil)
		most := apart(told.Blocks, their.Blocks)
		if !short || atLeast(has.Blocks, told.Blocks) {
			differ = their.Diff(&has, differ)
			most = max(most, apart(has.Blocks, told.Blocks))
		}
		if len(differ) == 0 && most == 0 {
			continue
		}
		w := &pb.Wanted{Tier: uint32(at.tier), Group: uint32(at.group)}
		var seen [kvindex.DigestBuckets]bool
		for _, b := range differ {
			if !seen[b] {
				seen[b] = true
				w.Buckets = append(w.Buckets, uint32(b))
			}
		}
		if len(w.Buckets) == 0 { // the numbers differ where no sum does
			for b := range uint32(kvindex.DigestBuckets) {
				w.Buckets = append(w.Buckets, b)
			}
		}
		most = max(most, uint64(len(w.Buckets)))
		divergent += min(most, math.MaxUint64-divergent)
		wanted = append(wanted, w)
	}
	return wanted, divergent
}

// checkBuckets checks buckets received from a peer.
func checkBuckets(buckets []*pb.Bucket) error {
	for _, b := range buckets {
		if _, err := readSection(b.GetTier(), b.GetGroup()); err != nil {
			return err
		}
		if b.GetBucket() >= kvindex.DigestBuckets || len(b.GetKeys()) != len(b.GetParents()) {
			return wrong("bucket %d with %d keys and %d parents", b.GetBucket(), len(b.GetKeys()), len(b.GetParents()))
		}
		for _, key := range b.GetKeys() {
			if key == 0 || kvindex.Bucket(kvblock.Key(key)) != int(b.GetBucket()) {
				return wrong("a key is in the wrong bucket")
			}
		}
	}
	return nil
}

// replace makes the contents of buckets what they are said to be. It returns how many blocks were not.
func (h *holding) replace(buckets []*pb.Bucket, most int) (repaired uint64) {
	type place struct {
		section
		bucket int
	}
	// For each key of the buckets whether it is held, until it has been found.
	missing := map[place]map[kvblock.Key]uint64{}
	for _, b := range buckets {
		at := section{kvblock.Tier(b.GetTier()), int(b.GetGroup())}
		keys := map[kvblock.Key]uint64{}
		d, sum := h.digest(at), &kvindex.Digest{}
		for i, key := range b.GetKeys() {
			if _, twice := keys[kvblock.Key(key)]; !twice {
				keys[kvblock.Key(key)] = b.GetParents()[i]
				sum.Add(kvblock.Key(key))
			}
		}
		missing[place{at, int(b.GetBucket())}] = keys
		d.Sums[b.GetBucket()], d.Blocks = sum.Sums[b.GetBucket()], b.GetSectionBlocks()
	}
	type extra struct {
		at     section
		hash   kvevent.Hash
		copies int
	}
	var surplus []extra
	h.w.Each(func(b kvindex.Block) bool {
		for tier, copies := range b.Copies {
			at := section{kvblock.Tier(tier), b.Group}
			keys, asked := missing[place{at, kvindex.Bucket(b.Key)}]
			if !asked || copies == 0 {
				continue
			}
			if _, wanted := keys[b.Key]; wanted {
				delete(keys, b.Key)
				copies--
			}
			if copies > 0 {
				surplus = append(surplus, extra{at, b.Hash, copies})
			}
		}
		return true
	})
	for _, x := range surplus {
		repaired++
		for range x.copies {
			h.w.Drop(x.at.tier, x.at.group, []kvevent.Hash{x.hash})
		}
	}
	// In order of arrival, so that the choice of blocks that find no room is deterministic.
	for _, b := range buckets {
		at := section{kvblock.Tier(b.GetTier()), int(b.GetGroup())}
		keys := missing[place{at, int(b.GetBucket())}]
		for _, k := range b.GetKeys() {
			key := kvblock.Key(k)
			parent, still := keys[key]
			if !still {
				continue
			}
			delete(keys, key)
			repaired++
			if h.room(1, most) && h.store(at, parent, []kvevent.Hash{kvevent.Hash(key)}, []kvblock.Key{key}) > 0 {
				h.refused = true
			}
		}
	}
	return repaired
}

// Distrust forgets the position, so that the next stream replaces everything. What is held stays until then, as that of an
// absent reporter does.
func (r *Receiver) Distrust() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop()
	r.doubt()
	r.have = nil
}

// ahead passes on that the engine names blocks by tokens that follow them, too.
func (o *ReceiverOptions) ahead(d *pb.Digest) {
	if d.GetLookahead() && o.OnLookahead != nil {
		o.OnLookahead()
	}
}

package cachesync

import (
	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// Lend is the state that a receiver has received of its endpoint, for another picker that has not received it yet: a
// position and the chains that were held there. There is nothing to lend, and at is nil, while the endpoint's reporter is
// not connected or cannot confirm its state, when the keys are of another root than asked for, and when there are groups
// with a window, which a picker of another release might not know.
//
// Logs serve all pickers alike. So the borrower continues from that position when the reporter connects: it receives the
// changes since, or the differences that a digest shows, or that the engine has begun another life.
func (r *Receiver) Lend(keyID string) (at *pb.Position, changes []*pb.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.have.GetKeyId() != keyID || !r.vouches() || len(r.held.windows) > 0 {
		return nil, nil
	}
	for section, d := range r.held.reported {
		if d.Blocks == 0 {
			continue
		}
		for _, c := range r.held.w.Chains(section.tier, section.group) {
			for keys := c.Keys; len(keys) > 0; {
				n := min(len(keys), maxChangeKeys)
				changes = append(changes, storedChange(section, c.Parent, keys[:n]))
				c.Parent, keys = keys[n-1], keys[n:]
			}
		}
	}
	return r.position(), changes
}

func storedChange(at section, parent kvblock.Key, keys []kvblock.Key) *pb.Change {
	c := &pb.Change{Kind: pb.Change_KIND_STORED, Tier: uint32(at.tier), Group: uint32(at.group), Parent: uint64(parent)}
	c.Keys = make([]uint64, len(keys))
	for i, key := range keys {
		c.Keys[i] = uint64(key)
	}
	return c
}

// Vouches reports whether the endpoint's reporter is connected, and the state lent at a position is of the epoch that it
// reports.
func (r *Receiver) Vouches(at *pb.Position) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.vouches() && r.have.GetEpoch() == at.GetEpoch() && r.have.GetKeyId() == at.GetKeyId()
}

// vouches reports whether the state comes from a reporter that is connected and follows its engine. mu is held.
func (r *Receiver) vouches() bool {
	return r.have != nil && r.shadow == nil && !r.deaf && !r.status.Borrowed &&
		(r.status.State == pb.State_STATE_SYNCED || r.status.State == pb.State_STATE_UNVERIFIED)
}

// Empty reports whether nothing was received about the endpoint, so that borrowing is useful.
func (r *Receiver) Empty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.empty()
}

func (r *Receiver) empty() bool { return r.have == nil && r.shadow == nil && !r.status.Connected }

// Borrow takes the blocks that another picker lends, unless the endpoint's own reporter has connected meanwhile. They are
// unverified until that reporter continues from there, which should be soon. Until then the caller must watch whether the
// lender still vouches for them, and call Return if it does not. An error means that the loan is invalid; nothing is taken
// then.
func (r *Receiver) Borrow(at *pb.Position, changes []*pb.Change) (taken bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case at.GetEpoch() == 0 || at.GetLog() == 0 || !r.knows(at.GetKeyId()):
		return false, wrong("lent at epoch %d, log %d, keys %q", at.GetEpoch(), at.GetLog(), at.GetKeyId())
	case !r.empty() || r.status.Owned:
		return false, nil
	}
	shadow := newHolding(r.held.w.Shadow())
	for _, c := range changes {
		if c.GetKind() != pb.Change_KIND_STORED {
			err = wrong("change of kind %d is lent", c.GetKind())
		} else {
			err = shadow.apply(c, r.options.MaxBlocks)
		}
		if err != nil {
			shadow.w.Discard()
			return false, err
		}
	}
	if r.options.OnOwn != nil {
		r.options.OnOwn()
	}
	shadow.w.Commit()
	r.held.reported, r.held.refused = shadow.reported, shadow.refused
	r.held.adopt(shadow)
	r.have = proto.CloneOf(at)
	r.status.Owned, r.status.Borrowed, r.status.State = true, true, pb.State_STATE_UNVERIFIED
	r.doubt()
	return true, nil
}

// Return forgets what was borrowed, unless the endpoint's own reporter has continued from there, or is about to. It reports
// whether nothing is borrowed any more.
func (r *Receiver) Return() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status.Connected && r.status.Borrowed {
		return false // it will report; if not, Lost returns it
	}
	r.giveBack()
	return true
}

// giveBack forgets what is borrowed. mu is held.
func (r *Receiver) giveBack() {
	if !r.status.Borrowed {
		return
	}
	r.held.clear()
	r.have = nil
	r.status.Owned, r.status.Borrowed = false, false
	r.doubt()
}

package budget

import "sync/atomic"

// Room limits the bytes that are kept for holders that are not clients: other replicas and engines. As in a Budget, a holder can have
// at most as much as is then still free, so that it leaves room for others. A nil Room has no limit. It is safe for concurrent use.
type Room struct {
	limit int64
	held  atomic.Int64
}

// NewRoom makes a room of so many bytes.
func NewRoom(limit int64) *Room { return &Room{limit: limit} }

// Take takes n bytes for a holder that has held bytes already, and reports whether there was room.
func (r *Room) Take(n, held int) bool {
	if r == nil {
		return true
	}
	for { // what is refused must not count for a moment: others would be refused for it
		before := r.held.Load()
		after := before + int64(n)
		if int64(held+n) > r.limit-after {
			return false
		}
		if r.held.CompareAndSwap(before, after) {
			return true
		}
	}
}

// Put gives n bytes back.
func (r *Room) Put(n int) {
	if r != nil {
		r.held.Add(-int64(n))
	}
}

// Limit is the size of the room in bytes; 0 for no limit.
func (r *Room) Limit() int64 {
	if r == nil {
		return 0
	}
	return r.limit
}

// Held is how many bytes are taken.
func (r *Room) Held() int64 {
	if r == nil {
		return 0
	}
	return r.held.Load()
}

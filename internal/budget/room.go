package budget

import "sync/atomic"

// Room limits the bytes that are kept for holders that are no clients, as other replicas are. As in a Budget, a holder can have at most as
// much as is free then, so that it leaves room for others. A nil Room has no limit. It is safe for concurrent use.
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
	if all := r.held.Add(int64(n)); int64(held+n) > r.limit-all {
		r.held.Add(-int64(n))
		return false
	}
	return true
}

// Put gives n bytes back.
func (r *Room) Put(n int) {
	if r != nil {
		r.held.Add(-int64(n))
	}
}

// Held is how many bytes are taken.
func (r *Room) Held() int64 {
	if r == nil {
		return 0
	}
	return r.held.Load()
}

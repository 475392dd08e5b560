package budget

import "sync"

// Share is what one holder has of a Room. The first bytes of each share are its own, outside of the room, so that it can hold a little
// even when other holders have taken all of the room. A nil Share has no limit. It is safe for concurrent use.
type Share struct {
	room *Room
	own  int

	mu     sync.Mutex
	held   int  // guarded by mu; own bytes included
	closed bool // guarded by mu
}

// Share returns a new share with own bytes outside of the room, or nil if the Room is nil. The caller must Close it.
func (r *Room) Share(own int) *Share {
	if r == nil {
		return nil
	}
	return &Share{room: r, own: own}
}

// Take takes n bytes and reports whether there was room. There is none after Close.
func (s *Share) Take(n int) bool {
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before, after := max(0, s.held-s.own), max(0, s.held+n-s.own)
	if s.closed || after > before && !s.room.Take(after-before, before) {
		return false
	}
	s.held += n
	return true
}

// Put gives n bytes back that were taken.
func (s *Share) Put(n int) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return // it has given back everything
	}
	before := max(0, s.held-s.own)
	s.held -= n
	s.room.Put(before - max(0, s.held-s.own))
}

// Held is how many bytes are taken.
func (s *Share) Held() int {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

// Close gives everything back. It can be called more than once.
func (s *Share) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room.Put(max(0, s.held-s.own))
	s.held, s.closed = 0, true
}

package httpproxy

import "sync"

// requestCost is about what a request under way takes besides its body and header, in bytes: the stacks of its goroutines, buffers
// for its answer, and a connection to an engine.
const requestCost = 32 << 10

// requestShare limits the requests under way of one owner to this multiple of those that are free. One client can then use most of
// them, and however many it sends, some are left for others (budget does the same with memory).
const requestShare = 2

// underWay counts the requests under way by their owners.
type underWay struct {
	most int

	mu     sync.Mutex // guards what follows
	open   int
	owners map[string]int
}

// enter counts one more request of an owner, if there is room for it.
func (u *underWay) enter(owner string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.owners[owner] >= requestShare*(u.most-u.open) {
		return false
	}
	u.open++
	u.owners[owner]++
	return true
}

// leave is the end of enter.
func (u *underWay) leave(owner string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.open--
	if u.owners[owner]--; u.owners[owner] == 0 {
		delete(u.owners, owner)
	}
}

package httpproxy

import (
	"sync"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// requestIDs are the clients' ids of requests under way, and those of copies for mirrors. An engine takes X-Request-Id for its own id of
// the request, and a request_id in the body only without that header. Releases of vLLM before 0.15 require it to be unique among the
// requests in the engine: they refuse the second, or fail. So of requests under way with the same id only one brings it to an engine
// unchanged. Other replicas do not know of them. It is safe for concurrent use.
type requestIDs struct {
	mu   sync.Mutex
	used map[string]int
}

// enter takes the client's id of a request that begins and returns the one for the engine. leave must be called when the
// request is over.
func (r *requestIDs) enter(id string) (forEngine string, leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.used == nil {
		r.used = map[string]int{}
	}
	forEngine = id
	if r.used[id] > 0 {
		forEngine = id + "-" + picker.NewRequestID()[:16]
	}
	r.used[id]++
	return forEngine, func() { r.leave(id) }
}

func (r *requestIDs) leave(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.used[id]--; r.used[id] <= 0 {
		delete(r.used, id)
	}
}

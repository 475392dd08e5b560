package picker

import "sync/atomic"

// retries is the retry budget of a pool, as gRPC has one: each request adds a fraction of a retry, and each retry costs 1.
// So failing engines receive at most retryShare more requests than clients send, and a few at the start.
type retries struct {
	// spent is how much of retryBurst is used, in parts; a retry takes retryParts of them.
	spent atomic.Int64
}

const (
	// retryParts is how many requests bring a retry: a fifth more requests are allowed.
	retryParts = 5
	// retryBurst is how many retries are saved up.
	retryBurst = 20
)

// recordArrival counts a request.
func (r *retries) recordArrival() {
	for {
		spent := r.spent.Load()
		if spent <= 0 || r.spent.CompareAndSwap(spent, spent-1) {
			return
		}
	}
}

// take asks for a retry.
func (r *retries) take() bool {
	for {
		spent := r.spent.Load()
		if spent+retryParts > retryBurst*retryParts {
			return false
		}
		if r.spent.CompareAndSwap(spent, spent+retryParts) {
			return true
		}
	}
}

// MayRetry asks the pool's retry budget whether the request can be sent to another endpoint after one has received it and
// failed. A request that no engine has received need not ask.
func (d *Decision) MayRetry() bool {
	if d.view.retries.take() {
		return true
	}
	d.view.stats.unretried.Add(1)
	return false
}

package cluster

import (
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// servedAfterDelete is how long a deleted pool is served. A pool that is deleted with --cascade=orphan, to be made again with
// another immutable field, keeps its pods and pickers: without this, all requests between the two would get 404, and the index
// would be lost. Pickers that the operator runs end with a pool that is deleted for good.
const servedAfterDelete = time.Hour

// deleted is the pool that is followed, as it was last.
type deleted struct {
	last *v1alpha1.InferencePool // nil before there was one, and after the time is over
	at   time.Time               // when it was seen to be gone; zero while it is there
}

// over reports whether a deleted pool must no longer be served.
func (d *deleted) over(now time.Time) bool {
	return d.last != nil && !d.at.IsZero() && now.Sub(d.at) >= servedAfterDelete
}

// keepDeleted returns the pools with the followed one, also when it was deleted a short time ago.
func (s *Source) keepDeleted(pools []*v1alpha1.InferencePool, now time.Time) []*v1alpha1.InferencePool {
	d := &s.deleted
	switch i := slices.IndexFunc(pools, func(p *v1alpha1.InferencePool) bool { return p.Name == s.pool.Name }); {
	case i >= 0:
		*d = deleted{last: pools[i]}
	case d.last == nil:
	case d.at.IsZero():
		d.at = now
		until := now.Add(servedAfterDelete).UTC().Format(time.RFC3339)
		s.log.Info("The pool was deleted, serving it as it was", "pool", s.pool.String(), "until", until)
		return append(pools, d.last)
	case d.over(now):
		d.last = nil
		s.log.Info("The pool was not made again, it is no longer served", "pool", s.pool.String())
	default:
		return append(pools, d.last)
	}
	return pools
}

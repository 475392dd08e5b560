package lifecycle

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// progress returns how far the rollout is. A rollout stops when a new pod is not ready and there was no progress for the
// deadline, or when new pods end over and over; it continues by itself when such a pod becomes ready after all, or was
// removed.
func (r *plan) progress() Progress {
	replaced := r.Pool.Current != "" && r.Pool.Current != r.Pool.Revision
	waits := false
	var forward, ready time.Time
	for i := range r.Pods {
		p := &r.Pods[i]
		switch {
		case p.Deleting || p.Finished:
		case p.Revision != r.Pool.Revision:
			replaced = true
		case p.Mark.Reason != "" || p.lost(): // a node that is lost does not stop a rollout
		default:
			last := p.Created
			if p.Ready {
				last = p.ReadyAt
				ready = latest(ready, last)
			} else {
				waits = true
			}
			forward = latest(forward, last)
		}
	}
	switch {
	case !replaced:
		return UpToDate
	case r.Pool.Paused:
		return Paused
	case r.Pool.Refused:
		return Refused
	case r.Pool.OnDelete:
		return WaitingOnDelete
	case r.brokenRevision(ready):
		return Stopped
	case waits:
		deadline := forward.Add(r.Pool.ProgressDeadline)
		if !r.Now.Before(deadline) {
			return Stopped
		}
		r.wake(deadline)
	}
	return RollingOut
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// current is the revision that counts as served with: the new one as soon as no other pod is left and enough of the
// new ones serve. A pool without pods keeps the old one while the rollout waits, to grow with it.
func (r *plan) current() string {
	if r.Pool.Current == r.Pool.Revision {
		return r.Pool.Current
	}
	newest, other := map[endpoint.Role]int{}, ""
	for i := range r.Pods {
		p := &r.Pods[i]
		switch {
		case p.Finished || p.Deleting:
		case p.Revision != r.Pool.Revision:
			other = p.Revision
		case p.serving():
			newest[p.Role]++
		}
	}
	switch {
	case other == "" && (r.Pool.Current == "" || r.suffice(newest) && (len(newest) > 0 || !r.holds())):
		return r.Pool.Revision
	case r.Pool.Current == "":
		return other
	}
	return r.Pool.Current
}

// suffice reports whether so many serving pods of each role are the size of the pool.
func (r *plan) suffice(pods map[endpoint.Role]int) bool {
	all := 0
	for _, n := range pods {
		all += n
	}
	for i := range r.Pool.Roles {
		if role := &r.Pool.Roles[i]; !role.Goes && pods[role.Of] < role.Size {
			return false
		}
	}
	return len(r.Pool.Roles) > 0 || all >= r.Pool.Size
}

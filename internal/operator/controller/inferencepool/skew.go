package inferencepool

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// clockSkew is how far the clock of a node can be ahead without anything being thought of it.
const clockSkew = time.Minute

// ofNode is a time that a pod's node has written, by the operator's clock as far as that is known. If the node's clock is ahead, the
// time is in the future, and what waits for it would wait until then: it counts as that of the pod's creation, which is the API
// server's. So does a time before that.
func (r *scope) ofNode(pod *corev1.Pod, at time.Time) time.Time {
	created := pod.CreationTimestamp.Time
	if !at.IsZero() && (at.Before(created) || at.After(r.now.Add(clockSkew))) {
		return created
	}
	return at
}

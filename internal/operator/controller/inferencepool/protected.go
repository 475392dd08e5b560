package inferencepool

import (
	"context"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
)

// evictionMemory is what is remembered for the next disruption budget.
type evictionMemory struct {
	// waitSince is since when pods wait for a replacement because their nodes go away; zero while none does. recalled is whether
	// the time was read that the process before has kept.
	waitSince time.Time
	recalled  bool
	noRoom    string // why no pod could be created
	// protected is how many pods the last budget protected, and known whether there was one. absentSince is since when there have been
	// fewer pods than the pool wants; zero while there are not.
	protected   int
	known       bool
	absentSince time.Time
}

// protected counts the pods that a disruption budget protects, up to the size of the pool: those that have a node and are there to stay,
// and those that take the place of such pods that have gone, until they have a node too, or had none for nodeFor. Without
// the second kind an evicted pod would count no more as soon as it is being deleted, and the budget would admit the next
// eviction at once. A scale-up that finds no GPU forbids no evictions: its pods take no other's place. A process that has just
// begun to lead takes all pods for replacements.
//
// Pods of spot instances that go away are not protected, because their nodes can end before a replacement serves.
func (r *budget) protected(ctx context.Context) (int, error) {
	size := chosenSize(r.scope, r.observed).now
	placed, coming, absent := 0, 0, size
	for _, pod := range r.pods {
		if !stays(pod) {
			continue
		}
		absent--
		if pod.Spec.NodeName != "" {
			lost, err := r.onLostSpot(ctx, pod)
			if err != nil {
				return 0, err
			}
			if !lost {
				placed++
			}
		} else if r.within(pod.CreationTimestamp.Time) {
			coming++
		}
	}
	m := &r.memory.evictions
	if absent <= 0 || m.noRoom != "" {
		m.absentSince = time.Time{}
	} else {
		if m.absentSince.IsZero() {
			m.absentSince = r.now
		}
		if r.within(m.absentSince) {
			coming += absent
		}
	}
	before := m.protected
	if !m.known {
		before = math.MaxInt
	}
	m.protected, m.known = min(size, max(placed, min(before, placed+coming))), true
	return m.protected, nil
}

// within reports whether nodeFor has not passed since a time, and has the pool reconciled when it has.
func (r *budget) within(since time.Time) bool {
	due := since.Add(nodeFor)
	if !r.now.Before(due) {
		return false
	}
	r.wakeAt(due)
	return true
}

// onLostSpot reports whether a pod's node is a spot instance that goes away.
func (r *budget) onLostSpot(ctx context.Context, pod *corev1.Pod) (bool, error) {
	state, err := (&nodes{r.scope}).node(ctx, pod)
	if err != nil || state == lifecycle.NodeStays {
		return false, err
	}
	return r.onSpot(ctx, pod)
}

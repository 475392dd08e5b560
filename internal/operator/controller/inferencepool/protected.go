package inferencepool

import (
	"context"
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
	// protected is how many pods the last budget protected, and known whether there was one. shortSince is since when fewer pods than that
	// have a node; zero while as many have.
	protected  int
	known      bool
	surge      int // how many pods beyond protected have a node and are there to stay
	shortSince time.Time
}

// short reports whether the next eviction waits for the replacements of pods that have gone.
func (m *evictionMemory) short() bool { return !m.shortSince.IsZero() }

// protected counts the pods that a disruption budget protects, up to the size of the pool: those that have a node and are there to stay;
// and as many others as were protected before, for nodeFor: they are the replacements of pods that have gone. Without
// the second kind an evicted pod would count no more as soon as it is being deleted, and the budget would admit the next
// eviction at once. A scale-up that finds no GPU forbids no evictions: there were no such pods before. A process that has just
// begun to lead takes all pods for replacements.
//
// A pod that goes keeps its GPU and its part of a quota until it has ended, so the time of its replacement begins then.
//
// Pods of spot instances that go away are not protected, because their nodes can end before a replacement serves.
func (r *budget) protected(ctx context.Context) (int, error) {
	size := chosenSize(r.scope, r.observed).now
	placed, nodeless, lost, held, ending := 0, 0, 0, 0, false
	for _, pod := range r.pods {
		switch mark := markOf(pod); {
		case !stays(pod):
			if mark.Reason != "" && mark.Deadline.IsZero() && pod.DeletionTimestamp.IsZero() {
				held++ // by a person
			}
			ending = ending || r.ends(pod, mark)
		case pod.Spec.NodeName == "":
			nodeless++
		default:
			gone, err := r.onLostSpot(ctx, pod)
			if err != nil {
				return 0, err
			}
			if gone {
				lost++
			} else {
				placed++
			}
		}
	}
	m := &r.memory.evictions
	before := m.protected
	if !m.known {
		before = size - lost - held
	}
	coming := size - placed - lost - held // nothing takes the place of a pod that is held, unless it is there already
	if m.noRoom != "" && !ending {
		coming = min(coming, nodeless)
	}
	if min(before, placed+coming) <= placed {
		m.shortSince = time.Time{}
	} else {
		if m.shortSince.IsZero() || ending {
			m.shortSince = r.now
		}
		if due := m.shortSince.Add(nodeFor); r.now.Before(due) {
			r.wakeAt(due)
		} else {
			coming, m.shortSince = 0, time.Time{}
		}
	}
	m.protected, m.known = max(0, min(size, max(placed, min(before, placed+coming)))), true
	m.surge = max(0, placed-m.protected)
	return m.protected, nil
}

// ends reports whether a pod is about to end: it drains or terminates, and its time for that has not passed.
func (r *budget) ends(pod *corev1.Pod, mark lifecycle.Mark) bool {
	until := mark.Deadline
	if !pod.DeletionTimestamp.IsZero() {
		until = pod.DeletionTimestamp.Time // with the grace
	}
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded || !r.now.Before(until) {
		return false
	}
	r.wakeAt(until)
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

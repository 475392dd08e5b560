package inferencepool

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// surgeless is a pool of three without surge, budgeted.
func surgeless(t *testing.T) *world {
	w, _ := budgeted(t, func(p *v1alpha1.InferencePool) {
		p.Spec.Replicas = ptr.To(int32(3))
		p.Spec.Rollout = &v1alpha1.Rollout{Type: v1alpha1.RollingUpdate, MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromInt32(1))}
	})
	w.expectEvictable(1, "rollout.maxSurge")
	return w
}

// evict removes a pod that serves, as an eviction that was admitted does. The operator has not seen it yet.
func (w *world) evict() {
	w.t.Helper()
	for _, pod := range w.all() {
		if isTrue(pod, corev1.PodReady) {
			w.must(w.api.Delete(context.Background(), pod))
			return
		}
	}
	w.fail("there is none to evict")
}

// Found on a cluster: two pods were evicted within a second, because the replacement of the first had no node yet and did not count.
func TestTheNextEvictionWaitsForTheReplacementOfTheOneBefore(t *testing.T) {
	for name, between := range map[string]func(w *world){
		"the same operator": func(*world) {},
		"another operator leads": func(w *world) {
			children := w.r.Children
			w.start()
			w.r.Children = children
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := surgeless(t)
			for range 3 {
				w.evict()
				w.expectEvictable(0, "") // at the API server, at once
				if _, err := w.reconcile(); err != nil {
					t.Fatal(err)
				}
				w.expectEvictable(0, "rollout.maxSurge") // the operator has seen that it is gone
				between(w)
				w.settleDown()
				w.expectEvictable(0, "rollout.maxSurge") // its replacement is there, without a node
				w.place()
				w.settleDown()
				w.expectEvictable(0, "rollout.maxSurge") // its model loads
				w.serve()
				w.expectEvictable(1, "rollout.maxSurge")
			}
		})
	}
}

func TestTheNextEvictionWaitsNoLongerThanThereIsRoom(t *testing.T) {
	w := surgeless(t)
	for left := 2; left > 0; left-- {
		w.evict()
		w.settleDown()
		w.clock.SetTime(w.clock.Now().Add(nodeFor - time.Second))
		w.settleDown()
		w.expectEvictable(0, "rollout.maxSurge")
		w.clock.SetTime(w.clock.Now().Add(time.Second))
		w.settleDown()
		w.expectEvictable(1, "rollout.maxSurge")
	}
}

// A scale-up that finds no node forbids no evictions.
func TestEvictionsDoNotWaitForPodsThatTakeNoOthersPlace(t *testing.T) {
	w := surgeless(t)
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To(int32(5)) })
	w.settleDown()
	if n := len(w.all()); n != 5 {
		w.fail("%d pods", n)
	}
	w.expectEvictable(1, "rollout.maxSurge")
	w.evict()
	w.settleDown()
	w.expectEvictable(0, "rollout.maxSurge")
}

// All pods of a spot instance that goes away can be evicted at once, and those of other nodes are protected as before.
func TestAllPodsOfASpotInstanceCanBeEvicted(t *testing.T) {
	w, node := budgeted(t, func(p *v1alpha1.InferencePool) { p.Spec.Replicas = ptr.To(int32(3)) })
	node.Labels = map[string]string{"karpenter.sh/capacity-type": "spot"}
	w.must(w.api.Update(context.Background(), node))
	w.cordon(node)
	w.expectEvictable(3, "spot instance")
	for left := 2; left >= 0; left-- {
		w.evict()
		w.settleDown()
		w.expectEvictable(left, "")
	}
}

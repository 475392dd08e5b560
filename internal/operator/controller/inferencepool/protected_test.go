package inferencepool

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// A pod that terminates counts towards a quota until it has ended. Its replacement is refused until then, and has room afterwards.
func TestTheNextEvictionWaitsForRoomInAQuota(t *testing.T) {
	for surge := range 2 {
		w, node := budgeted(t, func(p *v1alpha1.InferencePool) {
			p.Spec.Replicas = ptr.To(int32(3))
			p.Spec.Rollout = &v1alpha1.Rollout{Type: v1alpha1.RollingUpdate, MaxSurge: ptr.To(intstr.FromInt(surge)), MaxUnavailable: ptr.To(intstr.FromInt(1 - surge))}
		})
		w.broken = func(verb string, obj client.Object) (error, error) {
			if _, ok := obj.(*corev1.Pod); ok && verb == "create" && len(w.all()) >= 3 {
				return forbidden("pods", obj.GetName(), "exceeded quota: gpus"), nil
			}
			return nil, nil
		}
		if surge > 0 {
			w.cordon(node)
			w.settleDown()
			w.expectEvictable(1, "a quota is used up")
		}
		for range 2 {
			var evicted *corev1.Pod
			for _, pod := range w.all() {
				if isTrue(pod, corev1.PodReady) && pod.DeletionTimestamp.IsZero() && pod.Spec.NodeName == "node" {
					evicted = pod
				}
			}
			evicted.Finalizers = []string{"example.com/terminates"}
			w.must(w.api.Update(context.Background(), evicted))
			w.must(w.api.Delete(context.Background(), evicted))
			w.settleDown()
			w.expectEvictable(0, "")
			w.must(w.api.Get(context.Background(), client.ObjectKeyFromObject(evicted), evicted))
			evicted.Finalizers = nil
			w.must(w.api.Update(context.Background(), evicted)) // it has ended
			w.settleDown()
			w.expectEvictable(0, "") // its replacement is there
			w.place()
			w.settleDown()
			w.expectEvictable(0, "")
			w.serve()
			w.settleDown()
			w.settleDown()
			w.expectEvictable(1, "")
		}
	}
}

// Without surge, a pod that drains for a rollout is the one that can be away, for as long as it drains, and until its replacement serves.
func TestNoPodIsEvictedBesideOneThatDrainsForARollout(t *testing.T) {
	w := surgeless(t)
	w.edit(func(s *v1alpha1.InferencePoolSpec) {
		s.Drain.DeadlineSeconds = ptr.To(int32(3600))
		s.Template.Spec.Containers[0].Args = []string{"--model", "other"}
	})
	for _, pod := range w.all() {
		w.engine(pod).requests = []time.Time{w.clock.Now().Add(50 * time.Minute)}
	}
	for range 4 {
		w.settleDown()
		w.expectEvictable(0, "when the replacement of the one before serves")
		w.clock.SetTime(w.clock.Now().Add(nodeFor))
	}
	w.clock.SetTime(w.clock.Now().Add(10 * time.Minute))
	for range 3 {
		w.tick()
		w.settleDown()
		w.expectEvictable(0, "when the replacement of the one before serves")
	}
}

// Nothing will take the place of a pod that a person holds.
func TestAPodThatAPersonHoldsIsNotWaitedFor(t *testing.T) {
	w := surgeless(t)
	held := w.all()[0]
	held.Labels[v1alpha1.LabelDrain] = "manual"
	w.must(w.api.Update(context.Background(), held))
	w.settleDown()
	w.expectEvictable(1, "rollout.maxSurge")
	// Where others have its place, they are protected as ever.
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To(int32(4)) })
	w.serve()
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To(int32(3)) })
	w.settleDown()
	if n := len(w.all()); n != 4 {
		w.fail("%d pods", n)
	}
	w.expectEvictable(1, "rollout.maxSurge")
}

// A pod without a node goes from island to island, each time as a new one. What counts is how long the pool has been short of it.
func TestTheNextEvictionDoesNotWaitForAllIslands(t *testing.T) {
	w, _ := budgeted(t, func(p *v1alpha1.InferencePool) {
		p.Spec.Replicas = ptr.To(int32(3))
		p.Spec.Rollout = &v1alpha1.Rollout{Type: v1alpha1.RollingUpdate, MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromInt32(1))}
		p.Spec.Placement = &v1alpha1.Placement{}
		for _, name := range []string{"a", "b", "c", "d"} {
			p.Spec.Placement.Islands = append(p.Spec.Placement.Islands, v1alpha1.Island{Name: name, ProvisionTimeoutSeconds: 300})
		}
	})
	w.evict()
	for minute := range 10 {
		w.settleDown()
		if n, _ := w.evictable(); n != 0 {
			w.fail("%d pods can be evicted after %d min", n, minute)
		}
		w.clock.SetTime(w.clock.Now().Add(time.Minute))
	}
	w.settleDown()
	w.expectEvictable(1, "rollout.maxSurge")
}

func TestAnotherOperatorLetsAllPodsOfASpotInstanceGo(t *testing.T) {
	w, node := budgeted(t, func(p *v1alpha1.InferencePool) {
		p.Spec.Replicas = ptr.To(int32(8))
		p.Spec.Rollout = &v1alpha1.Rollout{Type: v1alpha1.RollingUpdate, MaxSurge: ptr.To(intstr.FromString("50%"))}
	})
	node.Labels = map[string]string{"karpenter.sh/capacity-type": "spot"}
	w.must(w.api.Update(context.Background(), node))
	w.cordon(node)
	w.expectEvictable(8, "spot instance")
	children := w.r.Children
	w.start()
	w.r.Children = children
	w.settleDown()
	w.expectEvictable(8, "spot instance")
}

package inferencepool

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
)

// evictable returns how many pods that serve the API server would let be evicted now, as the disruption controller computes it, and
// what the budget says.
func (w *world) evictable() (int, string) {
	w.t.Helper()
	budget := &policyv1.PodDisruptionBudget{}
	w.must(w.api.Get(context.Background(), poolKey, budget))
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	w.must(err)
	healthy, unready := 0, 0
	for _, pod := range w.all() {
		switch {
		case !selector.Matches(labels.Set(pod.Labels)) || !pod.DeletionTimestamp.IsZero():
		case isTrue(pod, corev1.PodReady):
			healthy++
		case config.PodServes(pod):
			unready++
		}
	}
	least := budget.Spec.MinAvailable.IntValue()
	if *budget.Spec.UnhealthyPodEvictionPolicy == policyv1.IfHealthyBudget && (healthy < least || least == 0) {
		unready = 0
	}
	return max(0, healthy-least) + unready, budget.Annotations[v1alpha1.AnnotationEvictions]
}

// budgeted is a pool that serves from a node, with its budget.
func budgeted(t *testing.T, change ...func(*v1alpha1.InferencePool)) (*world, *corev1.Node) {
	t.Helper()
	w := newWorld(t, change...)
	w.withChildren(func(*unstructured.Unstructured) error { return nil })
	w.serve()
	return w, w.join("node")
}

func (w *world) cordon(node *corev1.Node) {
	w.t.Helper()
	node.Spec.Unschedulable = true
	w.must(w.api.Update(context.Background(), node))
	w.settleDown()
}

// place gives each pod without a node the other node.
func (w *world) place() {
	w.t.Helper()
	for _, pod := range w.all() {
		if pod.Spec.NodeName == "" {
			pod.Spec.NodeName = w.join("other").Name
			w.must(w.api.Update(context.Background(), pod))
			w.setStatus(pod, func(s *corev1.PodStatus) {
				s.Conditions = append(s.Conditions, corev1.PodCondition{
					Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.clock.Now()),
				})
			})
		}
	}
}

func (w *world) expectEvictable(want int, says string) {
	w.t.Helper()
	if got, why := w.evictable(); got != want || !strings.Contains(why, says) {
		w.fail("%d pods can be evicted, want %d; the budget says %q, want %q", got, want, why, says)
	}
}

func TestAnEvictionWaitsForTheReplacement(t *testing.T) {
	for name, size := range map[string]int32{"a pool of one": 1, "a pool of two": 2} {
		t.Run(name, func(t *testing.T) {
			w, node := budgeted(t, func(p *v1alpha1.InferencePool) { p.Spec.Replicas = ptr.To(size) })
			w.expectEvictable(0, "when its replacement serves")
			w.cordon(node)
			for range size {
				w.expectEvictable(0, "when its replacement serves")
				w.place()
				w.settleDown()
				w.expectEvictable(0, "when its replacement serves") // the model loads
				w.serve()                                           // and one more pod is marked, which no budget protects
				w.settleDown()
			}
			w.expectEvictable(0, "when its replacement serves")
			on := map[string]int{}
			for _, pod := range w.all() {
				if markOf(pod).Reason == "" && isTrue(pod, corev1.PodReady) {
					on[pod.Spec.NodeName]++
				}
			}
			if on["node"] != 0 || on["other"] != int(size) {
				w.fail("serving pods by node: %v", on)
			}
		})
	}
}

// A drain takes as long as all replacements together: what counts is how long the newest one has been waited for.
func TestAnEvictionInALongDrainWaitsForItsReplacement(t *testing.T) {
	const size = 4
	w, node := budgeted(t, func(p *v1alpha1.InferencePool) { p.Spec.Replicas = ptr.To(int32(size)) })
	w.cordon(node)
	after := func(d time.Duration) {
		t.Helper()
		w.clock.SetTime(w.clock.Now().Add(d))
		w.settleDown()
		w.expectEvictable(0, "when its replacement serves")
	}
	left := func() (n int) {
		for _, pod := range w.all() {
			if pod.Spec.NodeName == node.Name && markOf(pod).Reason == "" {
				n++
			}
		}
		return n
	}
	for before := size; left() > 0; before-- {
		if left() != before {
			w.fail("%d pods are left, want %d", left(), before)
		}
		after(nodeFor - time.Minute) // an autoscaler makes a node
		w.place()
		after(20 * time.Minute) // the model loads
		for _, pod := range w.all() {
			if pod.Spec.NodeName != "" {
				w.run(pod)
				w.engine(pod)
			}
		}
		w.tick()
		after(2 * settle)
	}
}

func TestAnEvictionWaitsNoLongerThanThereIsRoom(t *testing.T) {
	w, node := budgeted(t)
	w.clock.SetTime(w.clock.Now().Add(time.Hour)) // what counts is how long a node has been going away
	w.cordon(node)
	w.expectEvictable(0, "when its replacement serves")
	w.clock.SetTime(w.clock.Now().Add(nodeFor - time.Second))
	w.settleDown()
	w.expectEvictable(0, "when its replacement serves")
	w.clock.SetTime(w.clock.Now().Add(time.Second))
	w.settleDown()
	w.expectEvictable(1, "no replacement got a node within 10 min")
	w.place() // late: its model loads
	w.settleDown()
	w.expectEvictable(0, "when its replacement serves")
	w.clock.SetTime(w.clock.Now().Add(30 * time.Minute))
	w.settleDown()
	w.expectEvictable(1, "no replacement became ready within 30 min")
	node.Spec.Unschedulable = false
	w.must(w.api.Update(context.Background(), node))
	w.settleDown()
	w.expectEvictable(0, "when its replacement serves")
	w.cordon(node) // another time
	w.expectEvictable(0, "when its replacement serves")
}

// The wait does not begin again when another replica of the operator leads, as it does when nodes with operators are drained one after
// the other.
func TestAnEvictionWaitsNoLongerWithAnotherOperator(t *testing.T) {
	w, node := budgeted(t)
	another := func() {
		t.Helper()
		children := w.r.Children
		w.start()
		w.r.Children = children
		w.settleDown()
	}
	annotate := func(since string) {
		t.Helper()
		kept := &policyv1.PodDisruptionBudget{}
		w.must(w.api.Get(context.Background(), poolKey, kept))
		kept.Annotations[v1alpha1.AnnotationEvictionsWaitSince] = since
		w.must(w.api.Update(context.Background(), kept))
	}
	w.cordon(node)
	for range 3 {
		w.clock.SetTime(w.clock.Now().Add(3 * time.Minute))
		another()
		w.expectEvictable(0, "when its replacement serves")
	}
	w.clock.SetTime(w.clock.Now().Add(time.Minute))
	another()
	w.expectEvictable(1, "no replacement got a node within 10 min")
	for _, since := range []string{"yesterday", w.clock.Now().Add(time.Hour).Format(time.RFC3339)} {
		annotate(since)
		another()
		w.expectEvictable(0, "when its replacement serves")
	}
	node.Spec.Unschedulable = false
	w.must(w.api.Update(context.Background(), node))
	another()
	kept := &policyv1.PodDisruptionBudget{}
	w.must(w.api.Get(context.Background(), poolKey, kept))
	if since, ok := kept.Annotations[v1alpha1.AnnotationEvictionsWaitSince]; ok {
		t.Errorf("no pod waits, and the budget says since %s", since)
	}
	w.clock.SetTime(w.clock.Now().Add(time.Hour))
	w.cordon(node) // another time
	w.expectEvictable(0, "when its replacement serves")
}

// Engines serve without their reporters, in pods that are not ready. An API server evicts such pods whatever else a budget says, unless
// it has the policy IfHealthyBudget.
func TestAnEvictionOfAPodThatServesWithoutItsReporterWaits(t *testing.T) {
	for name, n := range map[string]int{"one reporter": 1, "all reporters": 2} {
		t.Run(name, func(t *testing.T) {
			w, node := budgeted(t)
			w.loseReporters(n)
			w.settleDown()
			w.expectEvictable(0, "when its replacement serves")
			w.cordon(node)
			w.expectEvictable(0, "when its replacement serves")
			w.clock.SetTime(w.clock.Now().Add(nodeFor))
			w.settleDown()
			w.expectEvictable(n, "no replacement got a node within 10 min") // all of them: the budget cannot count them
		})
	}
}

// loseReporters stops the reporters of some pods.
func (w *world) loseReporters(n int) {
	w.t.Helper()
	for _, pod := range w.all()[:n] {
		w.setStatus(pod, func(s *corev1.PodStatus) {
			s.InitContainerStatuses[0].Ready, s.ContainerStatuses[0].Ready = false, true
			setCondition(s, corev1.ContainersReady, false, w.clock.Now())
			setCondition(s, corev1.PodReady, false, w.clock.Now())
		})
	}
}

func TestAnEvictionDoesNotWaitForPodsThatTheAPIServerRefuses(t *testing.T) {
	for why, says := range map[string]string{"exceeded quota: gpus": "a quota is used up", "denied by a policy": "the API server refuses pods"} {
		t.Run(why, func(t *testing.T) {
			w, node := budgeted(t)
			w.broken = func(verb string, obj client.Object) (error, error) {
				if _, ok := obj.(*corev1.Pod); ok && verb == "create" {
					return forbidden("pods", obj.GetName(), why), nil
				}
				return nil, nil
			}
			w.cordon(node)
			w.settleDown()
			w.expectEvictable(1, says)
			w.broken = nil
			w.settleDown()
			w.expectEvictable(0, "when its replacement serves")
		})
	}
}

func TestAnEvictionDoesNotWaitForRoomOnIslands(t *testing.T) {
	island := func(most int32) func(*v1alpha1.InferencePoolSpec) {
		return func(s *v1alpha1.InferencePoolSpec) {
			s.Placement = &v1alpha1.Placement{Islands: []v1alpha1.Island{{Name: "one", MaxReplicas: ptr.To(most)}}}
		}
	}
	w, node := budgeted(t, func(p *v1alpha1.InferencePool) { island(2)(&p.Spec) })
	w.cordon(node)
	w.settleDown()
	w.expectEvictable(1, "no island has room")
	w.edit(island(3))
	w.settleDown()
	w.settleDown()
	w.expectEvictable(0, "when its replacement serves")
}

func TestAnEvictionDoesNotWaitForPodsThatEnd(t *testing.T) {
	w, node := budgeted(t)
	w.cordon(node)
	for range 2 {
		w.expectEvictable(0, "when its replacement serves")
		for _, pod := range w.living() {
			if pod.Spec.NodeName == "" {
				w.end(pod)
			}
		}
		w.settleDown()
		w.settleDown()
	}
	w.expectEvictable(1, "new pods end")
}

func TestAnEvictionDoesNotWaitForWhatThePoolDoesNotDo(t *testing.T) {
	for name, tc := range map[string]struct {
		pool func(*v1alpha1.InferencePoolSpec)
		r    func(*Reconciler)
		says string
	}{
		"a cordon moves no pod": {pool: func(s *v1alpha1.InferencePoolSpec) { s.Drain.OnCordon = v1alpha1.CordonKeep }, says: "drain.onCordon"},
		"a paused pool":         {pool: func(s *v1alpha1.InferencePoolSpec) { s.Paused = v1alpha1.PauseRollout }, says: "spec.paused"},
		"no surge": {pool: func(s *v1alpha1.InferencePoolSpec) {
			s.Rollout = &v1alpha1.Rollout{Type: v1alpha1.RollingUpdate, MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromInt32(1))}
		}, says: "rollout.maxSurge"},
		"an operator that cannot read nodes": {r: func(r *Reconciler) { r.NodeSignals = false }, says: "cannot read nodes"},
		"a pod that tolerates cordons": {pool: func(s *v1alpha1.InferencePoolSpec) {
			s.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		}, says: "tolerates node.kubernetes.io/unschedulable"},
		"what a rollout may miss": {pool: func(s *v1alpha1.InferencePoolSpec) {
			s.Rollout = &v1alpha1.Rollout{Type: v1alpha1.RollingUpdate, MaxSurge: ptr.To(intstr.FromInt32(1)), MaxUnavailable: ptr.To(intstr.FromInt32(1))}
		}, says: "when its replacement serves"},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := budgeted(t, func(p *v1alpha1.InferencePool) {
				if tc.pool != nil {
					tc.pool(&p.Spec)
				}
			})
			if tc.r != nil {
				tc.r(w.r)
			}
			w.settleDown()
			w.expectEvictable(1, tc.says)
		})
	}
}

func TestAnEvictionFromASpotInstanceDoesNotWait(t *testing.T) {
	for key, value := range spotLabels {
		t.Run(key, func(t *testing.T) {
			w, node := budgeted(t)
			node.Labels = map[string]string{key: value}
			w.must(w.api.Update(context.Background(), node))
			w.settleDown()
			w.expectEvictable(0, "when its replacement serves") // the node stays
			w.cordon(node)
			w.expectEvictable(2, "spot instance") // both
		})
	}
	if SpotLabel("karpenter.sh/capacity-type", "on-demand") || SpotLabel("example.com/anything", "") {
		t.Error("an instance on demand counts as a spot instance")
	}
}

// A replacement that has become ready is one pod more than the pool needs. The operator marks an old pod for it, and as long as its view of
// the pods can be older than an eviction, the eviction would take another one.
func TestAReplacementMakesRoomForOnePodToLeave(t *testing.T) {
	w, node := budgeted(t, func(p *v1alpha1.InferencePool) { p.Spec.Replicas = ptr.To(int32(2)) })
	w.cordon(node)
	w.place()
	w.settleDown()
	marked := func() (n int) {
		for _, pod := range w.all() {
			if markOf(pod).Reason != "" {
				n++
			}
		}
		return n
	}
	for _, pod := range w.all() {
		if pod.Spec.NodeName == "other" {
			w.run(pod)
			w.engine(pod)
		}
	}
	for range 4 { // until the operator acts: the replacement is ready before it has seen that
		if n, _ := w.evictable(); n > 0 {
			w.fail("%d pods can be evicted while %d are marked", n, marked())
		}
		w.tick()
		w.clock.SetTime(w.clock.Now().Add(2 * settle))
		if n, _ := w.evictable(); n > 0 {
			w.fail("%d pods can be evicted while %d are marked", n, marked())
		}
		w.settleDown()
	}
	if marked() != 1 {
		w.fail("%d pods are marked", marked())
	}
}

package inferencepool

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
)

func TestNodesThatGoAway(t *testing.T) {
	w := newWorld(t)
	node := w.join("node")
	w.serve()
	node.Spec.Unschedulable = true
	w.must(w.api.Update(context.Background(), node))
	w.settleDown()
	w.expect("new-0", "new-1", "new-2") // the replacement is first
	node.Spec.Taints = []corev1.Taint{{Key: "aws-node-termination-handler/spot-itn", Effect: corev1.TaintEffectNoExecute}}
	w.must(w.api.Update(context.Background(), node))
	w.settleDown()
	names := w.names()
	marked := 0
	for _, pod := range w.all() {
		if markOf(pod).Reason == "node" {
			marked++
		}
	}
	if marked != 2 {
		w.fail("pods %v", names)
	}
}

// TestATaintedNodeThatPodsComeBackTo binds every pod to the one node there is, which asks pods to prefer others.
func TestATaintedNodeThatPodsComeBackTo(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) { p.Spec.Replicas = ptr.To[int32](1) })
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	node.Spec.Taints = []corev1.Taint{{Key: "aws-node-termination-handler/rebalance-recommendation", Effect: corev1.TaintEffectPreferNoSchedule}}
	w.must(w.api.Create(context.Background(), node))
	made := map[string]bool{}
	for range 13 {
		w.clock.SetTime(w.clock.Now().Add(time.Second))
		w.settleDown()
		for _, pod := range w.all() {
			made[pod.Name] = true
			if pod.Spec.NodeName == "" {
				pod.Spec.NodeName = node.Name
				w.must(w.api.Update(context.Background(), pod))
			}
		}
	}
	if len(made) > 3 {
		t.Errorf("%d pods in 13 s", len(made))
	}
}

func TestWhatANodeMeansForAPod(t *testing.T) {
	taint := func(key string) corev1.Node {
		return corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}}}
	}
	everything := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	const spot = "aws-node-termination-handler/spot-itn"
	for name, tc := range map[string]struct {
		node        corev1.Node
		tolerations []corev1.Toleration
		runs        bool
		want        lifecycle.Node
	}{
		"nothing":                           {corev1.Node{}, nil, true, lifecycle.NodeStays},
		"a taint of its hardware":           {taint("nvidia.com/gpu"), nil, true, lifecycle.NodeStays},
		"cordoned":                          {corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}, nil, true, lifecycle.NodeLeaves},
		"cordoned, and the pod tolerates":   {corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}, everything, true, lifecycle.NodeStays},
		"the autoscaler takes it":           {taint("ToBeDeletedByClusterAutoscaler"), nil, true, lifecycle.NodeLeaves},
		"the spot market takes it":          {taint(spot), nil, false, lifecycle.NodeDies},
		"tolerated, it takes what runs":     {taint(spot), everything, true, lifecycle.NodeDies},
		"tolerated, what starts is let be":  {taint(spot), everything, false, lifecycle.NodeStays},
		"not ready, tolerated for a moment": {taint("node.kubernetes.io/not-ready"), []corev1.Toleration{{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}, true, lifecycle.NodeUnready},
	} {
		t.Run(name, func(t *testing.T) {
			got, again := nodeOf(&tc.node, &corev1.Pod{Spec: corev1.PodSpec{Tolerations: tc.tolerations}}, tc.runs, nodeRules{notReadyFor: time.Minute, now: time.Now()})
			if got != tc.want || !again.IsZero() {
				t.Errorf("%d and again at %s, want %d", got, again, tc.want)
			}
		})
	}
}

func TestANodeThatIsNotReadyForAMomentKeepsItsPods(t *testing.T) {
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		for name, tc := range map[string]struct {
			seconds *int32
			until   time.Duration // of the pods' stay
		}{
			"by default a minute": {nil, time.Minute},
			"as the pool says":    {ptr.To[int32](300), 5 * time.Minute},
			"not at all":          {ptr.To[int32](0), 0},
		} {
			t.Run(key+" "+name, func(t *testing.T) {
				w := newWorld(t, func(p *v1alpha1.InferencePool) { p.Spec.Drain.NodeNotReadySeconds = tc.seconds })
				node := w.join("node")
				w.serve()
				notReady(w, node)
				for i := range node.Spec.Taints {
					node.Spec.Taints[i].Key = key
				}
				w.store(node)
				since := w.clock.Now()
				if tc.until > 0 {
					for _, at := range []time.Duration{0, time.Second, tc.until - time.Second} {
						w.clock.SetTime(since.Add(at))
						again, err := w.reconcile()
						w.must(err)
						if again == 0 || again > tc.until-at {
							t.Errorf("after %s the next reconcile is in %s", at, again)
						}
						w.expect("new-0", "new-1")
					}
				}
				w.clock.SetTime(since.Add(tc.until))
				w.settleDown()
				w.expect("new-0", "new-1", "new-2", "new-3")
			})
		}
	}
}

// Pods of a node that is not ready do not serve, so that there is no reason to replace them one by one; and they serve again at once
// if the node comes back.
func TestPodsOfANodeThatIsNotReadyAreReplacedWhateverTheSurge(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.InferencePoolSpec)
		old    []string
		all    []string
	}{
		"by default": {func(*v1alpha1.InferencePoolSpec) {}, []string{"new-0", "new-1"}, []string{"new-0", "new-1", "new-2", "new-3"}},
		"one pod":    {func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](1) }, []string{"new-0"}, []string{"new-0", "new-1"}},
		"one pod, no surge": {func(s *v1alpha1.InferencePoolSpec) {
			s.Replicas = ptr.To[int32](1)
			s.Rollout = &v1alpha1.Rollout{Type: v1alpha1.RollingUpdate, MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromInt32(1))}
		}, []string{"new-0"}, []string{"new-0", "new-1"}},
		"paused": {func(s *v1alpha1.InferencePoolSpec) { s.Paused = v1alpha1.PauseRollout }, []string{"new-0", "new-1"}, []string{"new-0", "new-1", "new-2", "new-3"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.edit(tc.change)
			node := w.join("node")
			w.serve()
			w.expect(tc.old...)
			silence := func() {
				t.Helper()
				notReady(w, node)
				w.store(node)
				w.clock.SetTime(w.clock.Now().Add(notReadyFor))
				w.settleDown()
				w.expect(tc.all...) // without a mark
			}
			silence()
			node.Spec.Taints = nil
			node.Status.Conditions[0].Status = corev1.ConditionTrue
			w.store(node)
			for _, pod := range w.all() {
				if pod.Spec.NodeName == node.Name {
					w.run(pod)
				}
			}
			w.settleDown()
			w.expect(tc.old...)
			silence()
			w.place()
			for _, pod := range w.all() {
				if pod.Spec.NodeName == "other" {
					w.run(pod)
				}
			}
			w.tick()
			w.settleDown()
			want := slices.Clone(tc.all)
			for i := range tc.old {
				want[i] += " node"
			}
			w.expect(want...)
		})
	}
}

func TestACordonMovesPodsAsThePoolChooses(t *testing.T) {
	stay, move := []string{"new-0", "new-1"}, []string{"new-0", "new-1", "new-2"}
	taint := func(key string) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
	}
	for name, tc := range map[string]struct {
		pool func(*v1alpha1.InferencePoolSpec)
		node func(*corev1.Node)
		want []string
	}{
		"by default it moves them":          {func(*v1alpha1.InferencePoolSpec) {}, nil, move},
		"Replace moves them":                {func(s *v1alpha1.InferencePoolSpec) { s.Drain.OnCordon = v1alpha1.CordonReplace }, nil, move},
		"Keep keeps them":                   {func(s *v1alpha1.InferencePoolSpec) { s.Drain.OnCordon = v1alpha1.CordonKeep }, nil, stay},
		"a paused pool keeps them":          {func(s *v1alpha1.InferencePoolSpec) { s.Paused = v1alpha1.PauseAll }, nil, stay},
		"a paused rollout keeps them":       {func(s *v1alpha1.InferencePoolSpec) { s.Paused = v1alpha1.PauseRollout }, nil, stay},
		"not when an autoscaler removes it": {func(s *v1alpha1.InferencePoolSpec) { s.Paused = v1alpha1.PauseAll }, taint("ToBeDeletedByClusterAutoscaler"), move},
		"nor when the node is being deleted": {func(s *v1alpha1.InferencePoolSpec) { s.Drain.OnCordon = v1alpha1.CordonKeep }, func(n *corev1.Node) {
			n.Finalizers = []string{"karpenter.sh/termination"}
		}, move},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			node := w.join("node")
			w.serve()
			w.edit(tc.pool)
			w.settleDown()
			w.expect(stay...)
			node.Spec.Unschedulable = true
			taint(corev1.TaintNodeUnschedulable)(node)
			if tc.node != nil {
				tc.node(node)
			}
			w.must(w.api.Update(context.Background(), node))
			if len(node.Finalizers) > 0 {
				w.must(w.api.Delete(context.Background(), node))
			}
			w.settleDown()
			w.expect(tc.want...)
		})
	}
}

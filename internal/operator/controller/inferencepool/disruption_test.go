package inferencepool

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
)

var update = flag.Bool("update", false, "write the tables of docs/disruption.md")

// disruption is something that happens to the node of a pool's pods.
type disruption struct {
	what string
	do   func(*world, *corev1.Node) // changes the object, which is then written; nil to delete it
	wait time.Duration
}

func tainted(key string, effect corev1.TaintEffect) func(*world, *corev1.Node) {
	return func(_ *world, n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: effect})
	}
}

// notReady is a node that is not reached any more: Kubernetes sets its taints, of these only one has a time, and makes its pods not ready.
// Nothing else of the pods changes.
func notReady(w *world, n *corev1.Node) {
	since := metav1.NewTime(w.clock.Now().Truncate(time.Second))
	w.clock.SetTime(since.Time)
	for _, pod := range w.all() {
		if pod.Spec.NodeName == n.Name {
			w.setStatus(pod, func(s *corev1.PodStatus) { setCondition(s, corev1.PodReady, false, since.Time) })
		}
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: since}}
	n.Spec.Taints = []corev1.Taint{
		{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: &since},
	}
}

var disruptions = []disruption{
	{"`kubectl cordon`, or the first step of `kubectl drain`", func(_ *world, n *corev1.Node) { n.Spec.Unschedulable = true }, 0},
	{"Cluster Autoscaler removes the node", tainted("ToBeDeletedByClusterAutoscaler", corev1.TaintEffectNoSchedule), 0},
	{"Karpenter removes the node", tainted("karpenter.sh/disrupted", corev1.TaintEffectNoSchedule), 0},
	{"spot notice, AWS", tainted("aws-node-termination-handler/spot-itn", corev1.TaintEffectNoSchedule), 0},
	{"termination notice, GKE", tainted("cloud.google.com/impending-node-termination", corev1.TaintEffectNoSchedule), 0},
	{"not ready for 59 s", notReady, 59 * time.Second},
	{"not ready for 60 s", notReady, 60 * time.Second},
	{"`kubectl delete node`, or the provider deletes the node of a lost machine", nil, 0},
}

// disrupted are the kinds of pools whose pods are all on the node.
var disrupted = []struct {
	kind string
	make func(*testing.T) *world
}{
	{"fixed size", owned(nil)},
	{"autoscaled", func(t *testing.T) *world {
		w := owned(func(s *v1alpha1.InferencePoolSpec) {
			s.Replicas, s.Autoscaling = nil, v1alpha1.Autoscaling{Mode: v1alpha1.AutoscalingActive, MaxReplicas: 9}
		})(t)
		w.r.Sizer = fixedSize(2)
		return w
	}},
	{"one pod", owned(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](1) })},
	{"`maxSurge: 0`", owned(func(s *v1alpha1.InferencePoolSpec) {
		s.Rollout = &v1alpha1.Rollout{Type: v1alpha1.RollingUpdate, MaxSurge: ptr.To(intstr.FromInt32(0)),
			MaxUnavailable: ptr.To(intstr.FromInt32(1)), ProgressDeadlineSeconds: 1800}
	})},
	{"`onCordon: Keep`, or paused", owned(func(s *v1alpha1.InferencePoolSpec) { s.Drain.OnCordon = v1alpha1.CordonKeep })},
	{"adopted Deployment", func(t *testing.T) *world {
		w := adoptedWorld(t)
		w.withChildren(func(*unstructured.Unstructured) error { return nil })
		return w
	}},
	{"adopted LeaderWorkerSet, a worker's node", groups},
}

func owned(change func(*v1alpha1.InferencePoolSpec)) func(*testing.T) *world {
	return func(t *testing.T) *world {
		w := newWorld(t, func(p *v1alpha1.InferencePool) {
			if change != nil {
				change(&p.Spec)
			}
		})
		w.withChildren(func(*unstructured.Unstructured) error { return nil })
		return w
	}
}

// groups are three groups, whose leaders are on other nodes than their workers.
func groups(t *testing.T) *world {
	w := adoptedWorld(t)
	w.withChildren(func(*unstructured.Unstructured) error { return nil })
	for i, leader := range w.all() {
		labels := map[string]string{config.LabelSet: "vllm", config.LabelGroup: fmt.Sprint(i), config.LabelMember: "0"}
		for k, v := range labels {
			metav1.SetMetaDataLabel(&leader.ObjectMeta, k, v)
		}
		leader.Spec.NodeName = w.join("other").Name
		w.must(w.api.Update(context.Background(), leader))
		labels[config.LabelMember] = "1"
		worker := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: poolKey.Namespace, Name: leader.Name + "-1", Labels: labels},
			Spec:       corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "vllm"}}},
		}
		w.must(w.api.Create(context.Background(), worker))
	}
	return w
}

// outcome disrupts the node of a pool's pods, and describes what the operator does at once.
func (d *disruption) outcome(t *testing.T, newPool func(*testing.T) *world) (does, evicts string) {
	t.Helper()
	w := newPool(t)
	ctx := context.Background()
	node := w.join("node")
	for w.pool().Spec.Template != nil && ptr.Deref(w.pool().Status.ReadyReplicas, 0) == 0 {
		w.settleDown()
		for _, pod := range w.all() {
			w.run(pod)
		}
		w.tick()
		w.settleDown()
	}
	before := len(w.all())
	if d.do == nil {
		w.must(w.api.Delete(ctx, node))
	} else {
		d.do(w, node)
		w.store(node)
	}
	w.clock.SetTime(w.clock.Now().Add(d.wait))
	for _, name := range []string{"a", "b"} {
		w.speak(name)
	}
	w.settleDown()
	created, marked, serving := len(w.all())-before, 0, 0
	for _, pod := range w.all() {
		switch {
		case markOf(pod).Reason == "node":
			marked++
		case isTrue(pod, corev1.PodReady):
			serving++
		}
	}
	switch {
	case created == 0 && marked == 0:
		does = "nothing"
	case marked == 0 && serving == 0 && created == before:
		does = "all replaced at once"
	case marked == 0 && created == 1:
		does = "replaced first"
	case marked == 0:
		does = fmt.Sprintf("%d replaced at once", created)
	case serving == 0:
		does = "all marked at once"
	default:
		does = fmt.Sprintf("%d marked at once", marked)
	}
	var budget policyv1.PodDisruptionBudget
	switch err := w.api.Get(ctx, poolKey, &budget); {
	case isGone(err) && err != nil:
		return does, "no budget"
	case serving == 0:
		return does, "any"
	}
	n, _ := w.evictable()
	if n == 0 {
		return does, "wait"
	}
	return does, fmt.Sprintf("%d at once", n)
}

// TestTheDisruptionContract keeps the table of docs/disruption.md: what the operator does when something happens to a node.
func TestTheDisruptionContract(t *testing.T) {
	var out strings.Builder
	out.WriteString("| | ")
	for _, pool := range disrupted {
		out.WriteString(pool.kind + " | ")
	}
	out.WriteString("\n|---|" + strings.Repeat("---|", len(disrupted)) + "\n")
	for i := range disruptions {
		d := &disruptions[i]
		out.WriteString("| " + d.what + " | ")
		for _, pool := range disrupted {
			does, evicts := d.outcome(t, pool.make)
			out.WriteString(does + "; " + evicts + " | ")
		}
		out.WriteString("\n")
	}
	keepTable(t, "../../../../docs/disruption.md", "disruptions", out.String())
}

// keepTable compares a table of a page, between two comments, with what it should be, or writes it.
func keepTable(t *testing.T, page, name, want string) {
	t.Helper()
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want = strings.ReplaceAll(want, " \n", "\n")
	begin, end := "<!-- table: "+name+" -->\n", "<!-- end: "+name+" -->"
	head, rest, ok := strings.Cut(string(raw), begin)
	got, tail, ok2 := strings.Cut(rest, end)
	switch {
	case !ok || !ok2:
		t.Fatalf("%s has no table %s", page, name)
	case *update:
		if err := os.WriteFile(page, []byte(head+begin+want+end+tail), 0o600); err != nil {
			t.Fatal(err)
		}
	case got != want:
		t.Errorf("%s has\n%s\nand true is\n%s\n(go test -run %s -update)", page, got, want, t.Name())
	}
}

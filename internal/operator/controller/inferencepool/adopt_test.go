package inferencepool

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/scaling"
)

// fixedSize is a Sizer.
type fixedSize int

// Decision implements Sizer.
func (s fixedSize) Decision(types.NamespacedName, v1alpha1.RoleName) (scaling.Decision, bool) {
	return scaling.Decision{Size: int(s), Wanted: int(s), Reason: scaling.LowUtilization}, true
}

// adoptedWorld has a Deployment of three pods that serve, and a pool that selects them.
func adoptedWorld(t *testing.T) *world {
	t.Helper()
	return adoptedWith(t, fixedSize(3))
}

// adoptedWith is adoptedWorld with another Sizer.
func adoptedWith(t *testing.T, sizer Sizer) *world {
	w := newWorld(t, func(p *v1alpha1.InferencePool) {
		p.Spec.Template, p.Spec.Replicas = nil, nil
		p.Spec.Selector = v1alpha1.PodSelector{MatchLabels: map[string]v1alpha1.LabelValue{"app": "vllm"}}
		p.Spec.Adoption = &v1alpha1.Adoption{ScaleTargetRef: v1alpha1.ScaleTarget{APIVersion: "apps/v1", Kind: "Deployment", Name: "vllm"}}
		p.Spec.Autoscaling = v1alpha1.Autoscaling{Mode: v1alpha1.AutoscalingActive, MaxReplicas: 9}
	})
	ctx := context.Background()
	w.must(w.api.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: poolKey.Namespace, Name: "vllm"}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](3)},
	}))
	for i := range 3 {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: poolKey.Namespace, Name: fmt.Sprintf("vllm-%d", i), Labels: map[string]string{"app": "vllm"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "vllm"}}},
		}
		w.must(w.api.Create(ctx, pod))
		w.run(pod)
		w.engine(pod)
	}
	w.r.Sizer = sizer
	w.tick()
	w.settleDown()
	return w
}

// undecided is a Sizer that has not looked at the pool yet.
type undecided struct{}

func (undecided) Decision(types.NamespacedName, v1alpha1.RoleName) (scaling.Decision, bool) {
	return scaling.Decision{}, false
}

// A new pool begins with the pods that it finds. It took minReplicas for its size, and two of three were given up.
func TestANewPoolKeepsTheAdoptedPodsUntilTheAutoscalerHasLooked(t *testing.T) {
	w := adoptedWith(t, undecided{})
	for range 3 {
		w.tick()
		w.settleDown()
	}
	if n := *w.pool().Status.DesiredReplicas; n != 3 || w.owned() != 3 || w.marked() != 0 {
		t.Errorf("the size is %d, the owner has %d, %d pods are marked", n, w.owned(), w.marked())
	}
}

// owned is the size of the Deployment.
func (w *world) owned() int32 {
	d := &appsv1.Deployment{}
	w.must(w.api.Get(context.Background(), client.ObjectKey{Namespace: poolKey.Namespace, Name: "vllm"}, d))
	return *d.Spec.Replicas
}

func TestAdoptedPodsDrainBeforeTheirOwnerIsScaled(t *testing.T) {
	w := adoptedWorld(t)
	if s := w.pool().Status; *s.ReadyReplicas != 3 || *s.DesiredReplicas != 3 || s.Selector != "app=vllm,!kvasir.dev/drain" {
		t.Fatalf("status %+v", s)
	}
	for _, pod := range w.all() {
		w.engine(pod).requests = []time.Time{w.clock.Now().Add(time.Minute)}
	}
	w.r.Sizer = fixedSize(2)
	w.settleDown()
	var marked *corev1.Pod
	for range 3 {
		w.tick()
		w.settleDown()
	}
	for _, pod := range w.all() {
		if markOf(pod).Reason != "" {
			marked = pod
		}
	}
	if marked == nil || marked.Annotations[corev1.PodDeletionCost] != lowestCost {
		w.fail("pods %v, %v", w.names(), marked)
	}
	if w.owned() != 3 {
		w.fail("the owner is scaled while the victim is busy")
	}
	w.clock.SetTime(w.clock.Now().Add(time.Minute))
	for range 3 {
		w.tick()
		w.settleDown()
	}
	if w.owned() != 2 {
		w.fail("the owner has %d pods", w.owned())
	}
	if len(w.all()) != 3 {
		w.fail("a pod of somebody else was deleted: %v", w.names())
	}
	// Demand returns before the owner has deleted it.
	w.r.Sizer = fixedSize(3)
	w.tick()
	w.settleDown()
	if w.owned() != 3 {
		w.fail("the owner has %d pods", w.owned())
	}
	w.tick()
	w.settleDown()
	for _, pod := range w.all() {
		if markOf(pod).Reason != "" || pod.Annotations[corev1.PodDeletionCost] != "" {
			w.fail("%s is still marked: %v", pod.Name, pod.Annotations)
		}
	}
}

func TestAScaleTargetThatIsNotThereIsTold(t *testing.T) {
	w := adoptedWorld(t)
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Adoption.ScaleTargetRef.Name = "nobody" })
	w.settleDown()
	if got := w.condition(v1alpha1.ConditionScaled); got != "False ScaleTargetRefused" {
		t.Errorf("scaled: %s", got)
	}
	if got := w.condition(v1alpha1.ConditionAutoscalingActive); got != "False TargetNotScalable" {
		t.Errorf("autoscaling: %s", got)
	}
}

func TestThePodsOfTwoPoolsBelongToTheOlder(t *testing.T) {
	w := adoptedWorld(t)
	older := w.pool()
	older.ResourceVersion, older.Name, older.UID = "", "older", ""
	w.clock.SetTime(w.clock.Now().Add(-time.Hour))
	w.must(w.api.Create(context.Background(), older))
	w.clock.SetTime(w.clock.Now().Add(time.Hour))
	younger := w.pool()
	younger.CreationTimestamp = metav1.NewTime(w.clock.Now())
	younger.Generation++
	w.must(w.api.Update(context.Background(), younger))
	w.settleDown()
	w.clock.SetTime(w.clock.Now().Add(settle))
	w.settleDown()
	if got := w.condition(v1alpha1.ConditionAccepted); got != "False SelectorOverlap" {
		t.Errorf("accepted: %s", got)
	}
	if got := *w.pool().Status.Replicas; got != 0 {
		t.Errorf("%d pods", got)
	}
}

func TestOrdinal(t *testing.T) {
	names := map[string]int{}
	for _, name := range []string{"vllm-0", "vllm-12", "vllm-7d9c", "vllm"} {
		names[name] = ordinal(name)
	}
	if diff := cmp.Diff(map[string]int{"vllm-0": 0, "vllm-12": 12, "vllm-7d9c": -1, "vllm": -1}, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	group := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "llama-3-1", Labels: map[string]string{config.LabelGroup: "3", config.LabelMember: "1"}}}
	if got := slotOf(group); got != 3 {
		t.Errorf("a pod of group 3 has the number %d", got)
	}
}

// TestAdoptedPodsFollowNodes marks a pod whose node is reclaimed, and a LeaderWorkerSet's leader whose worker's node is.
// The pool selects the leaders only.
func TestAdoptedPodsFollowNodes(t *testing.T) {
	w := adoptedWorld(t)
	ctx := context.Background()
	group := func(member string) map[string]string {
		return map[string]string{config.LabelSet: "set", config.LabelGroup: "0", config.LabelMember: member}
	}
	leader := w.all()[1]
	maps.Copy(leader.Labels, group("0"))
	w.must(w.api.Update(ctx, leader))
	worker := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: poolKey.Namespace, Name: "worker", Labels: group("1")},
		Spec:       corev1.PodSpec{NodeName: "far", Containers: []corev1.Container{{Name: "vllm"}}},
	}
	w.must(w.api.Create(ctx, worker))
	far := w.join("far")
	w.settleDown()
	if got := w.names(); slices.ContainsFunc(got, func(n string) bool { return strings.Contains(n, " ") }) {
		w.fail("pods %v", got)
	}
	far.Spec.Taints = []corev1.Taint{{Key: "aws-node-termination-handler/spot-itn", Effect: corev1.TaintEffectNoSchedule}}
	w.must(w.api.Update(ctx, far))
	if got := w.r.poolsOn(ctx, far); len(got) != 1 || got[0].NamespacedName != poolKey {
		t.Errorf("the node concerns %v", got)
	}
	w.settleDown()
	if diff := cmp.Diff([]string{"vllm-0", "vllm-1 node", "vllm-2", "worker"}, w.names()); diff != "" {
		w.fail("pods (-want +got):\n%s", diff)
	}
	far.Spec.Taints = nil
	w.must(w.api.Update(ctx, far))
	w.settleDown()
	if diff := cmp.Diff([]string{"vllm-0", "vllm-1", "vllm-2", "worker"}, w.names()); diff != "" {
		w.fail("pods (-want +got):\n%s", diff)
	}
}

package inferencepool

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// serving brings a world to all its pods serving, and a status that says so.
func (w *world) serve() {
	w.t.Helper()
	for range 3 {
		w.settleDown()
		for _, pod := range w.all() {
			w.run(pod)
			w.engine(pod)
		}
		w.tick()
	}
	w.clock.SetTime(w.clock.Now().Add(2 * settle))
	w.tick()
	w.settleDown()
	w.clock.SetTime(w.clock.Now().Add(2 * settle))
	w.tick()
	w.settleDown()
}

func (w *world) expect(want ...string) {
	w.t.Helper()
	update := w.pool().Status.UpdateRevision
	revision := ""
	if len(update) > len("chat-") {
		revision = update[len("chat-"):]
	}
	got := []string{}
	for _, name := range w.names() {
		if len(name) > 10 && name[:10] == revision {
			name = "new" + name[10:]
		} else if len(name) > 10 {
			name = "old" + name[10:]
		}
		got = append(got, name)
	}
	slices.Sort(got)
	if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
		w.fail("pods (-want +got):\n%s", diff)
	}
}

func TestAPoolComesUp(t *testing.T) {
	w := newWorld(t)
	w.settleDown()
	w.expect("new-0", "new-1")
	pod := w.all()[0]
	if owner := metav1.GetControllerOf(pod); owner == nil || owner.UID != "pool-uid" || !ptr.Deref(owner.BlockOwnerDeletion, false) {
		t.Errorf("owner %+v", owner)
	}
	if pod.Spec.InitContainers[0].Name != v1alpha1.ReporterContainer || pod.Spec.InitContainers[0].Image != "reporter:v1" {
		t.Errorf("init containers %+v", pod.Spec.InitContainers)
	}
	if got := w.condition(v1alpha1.ConditionReady); got != "Unknown Starting" {
		t.Errorf("ready: %s", got)
	}
	w.serve()
	for kind, want := range map[string]string{
		v1alpha1.ConditionAccepted: "True Accepted", v1alpha1.ConditionScaled: "True Settled", v1alpha1.ConditionPodsHealthy: "True Healthy",
		v1alpha1.ConditionUpToDate: "True UpToDate", v1alpha1.ConditionEventsSynced: "True Synced",
		v1alpha1.ConditionPickerAvailable: "False Unavailable", v1alpha1.ConditionReady: "False PickerUnavailable",
	} {
		if got := w.condition(kind); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
	s := w.pool().Status
	got := map[string]int32{
		"desired": *s.DesiredReplicas, "replicas": *s.Replicas, "ready": *s.ReadyReplicas, "updated": *s.UpdatedReplicas,
		"draining": *s.DrainingReplicas, "endpoints synced": *s.Endpoints.Synced, "pods named": int32(len(s.Pods)),
	}
	want := map[string]int32{"desired": 2, "replicas": 2, "ready": 2, "updated": 2, "draining": 0, "endpoints synced": 2, "pods named": 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if s.CurrentRevision != s.UpdateRevision || s.Selector != "kvasir.dev/pool=chat,!kvasir.dev/drain" {
		t.Errorf("revisions %s and %s, selector %s", s.CurrentRevision, s.UpdateRevision, s.Selector)
	}
	if !isTrue(w.all()[0], status.PodSynced) {
		t.Error("the pod does not say that it is synced")
	}
	var kept appsv1.ControllerRevisionList
	w.must(w.api.List(context.Background(), &kept, client.MatchingLabels{labelManagedBy: "kvasir", labelInstance: "chat"}))
	if len(kept.Items) != 1 {
		t.Errorf("%d revisions are found by their labels", len(kept.Items))
	}
	// A steady pool makes no writes, and asks for no more looks.
	before := w.writes
	for range 10 {
		w.tick()
		if again, err := w.reconcile(); err != nil || again != 0 {
			t.Errorf("again after %s: %v", again, err)
		}
	}
	if w.writes != before {
		w.fail("%d writes in a steady state", w.writes-before)
	}
}

func TestScaleDownDrainsFirst(t *testing.T) {
	w := newWorld(t)
	w.serve()
	for _, pod := range w.all() {
		w.engine(pod).requests = []time.Time{w.clock.Now().Add(time.Minute)}
	}
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](1) })
	w.settleDown()
	w.expect("new-0 scale-down", "new-1")
	for range 5 { // busy
		w.tick()
		w.settleDown()
	}
	w.expect("new-0 scale-down", "new-1")
	if got := w.pool().Status.Pods; len(got) != 1 || got[0].Stage != v1alpha1.StageDraining || got[0].Reason != "ScaleDown" {
		t.Errorf("pods named: %+v", got)
	}
	w.clock.SetTime(w.clock.Now().Add(time.Minute))
	for range 3 {
		w.tick()
		w.settleDown()
	}
	w.expect("new-1")
}

func TestADrainIsCancelledWhenDemandReturns(t *testing.T) {
	w := newWorld(t)
	w.serve()
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](1) })
	w.settleDown()
	w.expect("new-0 scale-down", "new-1")
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](2) })
	w.settleDown()
	w.expect("new-0", "new-1")
	if pod := w.all()[0]; pod.Annotations[v1alpha1.AnnotationDrainDeadline] != "" {
		t.Errorf("annotations %v", pod.Annotations)
	}
}

func TestThePickersHaveToAcknowledge(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) { p.Spec.Drain.DeadlineSeconds = ptr.To[int32](120) })
	w.serve()
	delete(w.pickers, "b")
	w.pickers["silent"] = &picker{} // ready, but silent from the start
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](1) })
	w.settleDown()
	for range 10 {
		w.clock.SetTime(w.clock.Now().Add(5 * time.Second))
		w.speak("a")
		w.readEngines()
		w.settleDown()
	}
	w.expect("new-0 scale-down", "new-1")
	w.clock.SetTime(w.clock.Now().Add(80 * time.Second))
	w.speak("a")
	w.settleDown()
	w.expect("new-1") // the deadline has passed
}

func TestRollout(t *testing.T) {
	w := newWorld(t)
	w.serve()
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Template.Spec.Containers[0].Image = "vllm/vllm-openai:v0.25.0" })
	w.settleDown()
	w.expect("new-2", "old-0", "old-1")
	if got := w.condition(v1alpha1.ConditionUpToDate); got != "False RolloutInProgress" {
		t.Errorf("up to date: %s", got)
	}
	for range 12 {
		for _, pod := range w.all() {
			w.run(pod)
			w.engine(pod)
		}
		w.tick()
		w.settleDown()
		ready := 0
		for _, pod := range w.all() {
			if isTrue(pod, corev1.PodReady) && markOf(pod).Reason == "" {
				ready++
			}
		}
		if ready < 2 {
			w.fail("%d pods serve", ready)
		}
	}
	w.expect("new-0", "new-2")
	w.serve()
	if s := w.pool().Status; s.CurrentRevision != s.UpdateRevision {
		t.Errorf("revisions %s and %s", s.CurrentRevision, s.UpdateRevision)
	}
	if got := w.condition(v1alpha1.ConditionUpToDate); got != "True UpToDate" {
		t.Errorf("up to date: %s", got)
	}
}

func TestARolloutStopsAndGoesBack(t *testing.T) {
	w := newWorld(t)
	w.serve()
	good := w.pool().Spec.Template.DeepCopy()
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Template.Spec.Containers[0].Image = "vllm/vllm-openai:broken" })
	w.settleDown()
	w.clock.SetTime(w.clock.Now().Add(31 * time.Minute))
	w.tick()
	w.settleDown()
	w.clock.SetTime(w.clock.Now().Add(settle))
	w.tick()
	w.settleDown()
	if got := w.condition(v1alpha1.ConditionUpToDate); got != "False RolloutStopped" {
		t.Errorf("up to date: %s", got)
	}
	w.expect("new-2", "old-0", "old-1")
	// An old pod that is lost is made again, of the old template.
	w.must(w.api.Delete(context.Background(), w.all()[slices.IndexFunc(w.names(), func(n string) bool { return n[10:] == "-0" })]))
	w.settleDown()
	w.edit(func(s *v1alpha1.InferencePoolSpec) {
		s.Rollout = &v1alpha1.Rollout{ProgressDeadlineSeconds: 1800, RevisionHistoryLimit: 3}
	})
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Template = good })
	w.settleDown()
	w.serve()
	w.expect("new-0", "new-1")
}

func TestWarmUp(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) { p.Spec.WarmUp = &v1alpha1.WarmUp{MaxSeconds: 60, MaxTokens: 1000} })
	w.r.Warmups = nil
	w.settleDown()
	for _, pod := range w.all() {
		w.run(pod)
	}
	if isTrue(w.all()[0], corev1.PodReady) {
		t.Fatal("ready though it is cold")
	}
	w.settleDown()
	for _, pod := range w.all() {
		w.run(pod)
		if !isTrue(pod, podtemplate.ConditionWarm) {
			t.Errorf("%s is not warm", pod.Name)
		}
	}
}

func TestTroublesAreTold(t *testing.T) {
	w := newWorld(t)
	w.serve()
	pod := w.all()[0]
	w.setStatus(pod, func(s *corev1.PodStatus) {
		setCondition(s, corev1.PodReady, false, w.clock.Now())
		s.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 5m0s"}}
	})
	w.settleDown()
	if got := w.condition(v1alpha1.ConditionPodsHealthy); got != "True Healthy" {
		t.Errorf("healthy: %s, before it has lasted", got)
	}
	w.clock.SetTime(w.clock.Now().Add(settle))
	w.tick()
	w.settleDown()
	if got := w.condition(v1alpha1.ConditionPodsHealthy); got != "False CrashLooping" {
		t.Errorf("healthy: %s", got)
	}
	if got := w.pool().Status.Pods; len(got) != 1 || got[0].Reason != "CrashLooping" {
		t.Errorf("pods named: %+v", got)
	}
}

func TestAShellGetsNoFlags(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) {
		c := &p.Spec.Template.Spec.Containers[0]
		c.Command, c.Args = []string{"sh", "-c"}, []string{"vllm serve m"}
	})
	w.serve()
	if got := w.condition(v1alpha1.ConditionPodsHealthy); got != "False EngineFlagsMissing" {
		t.Errorf("healthy: %s", got)
	}
}

func TestATemplateWithoutTheEngineIsRefused(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) { p.Spec.Engine.ContainerName = "engine" })
	w.settleDown()
	if got := w.condition(v1alpha1.ConditionAccepted); got != "False TemplateRefused" {
		t.Errorf("accepted: %s", got)
	}
	w.expect()
}

func TestReportersAreBroughtUpToDate(t *testing.T) {
	w := newWorld(t)
	w.serve()
	w.r.ReporterImage, w.r.Version = "reporter:v2", "v2"
	w.update(nil)
	for _, pod := range w.all() {
		if got := pod.Spec.InitContainers[0].Image; got != "reporter:v2" {
			t.Errorf("%s has %s", pod.Name, got)
		}
	}
	w.expect("new-0", "new-1")
	if got := w.condition(v1alpha1.ConditionUpToDate); got != "True InjectionOutdated" {
		t.Errorf("up to date: %s", got)
	}
}

func TestTheAcknowledgementOfAnEarlierMarkDoesNotCount(t *testing.T) {
	w := newWorld(t)
	w.serve()
	size := func(n int32) {
		w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = &n })
		w.settleDown()
	}
	pass := func(d time.Duration) { w.clock.SetTime(w.clock.Now().Add(d)) }
	size(1)
	pass(time.Second)
	w.speak("a")
	w.speak("b")
	// The mark is lifted and set again before the next report of the pickers, which might choose the pod in between.
	size(2)
	w.expect("new-0", "new-1")
	pass(time.Second)
	size(1)
	pass(1500 * time.Millisecond)
	w.readEngines()
	pass(time.Second)
	w.readEngines()
	w.settleDown()
	w.expect("new-0 scale-down", "new-1")
	// Pickers that have said the same for so long have seen all there was.
	for range 20 {
		w.tick()
		w.settleDown()
	}
	w.expect("new-1")
}

func TestAMarkOfSomebodyElseIsNotWrittenOver(t *testing.T) {
	w := newWorld(t)
	w.serve()
	// The cache is late: it does not show that somebody has marked both pods.
	w.stale = func() bool { return true }
	for _, pod := range w.all() {
		metav1.SetMetaDataLabel(&pod.ObjectMeta, v1alpha1.LabelDrain, lifecycle.DrainManual)
		w.must(w.api.Update(t.Context(), pod))
	}
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](1) })
	w.pools = nil // of the edit it knows
	if again, err := w.reconcile(); err != nil || again == 0 {
		t.Errorf("again after %s, %v; want another look soon", again, err)
	}
	w.expect("new-0 manual", "new-1 manual")
}

func TestTheScaleSubresourceLeavesOutPodsThatDrain(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) { p.Spec.Replicas = ptr.To[int32](3) })
	w.serve()
	for _, pod := range w.all() {
		w.engine(pod).requests = []time.Time{w.clock.Now().Add(time.Minute)}
	}
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](2) })
	w.settleDown()
	w.tick()
	w.settleDown()
	w.expect("new-0 scale-down", "new-1", "new-2")
	s := w.pool().Status
	selector, err := labels.Parse(s.Selector)
	w.must(err)
	selected := 0
	for _, pod := range w.all() {
		if selector.Matches(labels.Set(pod.Labels)) {
			selected++
		}
	}
	if *s.Replicas != 2 || *s.DrainingReplicas != 1 || selected != 2 {
		t.Errorf("%d replicas, %d drain, %s selects %d; want 2, 1 and 2", *s.Replicas, *s.DrainingReplicas, s.Selector, selected)
	}
}

// TestATaintCopiesNoPods of the cluster to find those on the node.
func TestATaintCopiesNoPods(t *testing.T) {
	w := newWorld(t)
	w.serve()
	lists := 0
	w.r.Client = interceptor.NewClient(w.cache, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			o := (&client.ListOptions{}).ApplyOptions(opts)
			if _, pods := list.(*corev1.PodList); pods {
				if lists++; !ptr.Deref(o.UnsafeDisableDeepCopy, false) {
					t.Error("every pod is copied")
				}
			}
			return c.List(ctx, list, opts...)
		},
	})
	if got := w.r.poolsOn(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}); len(got) != 1 || lists != 1 {
		t.Errorf("pools %v of %d lists", got, lists)
	}
}

// names of pods, with their marks.
func (w *world) names() []string {
	out := []string{}
	for _, pod := range w.all() {
		name := strings.TrimPrefix(pod.Name, "chat-")
		if reason, ok := pod.Labels[v1alpha1.LabelDrain]; ok {
			name += " " + reason
		}
		out = append(out, name)
	}
	return out
}

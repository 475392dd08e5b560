package inferencepool

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// kubelets replace the reporters whose images have changed, at once, as a kubelet does. waits has the reason for which a
// container of an image does not run.
func (w *world) kubelets(waits map[string]string) {
	w.t.Helper()
	for _, pod := range w.all() {
		reason := waits[reporterOf(pod).Image]
		if reason == "" {
			w.run(pod)
			continue
		}
		w.setStatus(pod, func(s *corev1.PodStatus) {
			if len(s.InitContainerStatuses) == 0 {
				s.InitContainerStatuses = []corev1.ContainerStatus{{Name: reporterOf(pod).Name}}
			}
			s.InitContainerStatuses[0].Ready = false
			s.InitContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "no luck"}}
			setCondition(s, corev1.ContainersReady, false, w.clock.Now())
			setCondition(s, corev1.PodReady, false, w.clock.Now())
		})
	}
}

// update lets an update of the reporters go on for a while, and checks that never more than one pod is not ready.
func (w *world) update(waits map[string]string) {
	w.t.Helper()
	for range 15 {
		w.settleDown()
		w.kubelets(waits)
		down := 0
		for _, pod := range w.all() {
			if !isTrue(pod, corev1.PodReady) {
				down++
			}
		}
		if down > 1 {
			w.fail("%d pods are not ready", down)
		}
		w.clock.SetTime(w.clock.Now().Add(settle))
		w.tick()
	}
	w.settleDown()
}

// reporterImages counts the pods of each image of the reporter.
func (w *world) reporterImages() map[string]int {
	out := map[string]int{}
	for _, pod := range w.all() {
		out[reporterOf(pod).Image]++
	}
	return out
}

func TestABadReporterImageCostsOnePod(t *testing.T) {
	for reason, want := range map[string]string{
		"ImagePullBackOff":  "False ReporterUpdateStopped",
		"CrashLoopBackOff":  "False ReporterUpdateStopped",
		"ContainerCreating": "False ReporterUpdating", // the pull goes on and on
	} {
		t.Run(reason, func(t *testing.T) {
			w := newWorld(t, func(p *v1alpha1.InferencePool) { p.Spec.Replicas = ptr.To[int32](3) })
			w.serve()
			w.r.ReporterImage, w.r.Version = "reporter:bad", "v2"
			w.update(map[string]string{"reporter:bad": reason})
			if got := w.reporterImages(); got["reporter:bad"] != 1 || got["reporter:v1"] != 2 {
				t.Errorf("images %v", got)
			}
			if got := w.condition(v1alpha1.ConditionUpToDate); got != want {
				t.Errorf("up to date: %s, want %s", got, want)
			}
			w.r.ReporterImage, w.r.Version = "reporter:v3", "v3"
			w.update(nil)
			if got := w.reporterImages(); got["reporter:v3"] != 3 {
				t.Errorf("images %v after a good image", got)
			}
			if got := w.condition(v1alpha1.ConditionUpToDate); got != "True InjectionOutdated" {
				t.Errorf("up to date: %s", got)
			}
		})
	}
}

// crashReporter ends a pod's reporter and starts it again, as a kubelet does before it backs off.
func (w *world) crashReporter(pod *corev1.Pod) {
	w.t.Helper()
	w.setStatus(pod, func(s *corev1.PodStatus) {
		c := &s.InitContainerStatuses[0]
		c.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
			ContainerID: c.ContainerID, ExitCode: 137, Reason: "OOMKilled", StartedAt: c.State.Running.StartedAt, FinishedAt: metav1.NewTime(w.clock.Now()),
		}
		c.RestartCount++
		c.State.Running.StartedAt = metav1.NewTime(w.clock.Now())
	})
}

// with returns the pods whose reporters have an image.
func (w *world) with(image string) []*corev1.Pod {
	return slices.DeleteFunc(w.all(), func(p *corev1.Pod) bool { return reporterOf(p).Image != image })
}

// later lets the update go on for a while, in at most eight steps that take 4 s each besides.
func (w *world) later(d time.Duration) {
	w.t.Helper()
	step := max(d/8, settle)
	for end := w.clock.Now().Add(d); w.clock.Now().Before(end); w.clock.SetTime(w.clock.Now().Add(step)) {
		w.settleDown()
		w.kubelets(nil)
		w.tick()
	}
	w.settleDown()
}

// updating returns a world of four pods. One has a new reporter, which has just started.
func updating(t *testing.T) *world {
	w := newWorld(t, func(p *v1alpha1.InferencePool) { p.Spec.Replicas = ptr.To[int32](4) })
	w.serve()
	w.r.ReporterImage, w.r.Version = "reporter:v2", "v2"
	for len(w.with("reporter:v2")) == 0 {
		w.settleDown()
	}
	w.kubelets(nil)
	return w
}

// TestAReporterThatEndsLateStopsTheUpdate has reporters that run for longer than an update waits, and end then.
func TestAReporterThatEndsLateStopsTheUpdate(t *testing.T) {
	w := updating(t)
	w.later(settle + time.Second) // it runs: another pod gets it
	n := len(w.with("reporter:v2"))
	if n != 2 {
		w.fail("%d pods have the new reporter", n)
	}
	w.crashReporter(w.with("reporter:v2")[0])
	w.later(time.Minute)
	if got := w.reporterImages(); got["reporter:v2"] != n {
		t.Errorf("images %v: a reporter that is killed went on to other pods", got)
	}
	c := meta.FindStatusCondition(w.pool().Status.Conditions, v1alpha1.ConditionUpToDate)
	if c.Reason != "ReporterUpdateStopped" || !strings.Contains(c.Message, "OOMKilled") ||
		!strings.Contains(c.Message, w.with("reporter:v2")[0].Name) {
		t.Errorf("%s: %s", c.Reason, c.Message)
	}
	// It ends again before the update goes on, each time later: the update never does.
	for _, lasts := range []time.Duration{8 * time.Minute, 19 * time.Minute, 29 * time.Minute} {
		w.later(lasts)
		w.crashReporter(w.with("reporter:v2")[0])
		w.later(time.Second)
	}
	if got := w.reporterImages(); got["reporter:v2"] != n {
		t.Errorf("images %v after it ended again and again", got)
	}
	w.later(time.Hour) // it has run well
	w.update(nil)
	if got := w.reporterImages(); got["reporter:v2"] != 4 || w.condition(v1alpha1.ConditionUpToDate) != "True InjectionOutdated" {
		t.Errorf("images %v, %s, after it ran for an hour", got, w.condition(v1alpha1.ConditionUpToDate))
	}
}

func TestAReporterIsBlamedOnlyForItsOwnEnds(t *testing.T) {
	made := func(w *world, pod *corev1.Pod) *corev1.Pod { // a pod that was made with the new reporter
		delete(pod.Annotations, v1alpha1.AnnotationReporterBefore)
		w.must(w.api.Update(context.Background(), pod))
		return w.with("reporter:v2")[0]
	}
	for name, tc := range map[string]struct {
		do   func(*world, *corev1.Pod)
		want int // pods with the new image in the end
	}{
		"nothing happens": {func(*world, *corev1.Pod) {}, 4},
		"it ends":         {(*world).crashReporter, 1},
		"its node starts again": {func(w *world, pod *corev1.Pod) {
			w.crashReporter(pod)
			w.setStatus(w.with("reporter:v2")[0], func(s *corev1.PodStatus) {
				s.ContainerStatuses[0].State.Running.StartedAt = metav1.NewTime(w.clock.Now())
			})
		}, 4},
		"a release that did not count changed it": {func(w *world, pod *corev1.Pod) {
			before := strings.Fields(pod.Annotations[v1alpha1.AnnotationReporterBefore])
			pod.Annotations[v1alpha1.AnnotationReporterBefore] = before[0] + " " + before[1]
			w.must(w.api.Update(context.Background(), pod))
		}, 4},
		"the reporter before had ended": {func(w *world, pod *corev1.Pod) {
			before, ok := strings.CutSuffix(pod.Annotations[v1alpha1.AnnotationReporterBefore], " 0")
			if !ok {
				w.fail("annotations %v", pod.Annotations)
			}
			pod.Annotations[v1alpha1.AnnotationReporterBefore] = before + " 7"
			w.must(w.api.Update(context.Background(), pod))
			w.setStatus(w.with("reporter:v2")[0], func(s *corev1.PodStatus) { s.InitContainerStatuses[0].RestartCount = 8 })
		}, 4},
		"it has ended often, an hour ago": {func(w *world, pod *corev1.Pod) {
			w.setStatus(pod, func(s *corev1.PodStatus) { s.InitContainerStatuses[0].RestartCount = 10 })
			w.clock.SetTime(w.clock.Now().Add(steadyAtMost * steady))
		}, 4},
		"a pod was made with it, and it ends": {func(w *world, pod *corev1.Pod) { w.crashReporter(made(w, pod)) }, 1},
		"a pod was made with it, and it has ended and not yet started again": {func(w *world, pod *corev1.Pod) {
			w.setStatus(made(w, pod), func(s *corev1.PodStatus) {
				s.InitContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
			})
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := updating(t)
			w.clock.SetTime(w.clock.Now().Add(settle - time.Second))
			tc.do(w, w.with("reporter:v2")[0])
			for range 6 { // the kubelet of a container that has ended does nothing yet
				w.clock.SetTime(w.clock.Now().Add(settle))
				w.settleDown()
				for _, pod := range w.with("reporter:v2") {
					if s := reporterStatus(pod); s.State.Running != nil {
						w.run(pod)
					}
				}
				w.tick()
			}
			if got := len(w.with("reporter:v2")); got != tc.want {
				t.Errorf("%d pods have the new reporter, want %d: %s", got, tc.want, w.condition(v1alpha1.ConditionUpToDate))
			}
		})
	}
}

// TestAnUpdateThatIsDoneIsNotStopped: reporters that end later are reported elsewhere.
func TestAnUpdateThatIsDoneIsNotStopped(t *testing.T) {
	w := updating(t)
	w.update(nil)
	if got := w.condition(v1alpha1.ConditionPodsHealthy); got != "True Healthy" { // containers that the update replaced have not crashed
		t.Errorf("healthy: %s", got)
	}
	w.crashReporter(w.all()[0])
	w.later(settle)
	if got := w.condition(v1alpha1.ConditionUpToDate); got != "True InjectionOutdated" {
		t.Errorf("up to date: %s", got)
	}
	if got := w.condition(v1alpha1.ConditionPodsHealthy); got != "False CrashLooping" {
		t.Errorf("healthy: %s", got)
	}
}

func TestAPodThatIsLostGetsTheReporterThatRuns(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) { p.Spec.Replicas = ptr.To[int32](3) })
	w.serve()
	w.r.ReporterImage = "reporter:bad"
	bad := map[string]string{"reporter:bad": "ImagePullBackOff"}
	w.update(bad)
	for _, pod := range w.all() {
		if reporterOf(pod).Image == "reporter:v1" {
			w.must(w.api.Delete(context.Background(), pod))
			break
		}
	}
	w.settleDown()
	if got := w.reporterImages(); got["reporter:bad"] != 1 || got["reporter:v1"] != 2 {
		t.Errorf("images %v", got)
	}
}

// TestNewPodsGetAReporterThatHasRun has a pool of one whose reporter is not replaced, so that nothing has shown yet that the new image does
// not run. The engine of a pod that began with it would never start.
func TestNewPodsGetAReporterThatHasRun(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) { p.Spec.Replicas = ptr.To[int32](1) })
	w.serve()
	w.r.ReporterImage = "reporter:bad"
	w.update(nil)
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](4) })
	w.settleDown()
	if got := w.reporterImages(); got["reporter:v1"] != 4 {
		t.Errorf("images %v: the engines of pods with the new one never start", got)
	}
	for range 15 {
		w.kubelets(map[string]string{"reporter:bad": "ImagePullBackOff"})
		w.clock.SetTime(w.clock.Now().Add(settle))
		w.tick()
		w.settleDown()
	}
	if got := w.reporterImages(); got["reporter:v1"] != 3 || w.condition(v1alpha1.ConditionUpToDate) != "False ReporterUpdateStopped" {
		t.Errorf("images %v, up to date: %s", got, w.condition(v1alpha1.ConditionUpToDate))
	}
}

func TestTheReporterOfTheOnlyPodIsNotReplaced(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) { p.Spec.Replicas = ptr.To[int32](1) })
	w.serve()
	w.r.ReporterImage, w.r.Version = "reporter:v2", "v2"
	w.update(nil)
	if got := w.reporterImages(); got["reporter:v1"] != 1 {
		t.Errorf("images %v", got)
	}
	if got := w.condition(v1alpha1.ConditionUpToDate); got != "True InjectionOutdated" {
		t.Errorf("up to date: %s", got)
	}
	// With a second pod, it is.
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](2) })
	w.settleDown()
	w.serve()
	w.update(nil)
	if got := w.reporterImages(); got["reporter:v2"] != 2 {
		t.Errorf("images %v", got)
	}
}

// TestRewrittenImagesAreLeftAlone puts the images of a mirror into the pods, as admission webhooks do.
func TestRewrittenImagesAreLeftAlone(t *testing.T) {
	w := newWorld(t)
	rewrite := func() {
		for _, pod := range w.all() {
			if c := reporterOf(pod); !strings.HasPrefix(c.Image, "mirror/") {
				c.Image = "mirror/" + c.Image
				w.must(w.api.Update(context.Background(), pod))
			}
		}
		w.kubelets(nil)
	}
	steady := func(when string) {
		t.Helper()
		before := w.writes
		for range 5 {
			rewrite()
			w.clock.SetTime(w.clock.Now().Add(settle))
			w.tick()
			w.settleDown()
		}
		if w.writes != before {
			w.fail("%s: %d writes", when, w.writes-before)
		}
	}
	w.serve()
	rewrite()
	steady("after the start")
	w.r.ReporterImage = "reporter:v2"
	for range 6 {
		w.settleDown()
		rewrite()
		w.clock.SetTime(w.clock.Now().Add(settle))
		w.tick()
	}
	w.settleDown()
	if got := w.reporterImages(); got["mirror/reporter:v2"] != 2 {
		t.Errorf("images %v", got)
	}
	steady("after an update")
	for _, pod := range w.all() { // as a release has left them that did not record the image
		delete(pod.Annotations, v1alpha1.AnnotationReporterImage)
		delete(pod.Annotations, v1alpha1.AnnotationReporterBefore)
		w.must(w.api.Update(context.Background(), pod))
	}
	for range 4 {
		w.settleDown()
		rewrite()
		w.clock.SetTime(w.clock.Now().Add(settle))
		w.tick()
	}
	steady("after an upgrade of the operator")
}

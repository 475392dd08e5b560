package inferencepool

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
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

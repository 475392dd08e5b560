package inferencepool

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

func TestAPausedRolloutTakesNoStep(t *testing.T) {
	w := newWorld(t)
	w.serve()
	w.edit(func(s *v1alpha1.InferencePoolSpec) {
		s.Paused = v1alpha1.PauseRollout
		s.Template.Spec.Containers[0].Image = "vllm/vllm-openai:v0.25.0"
		s.Replicas = ptr.To[int32](3)
	})
	w.serve()
	w.expect("old-0", "old-1", "old-2") // the size is not paused
	if got := w.condition(v1alpha1.ConditionUpToDate); got != "False RolloutPaused" {
		t.Errorf("up to date: %s", got)
	}
	w.must(w.api.Delete(context.Background(), w.all()[0]))
	w.serve()
	w.expect("old-0", "old-1", "old-2")
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Paused = "" })
	for range 12 {
		w.serve()
	}
	w.expect("new-0", "new-1", "new-3")
	if got := w.condition(v1alpha1.ConditionUpToDate); got != "True UpToDate" {
		t.Errorf("up to date: %s", got)
	}
}

func TestAPausedPoolKeepsItsSizeAndEndsItsDrains(t *testing.T) {
	w := newWorld(t)
	w.serve()
	for _, pod := range w.all() {
		w.engine(pod).requests = []time.Time{w.clock.Now().Add(time.Minute)}
	}
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](1) })
	w.settleDown()
	w.expect("new-0 scale-down", "new-1")
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Paused, s.Replicas = v1alpha1.PauseAll, ptr.To[int32](5) })
	w.settleDown()
	w.expect("new-0 scale-down", "new-1")
	w.clock.SetTime(w.clock.Now().Add(time.Minute))
	w.serve()
	w.expect("new-1")
	s := w.pool().Status
	if got := w.condition(v1alpha1.ConditionScaled); got != "False ScalingPaused" || *s.DesiredReplicas != 1 {
		t.Errorf("scaled: %s, desired %d", got, *s.DesiredReplicas)
	}
	w.start() // a controller without memory
	w.serve()
	w.expect("new-1")
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Paused = "" })
	w.serve()
	w.expect("new-0", "new-1", "new-2", "new-3", "new-4")
}

// A status is written after the pods, and not at all when the pool has changed in between.
func TestAPauseRemovesNoPodWhoseStatusIsNotWritten(t *testing.T) {
	for name, restart := range map[string]bool{"by the same process": false, "by another process": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.broken = func(verb string, _ client.Object) (before, after error) {
				if verb == "patch status" {
					w.broken = nil
					w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Paused, s.Replicas = v1alpha1.PauseAll, ptr.To[int32](5) })
				}
				return nil, nil
			}
			for w.broken != nil { // pods are created
				if _, err := w.reconcile(); err != nil {
					w.fail("%v", err)
				}
			}
			if desired := w.pool().Status.DesiredReplicas; desired != nil {
				t.Fatalf("the status has %d", *desired)
			}
			if restart {
				w.start()
			}
			w.settleDown()
			w.expect("new-0", "new-1")
			if got := w.condition(v1alpha1.ConditionScaled); got != "False ScalingUp" {
				t.Errorf("scaled: %s", got)
			}
			w.serve()
			w.expect("new-0", "new-1")
			w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Paused = "" })
			w.serve()
			w.expect("new-0", "new-1", "new-2", "new-3", "new-4")
		})
	}
}

func TestAPoolThatIsBornPausedHasNoPods(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) { p.Spec.Paused = v1alpha1.PauseAll })
	w.settleDown()
	w.expect()
}

func TestAutoscalingIsPaused(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) {
		p.Spec.Replicas, p.Spec.Autoscaling = nil, v1alpha1.Autoscaling{Mode: v1alpha1.AutoscalingActive, MaxReplicas: 9}
	})
	w.r.Sizer = fixedSize(2)
	w.serve()
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Paused = v1alpha1.PauseAll })
	w.r.Sizer = fixedSize(4)
	w.serve()
	w.expect("new-0", "new-1")
	if got := w.condition(v1alpha1.ConditionAutoscalingActive); got != "False ScalingPaused" {
		t.Errorf("autoscaling: %s", got)
	}
}

func TestAPauseLeavesTheOwnersSizeAlone(t *testing.T) {
	w := adoptedWorld(t)
	for _, pod := range w.all() {
		w.engine(pod).requests = []time.Time{w.clock.Now().Add(time.Minute)}
	}
	w.r.Sizer = fixedSize(2)
	w.settleDown() // one is marked
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Paused = v1alpha1.PauseAll })
	w.r.Sizer = fixedSize(1)
	w.settleDown()
	w.clock.SetTime(w.clock.Now().Add(time.Minute))
	w.lasting()
	if got := w.owned(); got != 2 {
		w.fail("the owner has %d pods, %v: the drain that had begun ends, and no other begins", got, w.names())
	}
	if got := w.condition(v1alpha1.ConditionScaled); got == "True Settled" {
		t.Errorf("scaled: %s", got)
	}
}

func TestARestartIsARollout(t *testing.T) {
	w := newWorld(t)
	w.serve()
	before := w.pool().Status.UpdateRevision
	w.edit(func(s *v1alpha1.InferencePoolSpec) {
		metav1.SetMetaDataAnnotation(&s.Template.ObjectMeta, v1alpha1.AnnotationRestartedAt, "2026-01-01T12:00:00Z")
	})
	w.settleDown()
	w.expect("new-2", "old-0", "old-1")
	if w.pool().Status.UpdateRevision == before {
		t.Error("the revision is the same")
	}
}

// The time of a change of size is written even if another change of the pool makes the first write of the status fail.
func TestTheTimeOfAChangeOfSizeIsWritten(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) {
		p.Spec.Replicas, p.Spec.Autoscaling = nil, v1alpha1.Autoscaling{Mode: v1alpha1.AutoscalingActive, MaxReplicas: 9}
	})
	w.r.Sizer = fixedSize(2)
	w.serve()
	was := w.pool().Status.Autoscaling.LastScaleTime
	w.clock.SetTime(w.clock.Now().Add(time.Hour))
	w.r.Sizer = fixedSize(4)
	w.broken = func(verb string, _ client.Object) (before, after error) {
		if verb == "patch status" {
			w.broken = nil
			w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Paused = v1alpha1.PauseRollout })
		}
		return nil, nil
	}
	w.settleDown()
	is := w.pool().Status.Autoscaling.LastScaleTime
	if w.broken != nil || was == nil || !is.After(was.Time) {
		t.Errorf("changed at %v, before at %v", is, was)
	}
}

package inferencepool

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// refusingImage has the API server refuse pods with an image.
func (w *world) refusingImage(image, why string) {
	w.broken = func(verb string, obj client.Object) (error, error) {
		if pod, ok := obj.(*corev1.Pod); ok && verb == "create" && pod.Spec.Containers[0].Image == image {
			return forbidden("pods", pod.Name, why), nil
		}
		return nil, nil
	}
}

const unsigned = "vllm/vllm-openai:v0.24.1-unsigned"

func useUnsigned(s *v1alpha1.InferencePoolSpec) { s.Template.Spec.Containers[0].Image = unsigned }

// Without surge a pod is drained before its replacement is created. If the API server refuses the replacement, the pool
// would be one pod short until somebody looks.
func TestNoPodDrainsForAReplacementThatIsRefused(t *testing.T) {
	w := newWorld(t, withoutSurge)
	w.serve()
	w.refusingImage(unsigned, "images must be signed")
	w.edit(useUnsigned)
	w.settleDown()
	c := meta.FindStatusCondition(w.pool().Status.Conditions, v1alpha1.ConditionAccepted)
	if c.Status != metav1.ConditionFalse || c.Reason != "NotPermitted" || !strings.Contains(c.Message, "signed") {
		t.Errorf("accepted at once: %+v", c)
	}
	for range 10 {
		w.tick()
		w.settleDown()
	}
	w.expect("old-0", "old-1")
	if got := w.condition(v1alpha1.ConditionUpToDate); got != "False RolloutRefused" {
		t.Errorf("up to date: %s", got)
	}
	w.broken = nil // the policy was changed
	w.clock.SetTime(w.clock.Now().Add(refusedEvery))
	w.settleDown()
	if got := w.marked(); got != 1 {
		t.Errorf("%d pods are marked once pods are admitted, want 1", got)
	}
}

// withoutSurge has a pool drain a pod before its replacement is created.
func withoutSurge(p *v1alpha1.InferencePool) {
	p.Spec.Rollout = &v1alpha1.Rollout{Type: v1alpha1.RollingUpdate, MaxSurge: ptr.To(intstr.FromInt32(0)),
		MaxUnavailable: ptr.To(intstr.FromInt32(1)), ProgressDeadlineSeconds: 1800}
}

// withoutAnswers has the API server answer nothing to creates of pods.
func (w *world) withoutAnswers() {
	w.broken = func(verb string, obj client.Object) (error, error) {
		if _, ok := obj.(*corev1.Pod); ok && verb == "create" {
			return errBroken, nil
		}
		return nil, nil
	}
}

// A refusal stands until there is another answer: an API server that restarts has not changed its mind.
func TestARefusalStandsUntilTheNextAnswer(t *testing.T) {
	w := newWorld(t, withoutSurge)
	w.serve()
	w.refusingImage(unsigned, "images must be signed")
	w.edit(useUnsigned)
	w.settleDown()
	w.withoutAnswers()
	for range 3 {
		w.clock.SetTime(w.clock.Now().Add(refusedEvery))
		w.settleDown()
	}
	if got := w.condition(v1alpha1.ConditionAccepted); w.marked() > 0 || got != "False NotPermitted" {
		t.Errorf("%d pods are marked without an answer, accepted: %s", w.marked(), got)
	}
}

// A rollout waits for the first answer, but not for ever.
func TestARolloutWaitsForAnAnswer(t *testing.T) {
	w := newWorld(t, withoutSurge)
	w.serve()
	w.withoutAnswers()
	w.edit(useUnsigned)
	for _, tc := range []struct {
		after time.Duration
		fails bool
		marks int
	}{{0, true, 0}, {rehearsalPatience / 2, true, 0}, {rehearsalPatience, false, 1}} {
		w.clock.SetTime(w.clock.Now().Add(tc.after))
		if _, err := w.reconcile(); errors.Is(err, errBroken) != tc.fails || w.marked() != tc.marks {
			t.Errorf("after %s more: error %v, %d pods are marked, want %d", tc.after, err, w.marked(), tc.marks)
		}
	}
}

// Only the rollout waits: the old pods follow the pool's size and its nodes.
func TestAPoolShrinksWhileARehearsalHasNoAnswer(t *testing.T) {
	w := newWorld(t, withoutSurge)
	w.serve()
	w.withoutAnswers()
	w.edit(func(s *v1alpha1.InferencePoolSpec) {
		useUnsigned(s)
		s.Replicas = ptr.To[int32](1)
	})
	for range 2 {
		if _, err := w.reconcile(); !errors.Is(err, errBroken) {
			t.Errorf("error %v, and the rehearsal is not repeated", err)
		}
	}
	w.expect("old-0 scale-down", "old-1")
	if got := w.condition(v1alpha1.ConditionUpToDate); got != "False RolloutRefused" {
		t.Errorf("up to date: %s", got)
	}
}

// A pod of the newest revision that loads was admitted, and takes long to load again.
func TestARolloutThatHasBegunKeepsItsPodsWhileARehearsalHasNoAnswer(t *testing.T) {
	w := newWorld(t)
	w.serve()
	w.edit(useUnsigned)
	w.settleDown()
	w.expect("new-2", "old-0", "old-1")
	w.withoutAnswers()
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Drain.DeadlineSeconds = ptr.To[int32](60) })
	if _, err := w.reconcile(); !errors.Is(err, errBroken) {
		t.Errorf("error %v, want that of the rehearsal", err)
	}
	w.expect("new-2", "old-0", "old-1")
}

// marked counts the pods with a drain mark.
func (w *world) marked() int {
	n := 0
	for _, pod := range w.all() {
		if markOf(pod).Reason != "" {
			n++
		}
	}
	return n
}

// While a rollout is refused, a pod that is lost is created of the revision that serves.
func TestAPodThatIsLostDuringARefusedRolloutComesBack(t *testing.T) {
	w := newWorld(t)
	w.serve()
	w.refusingImage(unsigned, "images must be signed")
	w.edit(useUnsigned)
	w.settleDown()
	w.must(w.api.Delete(t.Context(), w.all()[0]))
	w.settleDown()
	w.expect("old-0", "old-1")
}

// A pool without pods has nothing that could be refused, until demand comes.
func TestAPoolAtZeroShowsThatItsPodsWouldBeRefused(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) { p.Spec.Replicas = ptr.To[int32](0) })
	w.refusingImage(unsigned, "images must be signed")
	w.edit(useUnsigned)
	w.settleDown()
	if got := w.condition(v1alpha1.ConditionAccepted); got != "False NotPermitted" {
		t.Errorf("accepted: %s", got)
	}
	if n := len(w.all()); n > 0 {
		t.Errorf("%d pods are left by the rehearsal", n)
	}
}

// The pods of each island differ.
func TestPodsOfEachIslandAreRehearsed(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) {
		p.Spec.Placement = &v1alpha1.Placement{Islands: []v1alpha1.Island{{Name: "a"}, {Name: "b", NodeSelector: map[string]v1alpha1.LabelValue{"gpu": "h100"}}}}
	})
	w.broken = func(verb string, obj client.Object) (error, error) {
		if pod, ok := obj.(*corev1.Pod); ok && verb == "create" && pod.Spec.NodeSelector["gpu"] == "h100" {
			return forbidden("pods", pod.Name, "h100 is not for this namespace"), nil
		}
		return nil, nil
	}
	w.settleDown()
	c := meta.FindStatusCondition(w.pool().Status.Conditions, v1alpha1.ConditionAccepted)
	if c.Reason != "NotPermitted" || !strings.Contains(c.Message, "h100") {
		t.Errorf("accepted: %+v", c)
	}
}

func TestPodsAreRehearsedOnceForEachChange(t *testing.T) {
	w := newWorld(t)
	w.serve()
	for range 5 {
		w.clock.SetTime(w.clock.Now().Add(time.Hour))
		w.lasting()
	}
	if w.rehearsals != 1 {
		t.Errorf("%d rehearsals of one template, want 1", w.rehearsals)
	}
	w.edit(useUnsigned)
	w.lasting()
	if w.rehearsals != 2 {
		t.Errorf("%d rehearsals of two templates, want 2", w.rehearsals)
	}
}

func TestWhatRefusesARehearsal(t *testing.T) {
	noPart := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusBadRequest, Message: `admission webhook "x" does not support dry run`}}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"nothing":                         {nil, false},
		"a policy":                        {forbidden("pods", "a", "violates PodSecurity"), true},
		"validation":                      {apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "a", nil), true},
		"a quota, which can have room":    {forbidden("pods", "a", "exceeded quota: gpus"), false},
		"a webhook that takes no part":    {noPart, false},
		"a webhook that is dead":          {apierrors.NewInternalError(errors.New(`failed calling webhook "x"`)), true},
		"the connection":                  {errBroken, false},
		"the pod is there":                {apierrors.NewAlreadyExists(anyResource, "a"), false},
		"a server that has too much todo": {apierrors.NewTooManyRequests("x", 1), false},
	} {
		if got := refusesRehearsal(tc.err); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}

package inferencepool

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// failProbe makes a running engine fail its readiness probe, as the kubelet reports it.
func (w *world) failProbe(pod *corev1.Pod) {
	w.t.Helper()
	w.setStatus(pod, func(s *corev1.PodStatus) {
		setCondition(s, corev1.ContainersReady, false, w.clock.Now())
		setCondition(s, corev1.PodReady, false, w.clock.Now())
	})
}

// loseNode does what Kubernetes does when the kubelet of the node of all pods does not answer: the node is not ready, and so are its pods,
// whose containers stay as they were last reported.
func (w *world) loseNode() {
	w.t.Helper()
	node := w.join("node")
	at := metav1.NewTime(w.clock.Now())
	node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule, TimeAdded: &at}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: at}}
	w.store(node)
	for _, pod := range w.all() {
		w.setStatus(pod, func(s *corev1.PodStatus) { setCondition(s, corev1.PodReady, false, w.clock.Now()) })
	}
}

// TestAPodThatIsNotReadyAnyMoreSaysWhy, at once and for as long as it lasts; one that has never been ready is starting.
func TestAPodThatIsNotReadyAnyMoreSaysWhy(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(*world)
		want string
	}{
		"it fails its probe": {func(w *world) { w.failProbe(w.all()[0]) }, "False Unready"},
		"its node is lost":   {(*world).loseNode, "False NodeNotReady"},
		"it has just been started again": {func(w *world) {
			w.failProbe(w.all()[0])
			w.setStatus(w.all()[0], func(s *corev1.PodStatus) {
				s.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(w.clock.Now().Add(time.Second))}
			})
		}, "True Healthy"},
		"it waits for its warm-up": {func(w *world) {
			w.setStatus(w.all()[0], func(s *corev1.PodStatus) { setCondition(s, corev1.PodReady, false, w.clock.Now()) })
		}, "True Healthy"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.serve()
			w.clock.SetTime(w.clock.Now().Add(3 * 24 * time.Hour)) // it has served for long
			pods := len(w.all())
			tc.do(w)
			w.lasting()
			if got := w.condition(v1alpha1.ConditionPodsHealthy); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
			if len(w.all()) != pods {
				t.Errorf("%d pods, want %d: it is only reported", len(w.all()), pods)
			}
			for _, pod := range w.all() {
				w.run(pod)
			}
			node := w.join("node")
			node.Spec.Taints, node.Status.Conditions = nil, nil
			w.store(node)
			w.lasting()
			if got := w.condition(v1alpha1.ConditionPodsHealthy); got != "True Healthy" {
				t.Errorf("%s when it is ready again", got)
			}
		})
	}
}

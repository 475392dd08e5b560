package inferencepool

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func isGone(err error) bool { return client.IgnoreNotFound(err) == nil }

func setCondition(s *corev1.PodStatus, kind corev1.PodConditionType, yes bool, now time.Time) {
	status := corev1.ConditionFalse
	if yes {
		status = corev1.ConditionTrue
	}
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == kind {
			if c.Status != status {
				c.Status, c.LastTransitionTime = status, metav1.NewTime(now)
			}
			return
		}
	}
	s.Conditions = append(s.Conditions, corev1.PodCondition{Type: kind, Status: status, LastTransitionTime: metav1.NewTime(now)})
}

// join registers a node, unless there is one of that name, and returns it.
func (w *world) join(name string) *corev1.Node {
	w.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	switch err := w.api.Get(context.Background(), client.ObjectKeyFromObject(node), node); {
	case err == nil:
	case isGone(err):
		w.must(w.api.Create(context.Background(), node))
	default:
		w.must(err)
	}
	return node
}

// store writes a node and its status.
func (w *world) store(node *corev1.Node) {
	w.t.Helper()
	status := node.Status.DeepCopy()
	w.must(w.api.Update(context.Background(), node))
	node.Status = *status
	w.must(w.api.Status().Update(context.Background(), node))
}

// run makes a pod's engine run and its containers ready, and the pod if its gates are open.
func (w *world) run(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		pod = pod.DeepCopy()
		pod.Spec.NodeName = w.join("node").Name
		if w.api.Update(context.Background(), pod) != nil {
			return
		}
	}
	w.setStatus(pod, func(s *corev1.PodStatus) {
		s.Phase, s.PodIP = corev1.PodRunning, "10.0.0.1"
		running := &corev1.ContainerStateRunning{}
		if len(s.ContainerStatuses) == 1 && s.ContainerStatuses[0].State.Running != nil {
			running = s.ContainerStatuses[0].State.Running
		}
		s.ContainerStatuses = []corev1.ContainerStatus{{Name: "vllm", State: corev1.ContainerState{Running: running}}}
		w.runReporter(pod, s)
		setCondition(s, corev1.ContainersReady, true, w.clock.Now())
		open := true
		for _, gate := range pod.Spec.ReadinessGates {
			open = open && isTrue(&corev1.Pod{Status: *s}, gate.ConditionType)
		}
		setCondition(s, corev1.PodReady, open, w.clock.Now())
	})
}

// runReporter starts the sidecar's container, a new one for each image, which counts as a restart.
func (w *world) runReporter(pod *corev1.Pod, s *corev1.PodStatus) {
	c := reporterOf(pod)
	if c == nil {
		return
	}
	id := "test://" + c.Image
	if len(s.InitContainerStatuses) == 1 && s.InitContainerStatuses[0].ContainerID == id && s.InitContainerStatuses[0].State.Running != nil {
		return
	}
	restarts := int32(0)
	if len(s.InitContainerStatuses) == 1 && s.InitContainerStatuses[0].ContainerID != "" {
		restarts = s.InitContainerStatuses[0].RestartCount + 1
	}
	s.InitContainerStatuses = []corev1.ContainerStatus{{
		Name: c.Name, ContainerID: id, Ready: true, RestartCount: restarts,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(w.clock.Now())}},
	}}
}

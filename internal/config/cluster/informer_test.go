package cluster

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kvasir-dev/kvasir/internal/config"
)

// TestWhatIsKeptOfPodsShowsWhetherTheyServe: for each state of a pod's containers, what is kept of the pod gives the same answer.
func TestWhatIsKeptOfPodsShowsWhetherTheyServe(t *testing.T) {
	const gate = "kvasir.dev/Warm"
	serve := 0
	for state := range 1 << 7 {
		is := func(bit int) bool { return state&(1<<bit) != 0 }
		condition := func(kind corev1.PodConditionType, yes bool) corev1.PodCondition {
			c := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse}
			if yes {
				c.Status = corev1.ConditionTrue
			}
			return c
		}
		pod := &corev1.Pod{Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{condition(corev1.PodReady, is(0)), condition(gate, is(1))},
			InitContainerStatuses: []corev1.ContainerStatus{
				{Name: "kvasir-reporter", Ready: is(2), Image: "reporter"}, {Name: "proxy", Ready: is(3)},
			},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "vllm", Ready: is(4)}},
		}}
		if is(5) {
			pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}}
		}
		if is(6) {
			pod.Spec.InitContainers = []corev1.Container{
				{Name: "proxy"}, {Name: "kvasir-reporter", Args: []string{"--replay=127.0.0.1:5657", "--serve-address=:8000"}},
			}
		}
		small, err := trim(pod)
		if err != nil {
			t.Fatal(err)
		}
		want := config.PodServes(pod)
		if got := config.PodServes(small.(*corev1.Pod)); got != want {
			t.Errorf("state %s: %t, want %t", fmt.Sprintf("%07b", state), got, want)
		}
		if want {
			serve++
		}
	}
	if ready := 1 << 6; serve <= ready {
		t.Errorf("%d states serve; %d of them are ready, and some are not", serve, ready)
	}
}

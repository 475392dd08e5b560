package inferencepool

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// end has a pod's node refuse it, as a kubelet without a healthy device does.
func (w *world) end(pod *corev1.Pod) {
	w.setStatus(pod, func(s *corev1.PodStatus) {
		s.Phase, s.Reason, s.Message = corev1.PodFailed, "UnexpectedAdmissionError", "no healthy devices present"
		s.ContainerStatuses = nil
		setCondition(s, corev1.PodReady, false, w.clock.Now())
	})
}

// living returns the pods that have not ended.
func (w *world) living() []*corev1.Pod {
	return slices.DeleteFunc(w.all(), func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
}

func TestPodsThatEndAreReplacedEverMoreSlowlyAndNamed(t *testing.T) {
	w := newWorld(t)
	w.serve()
	for n, wait := range []time.Duration{0, 0, 10 * time.Second, 20 * time.Second, 40 * time.Second} {
		if n > 0 {
			newest := slices.MaxFunc(w.living(), func(a, b *corev1.Pod) int {
				return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
			})
			w.end(newest)
			w.settleDown()
		}
		if wait > 0 {
			if got := len(w.living()); got != 1 {
				t.Fatalf("after %d ends %d pods are there before the pause is over", n, got)
			}
			w.clock.SetTime(w.clock.Now().Add(wait - time.Second))
			w.tick() // 4 s
			w.settleDown()
		}
		if got := len(w.living()); got != 2 {
			t.Fatalf("after %d ends and a pause of %s %d pods are there", n, wait, got)
		}
	}

	w.end(w.living()[0])
	w.end(w.living()[0])
	w.settleDown()
	w.clock.SetTime(w.clock.Now().Add(settle))
	w.tick()
	w.settleDown()
	if got := w.condition(v1alpha1.ConditionPodsHealthy); got != "False PodsEnded" {
		t.Errorf("healthy: %s", got)
	}
	told := w.pool().Status.Pods
	if i := slices.IndexFunc(told, func(p v1alpha1.PodSummary) bool {
		return p.Stage == v1alpha1.StageEnded && p.Reason == "UnexpectedAdmissionError" && strings.Contains(p.Message, "no healthy devices")
	}); i < 0 {
		t.Errorf("status names %+v", told)
	}
}

// TestPausesDoNotDependOnTheClocksOfNodes: a node whose clock is ahead or behind neither delays pods in place of those that ended
// on it by the difference, nor has them end over and over without a pause.
func TestPausesDoNotDependOnTheClocksOfNodes(t *testing.T) {
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		w := newWorld(t)
		w.serve()
		for n, wait := range []time.Duration{0, 0, 10 * time.Second, 20 * time.Second} {
			if n > 0 {
				newest := slices.MaxFunc(w.living(), func(a, b *corev1.Pod) int {
					return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
				})
				w.setStatus(newest, func(s *corev1.PodStatus) {
					s.Phase, s.ContainerStatuses = corev1.PodFailed, nil
					setCondition(s, corev1.PodReady, false, w.clock.Now().Add(ahead))
				})
				w.settleDown()
			}
			if wait > 0 {
				if got := len(w.living()); got != 1 {
					t.Fatalf("clock ahead by %s: after %d ends %d pods are there before the pause is over", ahead, n, got)
				}
				w.clock.SetTime(w.clock.Now().Add(wait))
				w.tick()
				w.settleDown()
			}
			if got := len(w.living()); got != 2 {
				t.Fatalf("clock ahead by %s: after %d ends and a pause of %s %d pods are there", ahead, n, wait, got)
			}
		}
	}
}

func TestTheEndOfAPodIsWhatItsEngineSays(t *testing.T) {
	born := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(born.Add(d)) }
	terminated := func(reason string, code int32) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{
			{Name: "log", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: at(9 * time.Hour)}}},
			{Name: "vllm", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason, ExitCode: code, FinishedAt: at(time.Minute)}}},
		}
	}
	for name, tc := range map[string]struct {
		status corev1.PodStatus
		after  time.Duration
		reason string
		text   string
	}{
		"killed for memory":    {corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: terminated("OOMKilled", 137)}, time.Minute, "OOMKilled", "exit code 137"},
		"exited":               {corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: terminated("Completed", 0)}, time.Minute, "Completed", "exit code 0"},
		"evicted":              {corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "low on memory", ContainerStatuses: terminated("Error", 137)}, time.Minute, "Evicted", "low on memory"},
		"refused by a kubelet": {corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu"}, 0, "OutOfcpu", ""},
		"says nothing":         {corev1.PodStatus{Phase: corev1.PodFailed}, 0, "Failed", ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(born)}, Status: tc.status}
			when, why := endOf(pod, "vllm")
			if when.Sub(born) != tc.after || why.Reason != tc.reason || why.Message != tc.text {
				t.Errorf("ended after %s: %q %q, want %s: %q %q", when.Sub(born), why.Reason, why.Message, tc.after, tc.reason, tc.text)
			}
		})
	}
}

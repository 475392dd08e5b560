package inferencepool

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// crash ends the engine of a pod and leaves it to the kubelet's back-off.
func (w *world) crash(uid types.UID, reason string, code int32) {
	w.kubelet(uid, func(s *corev1.PodStatus, c *corev1.ContainerStatus) {
		end := &corev1.ContainerStateTerminated{Reason: reason, ExitCode: code, FinishedAt: metav1.NewTime(w.clock.Now())}
		c.Ready, c.LastTerminationState.Terminated = false, end
		c.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 5m0s restarting failed container"}}
		setCondition(s, corev1.ContainersReady, false, w.clock.Now())
		setCondition(s, corev1.PodReady, false, w.clock.Now())
	})
}

// restart has the kubelet start the engine of a pod again.
func (w *world) restart(uid types.UID) {
	w.kubelet(uid, func(_ *corev1.PodStatus, c *corev1.ContainerStatus) {
		c.RestartCount++
		c.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(w.clock.Now())}}
	})
}

// load has the engine of a pod answer its readiness probe, or not.
func (w *world) load(uid types.UID, ready bool) {
	w.kubelet(uid, func(s *corev1.PodStatus, c *corev1.ContainerStatus) {
		c.Ready = ready
		setCondition(s, corev1.ContainersReady, ready, w.clock.Now())
		setCondition(s, corev1.PodReady, ready, w.clock.Now())
	})
}

// kubelet changes the status of a pod's engine.
func (w *world) kubelet(uid types.UID, change func(*corev1.PodStatus, *corev1.ContainerStatus)) {
	w.t.Helper()
	for _, pod := range w.all() {
		if pod.UID == uid {
			w.setStatus(pod, func(s *corev1.PodStatus) { change(s, &s.ContainerStatuses[0]) })
		}
	}
}

// live lets time pass, and returns each state of PodsHealthy on the way.
func (w *world) live(d time.Duration) []string {
	w.t.Helper()
	var seen []string
	for end := w.clock.Now().Add(d); w.clock.Now().Before(end); {
		w.clock.SetTime(w.clock.Now().Add(26 * time.Second))
		w.tick() // 4 s
		w.settleDown()
		if is := w.condition(v1alpha1.ConditionPodsHealthy); len(seen) == 0 || seen[len(seen)-1] != is {
			seen = append(seen, is)
		}
	}
	return seen
}

// TestACrashLoopIsToldAlsoBetweenTwoCrashes: from the first crash until the engine has been ready for ten minutes there is one
// condition and one event, whatever the container does at the moment. A moment without readiness long afterwards is no crash.
func TestACrashLoopIsToldAlsoBetweenTwoCrashes(t *testing.T) {
	w := newWorld(t)
	w.serve()
	uid := w.all()[0].UID
	recorder := events.NewFakeRecorder(1000)
	w.r.Recorder = recorder
	w.crash(uid, "OOMKilled", 137)
	w.live(time.Minute)
	want := "False CrashLooping"
	if got := w.condition(v1alpha1.ConditionPodsHealthy); got != want {
		t.Fatalf("after a crash: %s, want %s", got, want)
	}
	for n, backOff := range []time.Duration{20 * time.Second, time.Minute, 5 * time.Minute} {
		seen := w.live(backOff)
		w.restart(uid)
		seen = append(seen, w.live(4*time.Minute)...) // it loads
		w.load(uid, true)
		seen = append(seen, w.live(9*time.Minute)...) // it serves
		for _, got := range seen {
			if got != want {
				t.Fatalf("loop %d: %v, want %s all the time", n, seen, want)
			}
		}
		w.crash(uid, "OOMKilled", 137)
	}
	w.restart(uid)
	w.load(uid, true)
	w.live(time.Minute)
	c := w.pool().Status.Conditions
	message := ""
	for i := range c {
		if c[i].Type == v1alpha1.ConditionPodsHealthy {
			message = c[i].Message
		}
	}
	for _, part := range []string{"chat-", "vllm: started again 4 times", "exit code 137, OOMKilled", "memory limit"} {
		if !strings.Contains(message, part) {
			t.Errorf("the message %q lacks %q", message, part)
		}
	}
	stuck := 0
	for len(recorder.Events) > 0 {
		if strings.Contains(<-recorder.Events, "PodStuck") {
			stuck++
		}
	}
	if stuck != 1 {
		t.Errorf("%d events of one crash loop", stuck)
	}

	w.live(10 * time.Minute)
	if got := w.condition(v1alpha1.ConditionPodsHealthy); got == want {
		t.Errorf("ready for ten minutes: %s", got)
	}
	w.clock.SetTime(w.clock.Now().Add(40 * time.Minute))
	w.live(time.Minute)
	w.load(uid, false)
	for _, got := range w.live(time.Minute) {
		if got == want {
			t.Errorf("not ready for a moment, an hour after the last crash: %s", got)
		}
	}
}

// TestACrashIsATroubleUntilTheContainerHasProvedItself, by what the kubelet writes.
func TestACrashIsATroubleUntilTheContainerHasProvedItself(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1, FinishedAt: ago(time.Hour)}}
	running := func(since time.Duration) corev1.ContainerState {
		return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: ago(since)}}
	}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	for name, tc := range map[string]struct {
		status corev1.ContainerStatus
		ready  time.Duration // since when all containers are ready; 0 for not
		want   bool
	}{
		"never ended":                       {corev1.ContainerStatus{State: running(time.Minute), Ready: true}, time.Minute, false},
		"waits to be started again":         {corev1.ContainerStatus{RestartCount: 1, State: waiting, LastTerminationState: ended}, 0, true},
		"started again a moment ago":        {corev1.ContainerStatus{RestartCount: 1, State: running(time.Second), LastTerminationState: ended}, 0, true},
		"loads":                             {corev1.ContainerStatus{RestartCount: 1, State: running(20 * time.Minute), LastTerminationState: ended}, 0, true},
		"has been ready for less":           {corev1.ContainerStatus{RestartCount: 1, State: running(20 * time.Minute), Ready: true, LastTerminationState: ended}, 9 * time.Minute, true},
		"has been ready for ten minutes":    {corev1.ContainerStatus{RestartCount: 1, State: running(20 * time.Minute), Ready: true, LastTerminationState: ended}, 10 * time.Minute, false},
		"loads for longer than it may":      {corev1.ContainerStatus{RestartCount: 1, State: running(40 * time.Minute), LastTerminationState: ended}, 0, false},
		"was not ready long after a crash":  {corev1.ContainerStatus{RestartCount: 9, State: running(24 * time.Hour), Ready: true, LastTerminationState: ended}, time.Minute, false},
		"the kubelet has forgotten its end": {corev1.ContainerStatus{RestartCount: 1, State: running(time.Second)}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := &podFacts{scope: &scope{pool: newPool(), now: now}}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: ago(48 * time.Hour)}}
			tc.status.Name = "vllm"
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{tc.status}
			if tc.ready > 0 {
				setCondition(&pod.Status, corev1.ContainersReady, true, now.Add(-tc.ready))
			}
			if got := r.crashOf(pod); (got.Reason != "") != tc.want {
				t.Errorf("trouble %+v, want one: %t", got, tc.want)
			}
			if running := tc.status.State.Running != nil; (tc.want && running) != !r.wake.IsZero() {
				t.Errorf("wakes at %s", r.wake)
			}
		})
	}
}

// TestOtherEndsAreNamed as the kubelet names them, without text of the container's own.
func TestOtherEndsAreNamed(t *testing.T) {
	for reason, want := range map[string]string{
		"Error": "with exit code 3. See kubectl logs --previous", "ContainerStatusUnknown": "with exit code 3, ContainerStatusUnknown. See", "": "with exit code 3. See",
	} {
		c := corev1.ContainerStatus{Name: "vllm", RestartCount: 1}
		c.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: reason, ExitCode: 3, Message: "a line of the log"}
		if got := crashMessage(&c); !strings.Contains(got, want) || strings.Contains(got, "log of") || strings.Contains(got, "a line") {
			t.Errorf("%q: %q, want %q in it", reason, got, want)
		}
	}
}

package inferencepool

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
)

// Bounds of the time for which the last crash of a container is a trouble of its pod. A container that crashes again and again
// runs in between, and can be ready: without these times it would look healthy until its next crash.
const (
	// provenAfter is how long the restarted container must have been ready. The kubelet forgets its back-off after the same time.
	provenAfter = 10 * time.Minute
	// loadingAtMost is how long it can take to become ready, unless the pool has a progress deadline.
	loadingAtMost = 30 * time.Minute
)

// crashOf returns the last crash of a pod's containers, while the container that was started afterwards has not proved itself; the zero
// value for none. A restart of long ago is none, even if the container is not ready for a moment.
func (r *podFacts) crashOf(pod *corev1.Pod) lifecycle.Trouble {
	statuses := pod.Status.ContainerStatuses
	if c := reporterStatus(pod); c != nil && reporterEnds(pod, c) > 0 && startedAlone(pod, c, r.pool.Spec.Engine.ContainerName) {
		statuses = append(slices.Clip(statuses), *c)
	}
	for i := range statuses {
		c := &statuses[i]
		if c.RestartCount == 0 || c.LastTerminationState.Terminated == nil {
			continue
		}
		if run := c.State.Running; run != nil {
			due := r.provenAt(pod, c.Ready, r.ofNode(pod, run.StartedAt.Time))
			if !r.now.Before(due) {
				continue
			}
			r.wakeAt(due)
		}
		return lifecycle.Trouble{Reason: lifecycle.CrashLooping, Message: crashMessage(c)}
	}
	return lifecycle.Trouble{}
}

// provenAt is when a container that was started again at a time has proved itself.
func (r *podFacts) provenAt(pod *corev1.Pod, ready bool, started time.Time) time.Time {
	loading := loadingAtMost
	if rollout := r.pool.Spec.Rollout; rollout != nil && rollout.ProgressDeadlineSeconds > 0 {
		loading = time.Duration(rollout.ProgressDeadlineSeconds) * time.Second
	}
	latest := started.Add(loading + provenAfter)
	if !ready {
		return latest
	}
	if all, at := since(pod, corev1.ContainersReady); all {
		if at = r.ofNode(pod, at); at.After(started) {
			started = at
		}
	}
	if due := started.Add(provenAfter); due.Before(latest) {
		return due
	}
	return latest
}

// crashMessage describes the last end of a container that was started again. It has no text of the container's own, which can be
// the end of its log.
func crashMessage(c *corev1.ContainerStatus) string {
	end := c.LastTerminationState.Terminated
	why, cure := fmt.Sprintf("exit code %d", end.ExitCode), "See kubectl logs --previous"
	switch end.Reason {
	case "", "Error":
	case "OOMKilled":
		why, cure = why+", OOMKilled", "Raise its memory limit, or have it use less"
	default:
		why += ", " + end.Reason
	}
	return fmt.Sprintf("%s: started again %d times, after it ended at %s with %s. %s",
		c.Name, c.RestartCount, end.FinishedAt.UTC().Format(time.TimeOnly), why, cure)
}

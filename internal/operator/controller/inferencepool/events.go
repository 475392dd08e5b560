package inferencepool

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/status"
)

const (
	normal  = corev1.EventTypeNormal
	warning = corev1.EventTypeWarning
	// quiet is how long an event of one reason and pod is not repeated.
	quiet = time.Minute
)

// recordedEvent is an event that was written.
type recordedEvent struct{ reason, pod string }

// recordEvent writes an event about the pool, and about a pod if one is concerned.
func (r *scope) recordEvent(kind, reason string, pod *corev1.Pod, format string, args ...any) {
	if r.Recorder == nil {
		return
	}
	key := recordedEvent{reason: reason}
	var related runtime.Object
	if pod != nil {
		key.pod, related = pod.Name, pod
	}
	if last, ok := r.memory.recorded[key]; ok && r.now.Sub(last) < quiet {
		return
	}
	for k, at := range r.memory.recorded {
		if r.now.Sub(at) >= quiet {
			delete(r.memory.recorded, k)
		}
	}
	r.memory.recorded[key] = r.now
	note := fmt.Sprintf(format, args...)
	r.Recorder.Eventf(r.pool, related, kind, reason, reason, "%s", note[:min(len(note), 1024)])
}

// recordAction writes the event of an action that was done.
func (r *executor) recordAction(a *lifecycle.Action) {
	pod := r.podOf[a.UID]
	switch a.Kind {
	case lifecycle.SetMark:
		r.recordEvent(normal, "VictimChosen", pod, "%s: %s", a.Name, a.Why)
		r.recordEvent(normal, "DrainStarted", pod, "%s drains (%s) until idle, at the latest %s", a.Name, a.Mark.Reason,
			a.Mark.Deadline.UTC().Format(time.RFC3339))
	case lifecycle.Unmark:
		r.recordEvent(normal, "DrainCancelled", pod, "%s is wanted again; %s", a.Name, a.Why)
	case lifecycle.Delete:
		if pod != nil && waits(pod) {
			r.recordEvent(normal, "ProvisioningCancelled", pod, "%s is deleted before it had a node, and with it the request for one: %s", a.Name, a.Why)
		}
		switch a.Cause {
		case lifecycle.CauseDeadline:
			r.recordEvent(warning, "DrainDeadlineExceeded", pod, "%s is deleted with %s", a.Name, a.Why)
		case lifecycle.CauseIdle:
			r.recordEvent(normal, "DrainFinished", pod, "%s is deleted: %s", a.Name, a.Why)
		}
	case lifecycle.Create:
		if a.Island != "" {
			r.recordEvent(normal, "IslandChosen", nil, "%s starts on island %s", a.Name, a.Island)
		}
	case lifecycle.Show:
		if pod != nil && a.Shown.Warm {
			r.recordEvent(normal, "WarmUpFinished", pod, "%s counts as warm", a.Name)
		}
	case lifecycle.WarmUp:
	}
}

// chosenInexact are reasons for inexact tokens that the user can have chosen.
var chosenInexact = map[string]bool{status.ReasonEngineRender: true, status.ReasonApproximate: true}

// recordChanges writes the events of changes in the status.
func (r *verdict) recordChanges(was, is *v1alpha1.InferencePool) {
	r.recordSizes(was, is)
	if was.Status.UpdateRevision != "" && was.Status.UpdateRevision != is.Status.UpdateRevision {
		r.recordEvent(normal, "RolloutStarted", nil, "to revision %s", is.Status.UpdateRevision)
	}
	if was.Status.CurrentRevision != "" && was.Status.CurrentRevision != is.Status.CurrentRevision {
		r.recordEvent(normal, "RolloutFinished", nil, "all pods are of revision %s", is.Status.CurrentRevision)
	}
	if before := was.Status.KeySpace.KeyID; before != "" && before != is.Status.KeySpace.KeyID {
		r.recordEvent(normal, "KeyRotated", nil, "all replicas of the picker use the key root %s in place of %s", is.Status.KeySpace.KeyID, before)
	}
	for _, c := range is.Status.Conditions {
		old := meta.FindStatusCondition(was.Status.Conditions, c.Type)
		if old != nil && old.Status == c.Status && old.Reason == c.Reason {
			continue
		}
		switch {
		case c.Reason == status.ReasonObjectRefused:
			r.recordEvent(warning, "ObjectRefused", nil, "%s", c.Message)
		case c.Reason == status.ReasonReporterStopped:
			r.recordEvent(warning, "ReporterUpdateStopped", r.reporters.waiting, "%s", c.Message)
		case c.Reason == status.ReasonRolloutStopped:
			r.recordEvent(warning, "RolloutStopped", nil, "%s", c.Message)
		case c.Type == v1alpha1.ConditionPodsHealthy && c.Status == "False" &&
			(c.Reason == status.ReasonFlagsMissing || c.Reason == status.ReasonPreStopMissing || c.Reason == status.ReasonProbesMissing):
			r.recordEvent(warning, "InjectionSkipped", nil, "%s", c.Message)
		case c.Type == v1alpha1.ConditionPodsHealthy && c.Status == "False":
			r.recordEvent(warning, "PodStuck", r.stuck, "%s: %s", c.Reason, c.Message)
		case c.Type == v1alpha1.ConditionEventsSynced && c.Status == "False":
			r.recordEvent(warning, "EventsDegraded", nil, "%s: %s", c.Reason, c.Message)
		case c.Type == v1alpha1.ConditionTokensExact && c.Status == "False" && (old != nil && old.Status == "True" || !chosenInexact[c.Reason]):
			r.recordEvent(warning, "TokensDegraded", nil, "%s: %s", c.Reason, c.Message)
		case c.Type == v1alpha1.ConditionPredictionsTrusted && c.Status == "False":
			r.recordEvent(warning, "PredictionsDistrusted", nil, "%s: %s", c.Reason, c.Message)
		case c.Type == v1alpha1.ConditionEnginesClosed && c.Status == "False":
			r.recordEvent(warning, "NetworkPolicyIncomplete", nil, "%s: %s", c.Reason, c.Message)
		case c.Type == v1alpha1.ConditionModelServed && c.Status == "False":
			r.recordEvent(warning, "ModelNotServed", nil, "%s: %s", c.Reason, c.Message)
		case c.Type == v1alpha1.ConditionGatewayConforms && c.Status == "False":
			r.recordEvent(warning, "GatewayDeviates", nil, "%s: %s", c.Reason, c.Message)
		case c.Type == v1alpha1.ConditionResourcesSuffice && c.Status == "False":
			r.recordEvent(warning, "PickerOverloaded", nil, "%s: %s", c.Reason, c.Message)
		}
	}
}

// recordSizes writes the events of changed sizes: one for those that grow, and one for those that shrink.
func (r *verdict) recordSizes(was, is *v1alpha1.InferencePool) {
	var up, down []string
	compare := func(of string, before, now *int32, chosen *size, replicas *int32, field string) {
		if before == nil || now == nil || *before == *now { // a new pool or role, or no change
			return
		}
		if d := chosen.decision; d != nil && replicas == nil {
			field = string(d.Reason)
		}
		text := fmt.Sprintf("%sfrom %d to %d: %s", of, *before, *now, field)
		if *now > *before {
			up = append(up, text)
		} else {
			down = append(down, text)
		}
	}
	if len(r.size.roles) == 0 && len(was.Status.Roles) == 0 {
		compare("", was.Status.DesiredReplicas, is.Status.DesiredReplicas, &r.size, r.pool.Spec.Replicas, "spec.replicas")
	}
	for i := range r.size.roles {
		one, role := &r.size.roles[i], &r.pool.Spec.Roles[i]
		if before, now := roleStatus(&was.Status, one.name), roleStatus(&is.Status, one.name); before != nil && now != nil {
			compare(string(one.name)+" ", before.DesiredReplicas, now.DesiredReplicas, &one.size, role.Replicas, "spec.roles")
		}
	}
	if len(up) > 0 {
		r.recordEvent(normal, "ScaledUp", nil, "%s", strings.Join(up, ", "))
	}
	if len(down) > 0 {
		r.recordEvent(normal, "ScaledDown", nil, "%s", strings.Join(down, ", "))
	}
}

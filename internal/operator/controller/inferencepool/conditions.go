package inferencepool

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/autoscaling"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/objects"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/operator/scaling"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// pending is a condition that differs from the one in the status, and since when.
type pending struct {
	condition metav1.Condition
	since     time.Time
}

// conditions judges everything and keeps what lasts.
func (r *verdict) conditions(childrenErr, podsErr error, affected *metav1.Condition) {
	accepted := r.accepted(podsErr)
	picker := r.pickerAvailable(childrenErr)
	r.set(accepted)
	r.set(picker)
	if r.pool.Spec.Template != nil {
		r.set(r.upToDate())
	}
	r.set(r.scaled(podsErr))
	r.set(r.podsHealthy())
	r.set(r.eventsSynced())
	tokens, known := r.view.Tokens()
	r.setFinding(status.TokensExact, &tokens, known)
	predictions, known := r.view.Predictions()
	r.setFinding(status.PredictionsTrusted, &predictions, known)
	r.modelServed()
	if gateways, known := r.view.Gateways(); known {
		r.setFinding(status.GatewayConforms, &gateways, known)
	}
	if resources, known := r.view.Resources(); known {
		r.setFinding(status.ResourcesSuffice, &resources, known)
	}
	if r.gateway != nil {
		r.set(gatewayAccepted(r.gateway))
	}
	if r.pool.Spec.EngineNetwork() != v1alpha1.EngineNetworkNone {
		r.set(enginesClosed(r.pool, &r.network))
	} else {
		meta.RemoveStatusCondition(&r.next.Conditions, v1alpha1.ConditionEnginesClosed)
	}
	r.set(r.ready(accepted, picker))
	if r.pool.Spec.Autoscales() {
		r.set(r.autoscalingActive())
	} else {
		meta.RemoveStatusCondition(&r.next.Conditions, v1alpha1.ConditionAutoscalingActive)
	}
	if affected != nil {
		meta.SetStatusCondition(&r.next.Conditions, *affected)
	} else {
		meta.RemoveStatusCondition(&r.next.Conditions, v1alpha1.ConditionPolicyAffected)
	}
	status.WorstFirst(r.next.Conditions)
}

// set changes a condition when it is new, when the spec has changed, or when it has been otherwise for as long as a
// condition must last.
func (r *verdict) set(want metav1.Condition) {
	want.ObservedGeneration, want.LastTransitionTime = r.pool.Generation, metav1.NewTime(r.now.Truncate(time.Second))
	old := meta.FindStatusCondition(r.next.Conditions, want.Type)
	if old != nil && old.Status == want.Status && old.Reason == want.Reason && old.Message == want.Message {
		delete(r.memory.pending, want.Type)
		old.ObservedGeneration = want.ObservedGeneration
		return
	}
	if old != nil && old.ObservedGeneration == want.ObservedGeneration && !servingChanges(old, &want) {
		p, ok := r.memory.pending[want.Type]
		if !ok || p.condition.Status != want.Status || p.condition.Reason != want.Reason {
			p = pending{want, r.now}
			r.memory.pending[want.Type] = p
		}
		if due := p.since.Add(lasts); r.now.Before(due) {
			r.wakeAt(due)
			return
		}
	}
	delete(r.memory.pending, want.Type)
	meta.SetStatusCondition(&r.next.Conditions, want)
}

// servingChanges reports whether a condition reports that the last endpoint is gone, or that there is one again. That does
// not wait: the counts beside it in the status do not either, and clients see it at once.
func servingChanges(old, want *metav1.Condition) bool {
	const gone = status.ReasonNoReadyEndpoint
	return want.Type == v1alpha1.ConditionReady && (want.Reason == gone) != (old.Reason == gone)
}

// setFinding sets a condition that only pickers can judge. Their message can have numbers that change all the time: it
// stays as long as the reason does, unless the reason is known to have none.
func (r *verdict) setFinding(of status.Type, f *operatorfeed.Finding, known bool) {
	want := of.Found(f)
	switch {
	case len(r.view.Replicas) == 0:
		want = noPicker(of)
	case !known:
		want = of.Unknown(status.ReasonStarting, "no replica of the picker has reported yet")
	}
	// What TokensExact says of the sources of a model's files changes seldom, and is said nowhere else.
	numbers := of != status.TokensExact || want.Reason == "PartlyExact" || want.Reason == status.ReasonApproximate
	if old := of.In(r.next.Conditions); numbers && old != nil && old.Status == want.Status && old.Reason == want.Reason {
		want.Message = old.Message
	}
	r.set(want)
}

// modelServed sets ModelServed once pickers have seen lists of models. When none has one any more, because the pool has no engine,
// the condition is unknown: the next engines can serve another model.
func (r *verdict) modelServed() {
	model, known := r.view.Model()
	switch {
	case known:
		r.setFinding(status.ModelServed, &model, known)
	case status.ModelServed.In(r.next.Conditions) == nil:
	case len(r.view.Replicas) == 0:
		r.set(noPicker(status.ModelServed))
	default:
		r.set(status.ModelServed.Unknown(status.ReasonNoModelList, "no endpoint has listed its models"))
	}
}

func noPicker(of status.Type) metav1.Condition {
	return of.Unknown(status.ReasonNoPicker, "no replica of the picker reports")
}

func (r *verdict) accepted(podsErr error) metav1.Condition {
	switch {
	case r.problems.overlap != "":
		return status.Accepted.False("SelectorOverlap", "%s", r.problems.overlap)
	case len(r.problems.taken) > 0:
		return status.Accepted.False(status.ReasonNameTaken, "objects of another owner have names that the pool needs: %s", strings.Join(r.problems.taken, ", "))
	case r.problems.template != "":
		return status.Accepted.False("TemplateRefused", "%s", r.problems.template)
	case r.fleets.target != "" && resources.Unfit(r.pool) != "":
		return status.Accepted.False(status.ReasonNotForFleets, "%s", resources.Unfit(r.pool))
	case podsErr != nil && apierrors.IsInvalid(podsErr):
		return status.Accepted.False("TemplateRefused", "%s", podsErr.Error())
	case objects.Refused(podsErr) && !quota(podsErr):
		return status.Accepted.False("NotPermitted", "%s", podsErr.Error())
	case len(r.problems.refused) > 0:
		return status.Accepted.False(status.ReasonObjectRefused, "%s", strings.Join(r.problems.refused, "; "))
	case r.problems.reference != "":
		return status.Accepted.False(status.ReasonReferenceNotFound, "%s", r.problems.reference)
	}
	if f, refused := r.view.Refused(r.pool.Generation); refused {
		return status.Accepted.False(f.Reason, "a picker cannot apply the pool: %s", f.Message)
	}
	if r.pool.Spec.Engine.ServesAnyone(r.policy != nil && r.policy.Spec.Admission.Tenants.Identification != "") {
		return status.Accepted.True(v1alpha1.ReasonClientsUnchecked, "%s", v1alpha1.MessageClientsUnchecked)
	}
	if r.pool.Spec.Engine.Type == v1alpha1.EngineSGLang {
		return status.Accepted.True(v1alpha1.ReasonEngineExperimental, "%s", v1alpha1.MessageSGLangExperimental)
	}
	return status.Accepted.True(status.ReasonAccepted, "")
}

// quota reports whether an error means that a ResourceQuota is used up.
func quota(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
}

func (r *verdict) upToDate() metav1.Condition {
	c, lack := &r.decision.Counts, r.withoutSidecar()
	switch r.decision.Progress {
	case lifecycle.RollingOut:
		return status.UpToDate.False(status.ReasonRollingOut, "%d of %d pods are of revision %s%s", c.Updated, r.size.now,
			r.revisions.update, lack)
	case lifecycle.Stopped:
		if i := slices.IndexFunc(r.decision.Ended, func(p *lifecycle.Pod) bool { return p.Revision == r.revisions.update }); i >= 0 {
			p := r.decision.Ended[i]
			return status.UpToDate.False(status.ReasonRolloutStopped, "new pods of revision %s end (last: %s: %s %s); the old pods stay. Apply a working template, or the old one to go back%s",
				r.revisions.update, p.Name, p.Trouble.Reason, p.Trouble.Message, lack)
		}
		return status.UpToDate.False(status.ReasonRolloutStopped, "new pods of revision %s did not become ready in %d s; the old pods stay. Apply a working template, or the old one to go back%s",
			r.revisions.update, r.pool.Spec.Rollout.ProgressDeadlineSeconds, lack)
	case lifecycle.WaitingOnDelete:
		return status.UpToDate.False(status.ReasonRolloutOnDelete, "%d of %d pods are of revision %s; the others are replaced when they are deleted%s", c.Updated, r.size.now,
			r.revisions.update, lack)
	case lifecycle.Paused:
		return status.UpToDate.False("RolloutPaused", "%d of %d pods are of revision %s; the rollout is paused by spec.paused%s", c.Updated, r.size.now,
			r.revisions.update, lack)
	case lifecycle.Refused:
		return status.UpToDate.False("RolloutRefused", "no pod is replaced before the API server admits pods of revision %s; see the condition Accepted%s",
			r.revisions.update, lack)
	case lifecycle.UpToDate:
	}
	switch rep := &r.reporters; {
	case rep.trouble.Reason != "":
		return status.UpToDate.False(status.ReasonReporterStopped, "%s does not run the reporter %s: %s; the other pods keep the reporters they have. Upgrade Kvasir to an image that runs, or back",
			rep.waiting.Name, r.ReporterImage, rep.trouble.Message)
	case rep.waiting != nil:
		return status.UpToDate.False(status.ReasonReporterUpdating, "%d of %d pods have the reporter %s; the next one follows when that of %s has run for %d s",
			rep.updated, rep.updated+len(rep.outdated), r.ReporterImage, rep.waiting.Name, int(settle.Seconds()))
	}
	for _, pod := range r.pods {
		if injected := strings.Fields(pod.Annotations[v1alpha1.AnnotationInjected]); len(injected) > 0 && injected[0] != r.Version {
			return status.UpToDate.True("InjectionOutdated", "some pods were created by Kvasir %s; the next revision updates them", injected[0])
		}
	}
	return status.UpToDate.True("UpToDate", "")
}

func (r *verdict) scaled(podsErr error) metav1.Condition {
	c := &r.decision.Counts
	has := c.Total - c.Draining
	switch {
	case r.problems.target != "":
		return status.Scaled.False("ScaleTargetRefused", "%s", r.problems.target)
	case podsErr != nil && quota(podsErr):
		return status.Scaled.False("QuotaExceeded", "%s", podsErr.Error())
	case r.decision.NoRoom:
		return status.Scaled.False("IslandsExhausted", "%d of %d pods; no island has room or provides nodes", has, r.size.now)
	case r.pool.Spec.Replicas != nil && c.Ready >= r.size.now && r.islandMinima() > r.size.now:
		return status.Scaled.False("IslandMinimaUnmet", "the islands ask for %d pods by their minReplicas, the pool has %d", r.islandMinima(), r.size.now)
	case r.shortRoles() != "":
		return status.Scaled.False(status.ReasonScalingUp, "%s pods are serving", r.shortRoles())
	case c.Ready < r.size.now:
		return status.Scaled.False(status.ReasonScalingUp, "%d of %d pods are serving", c.Ready, r.size.now)
	case c.Draining > 0 || c.Total > r.size.now:
		return status.Scaled.False(status.ReasonScalingDown, "%d pods are draining or being deleted, %d stay",
			c.Total-min(has, r.size.now), r.size.now)
	case r.size.wanted != r.size.now:
		return status.Scaled.False("ScalingPaused", "%d pods are needed; spec.paused keeps %d", r.size.wanted, r.size.now)
	}
	return status.Scaled.True("Settled", "%d pods", r.size.now)
}

// islandMinima is how many pods the islands ask for together.
func (r *verdict) islandMinima() int {
	pods := 0
	if r.pool.Spec.Placement != nil {
		for i := range r.pool.Spec.Placement.Islands {
			pods += int(ptr.Deref(r.pool.Spec.Placement.Islands[i].MinReplicas, 0))
		}
	}
	return pods
}

func (r *verdict) podsHealthy() metav1.Condition {
	names := map[string][]string{}
	message := ""
	first := ""
	for i := range r.decision.Pods {
		s := &r.decision.Pods[i]
		if s.Trouble.Reason == "" || s.Pod.Finished || s.Pod.Deleting {
			continue
		}
		names[s.Trouble.Reason] = append(names[s.Trouble.Reason], s.Pod.Name)
		if first == "" {
			first, message = s.Trouble.Reason, s.Trouble.Message
			r.stuck = r.podOf[s.Pod.UID]
		}
	}
	if first != "" {
		list := names[first]
		slices.Sort(list)
		more := ""
		if len(list) > 3 {
			more = fmt.Sprintf(" and %d more", len(list)-3)
		}
		return status.PodsHealthy.False(first, "%s%s: %s", strings.Join(list[:min(3, len(list))], ", "), more, message)
	}
	if ended := r.decision.Ended; r.decision.Backoff > 0 {
		r.stuck = r.podOf[ended[0].UID]
		return status.PodsHealthy.False("PodsEnded", "%d pods ended and are not replaced before %s; the last, %s: %s %s",
			r.decision.Backoff, r.decision.Retry.UTC().Format(time.TimeOnly), ended[0].Name, ended[0].Trouble.Reason, ended[0].Trouble.Message)
	}
	return r.injectionComplete()
}

// skippedText names something that could not be added, and why.
func skippedText(s *podtemplate.Skipped) string {
	if s.What == podtemplate.Sidecar {
		return "the sidecar that the policy names: " + s.Why
	}
	return fmt.Sprintf("%s of container %s: %s", s.What, s.Container, s.Why)
}

// injectionComplete reports what could not be added to the pods. The reason is that of the worst of it, the message has all.
func (r *verdict) injectionComplete() metav1.Condition {
	reason, missing := "", []string{}
	for _, kind := range []struct {
		reason, remedy string
		of             func(what string) bool
	}{
		{status.ReasonFlagsMissing, "Set it in the template", func(what string) bool {
			return strings.HasPrefix(what, "--") || strings.HasPrefix(what, podtemplate.IslandArgs) ||
				strings.HasPrefix(what, podtemplate.RoleArgs) || what == podtemplate.SideChannelHost
		}},
		{status.ReasonPreStopMissing, "Set it in the template", func(what string) bool {
			return what == podtemplate.PreStop || what == podtemplate.GraceFor
		}},
		{status.ReasonProbesMissing, "Without it pods count as ready while their model loads, and a rollout replaces all of them too early: " +
			"set it in the template, or list it in the annotation " + v1alpha1.AnnotationLeaveOut, func(what string) bool {
			return what == podtemplate.ReadinessProbe
		}},
		{status.ReasonSidecarMissing, "Until then requests behind a gateway are not handed over, as if the policy had sidecar None", func(what string) bool {
			return what == podtemplate.Sidecar
		}},
	} {
		var said []string
		for _, s := range r.problems.skipped {
			if kind.of(s.What) && s.Why != podtemplate.ReleaseUnknown {
				said = append(said, skippedText(&s))
			}
		}
		if len(said) > 0 {
			reason, missing = cmp.Or(reason, kind.reason), append(missing, strings.Join(said, "; ")+". "+kind.remedy)
		}
	}
	if reason != "" {
		return status.PodsHealthy.False(reason, "%s", strings.Join(missing, ". "))
	}
	var unknown []string
	for _, s := range r.problems.skipped {
		if s.Why == podtemplate.ReleaseUnknown {
			unknown = append(unknown, s.What)
		}
	}
	if len(unknown) == 0 {
		return status.PodsHealthy.True("Healthy", "")
	}
	why, remedy := "the engine's image does not show its release",
		fmt.Sprintf("State it in the template's annotation %s, or set or refuse the flags", v1alpha1.AnnotationEngineRelease)
	if stated, ok := r.pool.Spec.Template.Annotations[v1alpha1.AnnotationEngineRelease]; ok {
		why = fmt.Sprintf("the template's annotation %s is %q", v1alpha1.AnnotationEngineRelease, stated)
		remedy = "Write the release as its numbers, such as 0.32"
	}
	return status.PodsHealthy.True(status.ReasonReleaseUnknown, "%s, which not every release of vLLM has: left out, because %s. %s",
		strings.Join(unknown, ", "), why, remedy)
}

func (r *verdict) eventsSynced() metav1.Condition {
	if r.pool.Spec.Engine.Events.Source == v1alpha1.EventsNone {
		return status.EventsSynced.True(status.ReasonEventsNotUsed, "engine.events.source is None")
	}
	synced, of := 0, 0
	reason, which := "", ""
	for i := range r.decision.Pods {
		p := r.decision.Pods[i].Pod
		if !p.Ready || p.Deleting {
			continue
		}
		of++
		state, _ := r.view.Pod(p.UID)
		why := status.EventsReason(state.Reason, p.Synced)
		if why == "" {
			synced++
			continue
		}
		if which == "" {
			which, reason = p.Name, why
			if reason == status.ReasonStreamMissing && r.pool.Spec.Engine.Events.Source == v1alpha1.EventsReporter && !hasReporter(r.podOf[p.UID]) {
				reason = status.ReasonReporterMissing
			}
		}
	}
	switch {
	case len(r.view.Replicas) == 0:
		return noPicker(status.EventsSynced)
	case which != "":
		return status.EventsSynced.False(reason, "the caches of %d of %d pods are known; that of %s is not", synced, of, which)
	}
	return status.EventsSynced.True(status.ReasonSynced, "")
}

// hasReporter reports whether a pod has a reporter, the operator's or another one; nil counts as one with a reporter.
func hasReporter(pod *corev1.Pod) bool {
	is := func(c corev1.Container) bool { return c.Name == v1alpha1.ReporterContainer }
	return pod == nil || slices.ContainsFunc(pod.Spec.InitContainers, is) || slices.ContainsFunc(pod.Spec.Containers, is)
}

func (r *verdict) ready(accepted, picker metav1.Condition) metav1.Condition {
	c := &r.decision.Counts
	switch {
	case accepted.Status == metav1.ConditionFalse && c.Ready == 0:
		return status.Ready.False(status.ReasonNotAccepted, "%s", accepted.Message)
	case c.Ready == 0 && r.size.now == 0:
		return status.Ready.True(status.ReasonAtZero, "the pool is scaled to zero")
	case !r.decodes() && r.wantedDecoders() == 0:
		return status.Ready.True(status.ReasonAtZero, "the roles that answer requests are scaled to zero")
	case c.Ready == 0 && meta.FindStatusCondition(r.next.Conditions, v1alpha1.ConditionReady) == nil:
		return status.Ready.Unknown(status.ReasonStarting, "no endpoint is ready yet")
	case c.Ready == 0 && r.starting():
		return status.Ready.Unknown(status.ReasonStarting, "no endpoint is ready yet")
	case c.Ready == 0:
		return status.Ready.False(status.ReasonNoReadyEndpoint, "none of %d pods is ready", c.Total)
	case !r.decodes():
		return status.Ready.False(status.ReasonNoReadyEndpoint, "%d pods are ready, and all of them only prefill", c.Ready)
	case picker.Reason == status.ReasonUnavailable:
		return status.Ready.False(status.ReasonPickerUnavailable, "%s", picker.Message)
	}
	ranks := max(int(r.pool.Spec.Engine.DataParallel.Ranks), 1)
	return status.OfEndpoints(c.Ready*ranks, c.Total*ranks, 0, 0)
}

// starting reports whether the pool has never served.
func (r *verdict) starting() bool {
	old := meta.FindStatusCondition(r.next.Conditions, v1alpha1.ConditionReady)
	return old != nil && old.Reason == status.ReasonStarting
}

func (r *verdict) autoscalingActive() metav1.Condition {
	if len(r.size.roles) == 0 {
		return r.autoscalingOf(&r.pool.Spec.Autoscaling, &r.size)
	}
	var said []string
	var out metav1.Condition
	for i := range r.size.roles {
		one := &r.size.roles[i]
		if r.pool.Spec.Roles[i].Autoscaling.MaxReplicas == 0 {
			continue
		}
		of := r.autoscalingOf(&r.pool.Spec.Roles[i].Autoscaling, &one.size)
		if out.Type == "" || out.Status == metav1.ConditionTrue && (of.Status == metav1.ConditionFalse || of.Reason == "AtMaximum") {
			out = of // the worst
		}
		said = append(said, string(one.name)+": "+of.Message)
	}
	out.Message = strings.Join(said, "; ")
	return out
}

// autoscalingOf is the condition of what has a size, a pool or a role.
func (r *verdict) autoscalingOf(a *v1alpha1.Autoscaling, chosen *size) metav1.Condition {
	d := chosen.decision
	_, bad := autoscaling.Spec(a)
	switch {
	case r.problems.target != "":
		return status.AutoscalingActive.False("TargetNotScalable", "%s", r.problems.target)
	case bad != nil:
		return status.AutoscalingActive.False("ScheduleInvalid", "ignored: %v", bad)
	case d == nil || d.Reason == scaling.NoSamples:
		return status.AutoscalingActive.False("NoSamples", "no picker reports, so the size stays")
	case r.pool.Spec.Paused == v1alpha1.PauseAll:
		return status.AutoscalingActive.False("ScalingPaused", "the size would be %d: %s; spec.paused keeps %d", d.Size, d.Reason, chosen.now)
	case a.Mode == v1alpha1.AutoscalingRecommend:
		return status.AutoscalingActive.True("Recommending", "the recommended size is %d: %s", d.Size, d.Reason)
	case d.Reason == scaling.AtMaximum:
		return status.AutoscalingActive.True("AtMaximum", "%d would be needed", d.Wanted)
	}
	return status.AutoscalingActive.True("Active", "%s", d.Reason)
}

package inferencepool

import (
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
	"github.com/kvasir-dev/kvasir/internal/operator/scaling"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// newVerdict is one about a pool of two pods that is as it should be.
func newVerdict() *verdict {
	return &verdict{
		scope: &scope{Reconciler: &Reconciler{Version: "v1"}, pool: newPool(), memory: &memory{recorded: map[recordedEvent]time.Time{}},
			view: operatorfeed.View{Replicas: []operatorfeed.State{{Picker: "a"}}}},
		observed: &observed{podOf: map[string]*corev1.Pod{}, picker: &appsv1.Deployment{Status: appsv1.DeploymentStatus{ReadyReplicas: 2}}},
		outcome: &outcome{size: size{now: 2, wanted: 2},
			decision: lifecycle.Result{Counts: lifecycle.Counts{Total: 2, Ready: 2, Updated: 2}, Progress: lifecycle.UpToDate}},
		next: &v1alpha1.InferencePoolStatus{},
	}
}

func TestEachConditionSaysWhatIsTheMatter(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	forbidden := apierrors.NewForbidden(pods, "chat-0", errors.New("violates PodSecurity"))
	quota := apierrors.NewForbidden(pods, "chat-0", errors.New("exceeded quota: gpus"))
	accepted := func(err error) func(*verdict) metav1.Condition {
		return func(r *verdict) metav1.Condition { return r.accepted(err) }
	}
	scaled := func(err error) func(*verdict) metav1.Condition {
		return func(r *verdict) metav1.Condition { return r.scaled(err) }
	}
	picker := func(err error) func(*verdict) metav1.Condition {
		return func(r *verdict) metav1.Condition { return r.pickerAvailable(err) }
	}
	ready := func(r *verdict) metav1.Condition { return r.ready(r.accepted(nil), r.pickerAvailable(nil)) }
	trouble := func(reason string) func(*verdict) {
		return func(r *verdict) {
			r.decision.Pods = []lifecycle.Seen{{Pod: &lifecycle.Pod{UID: "u", Name: "chat-0"}, Trouble: lifecycle.Trouble{Reason: reason}}}
		}
	}
	stuck := func(kind appsv1.DeploymentConditionType, is corev1.ConditionStatus) func(*verdict) {
		return func(r *verdict) { r.picker.Status.Conditions = []appsv1.DeploymentCondition{{Type: kind, Status: is}} }
	}
	islands := func(minima ...int32) func(*verdict) {
		return func(r *verdict) {
			r.pool.Spec.Replicas, r.pool.Spec.Placement = ptr.To[int32](2), &v1alpha1.Placement{}
			for _, n := range minima {
				r.pool.Spec.Placement.Islands = append(r.pool.Spec.Placement.Islands, v1alpha1.Island{MinReplicas: &n})
			}
		}
	}
	decided := func(mode v1alpha1.AutoscalingMode, reason scaling.Reason) func(*verdict) {
		return func(r *verdict) {
			r.pool.Spec.Autoscaling.Mode, r.size.decision = mode, &scaling.Decision{Size: 2, Wanted: 3, Reason: reason}
		}
	}
	was := func(reason string) []metav1.Condition {
		return []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: reason}}
	}
	refused := func(generation int64) operatorfeed.State {
		return operatorfeed.State{Accepted: operatorfeed.Finding{Verdict: operatorfeed.Bad, Reason: "Invalid"}, AcceptedGeneration: generation}
	}
	unchecked := v1alpha1.Engine{APIKey: v1alpha1.SecretKey{Name: "k", Key: "token"}, ClientAuth: v1alpha1.ClientAuthPoolKey}
	for _, tc := range []struct {
		judge  func(*verdict) metav1.Condition
		change func(*verdict)
		want   string
	}{
		{accepted(nil), func(*verdict) {}, "True Accepted"},
		{accepted(nil), func(r *verdict) { r.pool.Spec.Engine.Type = v1alpha1.EngineSGLang }, "True EngineExperimental"},
		{accepted(nil), func(r *verdict) { r.pool.Spec.Engine = unchecked }, "True ClientsUnchecked"},
		{accepted(nil), func(r *verdict) {
			r.pool.Spec.Engine, r.policy = unchecked, &v1alpha1.RoutingPolicy{}
			r.policy.Spec.Admission.Tenants.Identification = v1alpha1.IdentifyByAPIKey
		}, "True Accepted"},
		{accepted(forbidden), func(*verdict) {}, "False NotPermitted"},
		{accepted(quota), func(*verdict) {}, "True Accepted"},
		{accepted(apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "chat-0", nil)), func(*verdict) {}, "False TemplateRefused"},
		{accepted(nil), func(r *verdict) { r.problems.reference = "x" }, "False ReferenceNotFound"},
		{accepted(nil), func(r *verdict) { r.view.Refusing = []operatorfeed.State{refused(r.pool.Generation)} }, "False Invalid"},
		{accepted(nil), func(r *verdict) { r.view.Refusing = []operatorfeed.State{refused(r.pool.Generation - 1)} }, "True Accepted"},
		{accepted(nil), func(r *verdict) { r.view.Replicas = []operatorfeed.State{refused(r.pool.Generation)} }, "False Invalid"},
		{scaled(quota), func(*verdict) {}, "False QuotaExceeded"},
		{scaled(nil), func(*verdict) {}, "True Settled"},
		{scaled(nil), func(r *verdict) { r.decision.NoRoom = true }, "False IslandsExhausted"},
		{scaled(nil), func(r *verdict) { r.decision.Counts.Ready = 1 }, "False ScalingUp"},
		{scaled(nil), func(r *verdict) { r.decision.Counts.Total, r.decision.Counts.Draining = 3, 1 }, "False ScalingDown"},
		{picker(nil), func(*verdict) {}, "True Available"},
		{picker(nil), func(r *verdict) { r.picker.Status.ReadyReplicas = 1 }, "False SomeUnavailable"},
		{picker(nil), func(r *verdict) { r.picker = nil }, "False Unavailable"},
		{picker(nil), stuck(appsv1.DeploymentReplicaFailure, corev1.ConditionTrue), "False UpdateStopped"},
		{picker(nil), stuck(appsv1.DeploymentProgressing, corev1.ConditionFalse), "False UpdateStopped"},
		{picker(nil), stuck(appsv1.DeploymentProgressing, corev1.ConditionTrue), "True Available"},
		{picker(fmt.Errorf("keeping: %w", &certificateError{err: errors.New("bad")})), func(*verdict) {}, "False CertificateInvalid"},
		{picker(nil), func(r *verdict) { r.pool.Spec.Picker.Mode = v1alpha1.PickerExternal }, "True External"},
		{ready, func(*verdict) {}, "True Serving"},
		{ready, func(r *verdict) { r.decision.Counts.Ready, r.size.now = 0, 0 }, "True AtZero"},
		{ready, func(r *verdict) { r.decision.Counts.Ready = 0 }, "Unknown Starting"},
		{ready, func(r *verdict) { r.decision.Counts.Ready, r.next.Conditions = 0, was("Serving") }, "False NoReadyEndpoint"},
		{ready, func(r *verdict) { r.decision.Counts.Ready, r.problems.overlap = 0, "x" }, "False NotAccepted"},
		{ready, func(r *verdict) { r.problems.overlap = "x" }, "True Serving"},
		{ready, func(r *verdict) { r.picker = nil }, "False PickerUnavailable"},
		{(*verdict).upToDate, func(r *verdict) { r.decision.Progress = lifecycle.WaitingOnDelete }, "False RolloutOnDelete"},
		{(*verdict).podsHealthy, func(*verdict) {}, "True Healthy"},
		{(*verdict).podsHealthy, trouble(lifecycle.ImagePullFailed), "False ImagePullFailed"},
		{(*verdict).podsHealthy, trouble(lifecycle.SlowStart), "False SlowStart"},
		{(*verdict).podsHealthy, func(r *verdict) { r.problems.skipped = []podtemplate.Skipped{{What: podtemplate.PreStop}} }, "False PreStopMissing"},
		{(*verdict).podsHealthy, func(r *verdict) { r.problems.skipped = []podtemplate.Skipped{{What: "--kv-events-config"}} }, "False EngineFlagsMissing"},
		{(*verdict).podsHealthy, func(r *verdict) { r.problems.skipped = []podtemplate.Skipped{{What: podtemplate.IslandArgs + "a"}} }, "False EngineFlagsMissing"},
		{(*verdict).podsHealthy, func(r *verdict) {
			r.problems.skipped = []podtemplate.Skipped{{What: "--shutdown-timeout", Why: podtemplate.ReleaseUnknown}}
		}, "True ReleaseUnknown"},
		{(*verdict).eventsSynced, func(r *verdict) { r.pool.Spec.Engine.Events.Source = v1alpha1.EventsNone }, "True NotUsed"},
		{(*verdict).eventsSynced, func(r *verdict) { r.view = operatorfeed.View{} }, "Unknown NoPicker"},
		{(*verdict).autoscalingActive, decided(v1alpha1.AutoscalingActive, scaling.AtMaximum), "True AtMaximum"},
		{(*verdict).autoscalingActive, decided(v1alpha1.AutoscalingActive, "QueueDepth"), "True Active"},
		{(*verdict).autoscalingActive, decided(v1alpha1.AutoscalingActive, scaling.NoSamples), "False NoSamples"},
		{(*verdict).autoscalingActive, decided(v1alpha1.AutoscalingRecommend, "QueueDepth"), "True Recommending"},
		{(*verdict).autoscalingActive, func(r *verdict) {
			decided(v1alpha1.AutoscalingActive, "QueueDepth")(r)
			r.pool.Spec.Autoscaling.Schedules = []v1alpha1.Schedule{{Name: "s", Start: "0 8 30 2 *", TimeZone: "UTC"}}
		}, "False ScheduleInvalid"},
		{(*verdict).autoscalingActive, func(r *verdict) {
			decided(v1alpha1.AutoscalingActive, scaling.NoSamples)(r)
			r.pool.Spec.Autoscaling.Schedules = []v1alpha1.Schedule{{Name: "s", Start: "0 8 30 2 *", TimeZone: "UTC"}}
		}, "False ScheduleInvalid"},
		{scaled(nil), islands(2, 1), "False IslandMinimaUnmet"},
		{scaled(nil), islands(1, 1), "True Settled"},
	} {
		r := newVerdict()
		tc.change(r)
		j := tc.judge(r)
		if got := string(j.Status) + " " + j.Reason; got != tc.want {
			t.Errorf("%s (%s), want %s", got, j.Message, tc.want)
		}
	}
}

func TestWhatPickersSayOfACacheIsTheReason(t *testing.T) {
	for said, want := range map[string]string{
		"": "StreamMissing", "UnknownLayout": "UnknownLayout", "Lagging": "Lagging", "HistoryLost": "HistoryLost",
		"BlockSizeUnsupported": "BlockSizeUnsupported", "Disconnected": "StreamMissing",
	} {
		r := newVerdict()
		var heard operatorfeed.Pool
		heard.Receive(r.now, operatorfeed.State{Picker: "a", Incarnation: 1, Pods: map[string]operatorfeed.PodState{"u": {Reason: said}}})
		r.view = heard.View(r.now, []operatorfeed.Expected{{Picker: "a", Ready: true}})
		r.decision.Pods = []lifecycle.Seen{{Pod: &lifecycle.Pod{UID: "u", Name: "chat-0", Ready: true}}}
		if j := r.eventsSynced(); j.Status != metav1.ConditionFalse || j.Reason != want {
			t.Errorf("%q: %s %s, want %s", said, j.Status, j.Reason, want)
		}
	}
}

// TestModelsThatNoEngineListsAnyMoreAreUnknown: a pool that is scaled to zero does not keep what its last engines have listed.
func TestModelsThatNoEngineListsAnyMoreAreUnknown(t *testing.T) {
	w := newWorld(t)
	w.serve()
	for _, tc := range []struct {
		model operatorfeed.Finding
		want  string
	}{
		{operatorfeed.Finding{}, "none"},
		{found("ModelNotListed", "chat-0 lists other"), "False ModelNotListed"},
		{operatorfeed.Finding{}, "Unknown NoModelList"},
		{operatorfeed.Finding{Verdict: operatorfeed.Good, Reason: "Served"}, "True Served"},
	} {
		w.model = tc.model
		for range 2 { // a condition lasts for a while before another replaces it
			w.clock.SetTime(w.clock.Now().Add(2 * settle))
			w.tick()
			w.settleDown()
		}
		if got := w.condition(v1alpha1.ConditionModelServed); got != tc.want {
			t.Errorf("with %+v it is %s, want %s", tc.model, got, tc.want)
		}
	}
}

// TestMessagesThatNameWhatIsConcernedFollowIt: others have numbers that change all the time, and stay as long as their reason.
func TestMessagesThatNameWhatIsConcernedFollowIt(t *testing.T) {
	for reason, want := range map[string]string{
		"TokensDoubted": "second", "EndpointDiffers": "second", "PartlyExact": "first",
	} {
		w := newWorld(t)
		w.serve()
		for _, message := range []string{"first", "second"} {
			w.tokens = found(reason, message)
			for range 2 { // a condition lasts for a while before another replaces it
				w.clock.SetTime(w.clock.Now().Add(2 * settle))
				w.tick()
				w.settleDown()
			}
		}
		if c := status.TokensExact.In(w.pool().Status.Conditions); c == nil || c.Reason != reason || c.Message != want {
			t.Errorf("%s: %+v, want the message %q", reason, c, want)
		}
	}
}

func TestWhatIsDoneToPodsIsAnEvent(t *testing.T) {
	for _, tc := range []struct {
		action lifecycle.Action
		want   []string
	}{
		{lifecycle.Action{Kind: lifecycle.SetMark, Mark: lifecycle.Mark{Reason: lifecycle.DrainScaleDown}}, []string{"VictimChosen", "DrainStarted"}},
		{lifecycle.Action{Kind: lifecycle.Unmark, Cause: lifecycle.CauseDemand}, []string{"DrainCancelled"}},
		{lifecycle.Action{Kind: lifecycle.Delete, Cause: lifecycle.CauseIdle}, []string{"DrainFinished"}},
		{lifecycle.Action{Kind: lifecycle.Delete, Cause: lifecycle.CauseDeadline}, []string{"DrainDeadlineExceeded"}},
		{lifecycle.Action{Kind: lifecycle.Delete, Cause: lifecycle.CauseFinished}, nil},
		{lifecycle.Action{Kind: lifecycle.Create, Island: "eu"}, []string{"IslandChosen"}},
		{lifecycle.Action{Kind: lifecycle.Create}, nil},
		{lifecycle.Action{Kind: lifecycle.Show, Shown: lifecycle.Shown{Warm: true}}, []string{"WarmUpFinished"}},
	} {
		w := newWorld(t)
		of := newVerdict()
		of.Reconciler, of.podOf["u"] = w.r, &corev1.Pod{}
		r := &executor{newPodWriter(of.scope, of.observed), of.outcome}
		tc.action.UID, tc.action.Name = "u", "chat-0"
		for range 2 { // again within a minute is no news
			r.recordAction(&tc.action)
		}
		w.expectEvents(tc.action.Cause, tc.want...)
	}
}

func TestWhatTheStatusSaysAnewIsAnEvent(t *testing.T) {
	status := func(size int32, current, update string, conditions ...metav1.Condition) *v1alpha1.InferencePool {
		p := newPool()
		p.Status.DesiredReplicas, p.Status.CurrentRevision, p.Status.UpdateRevision, p.Status.Conditions = &size, current, update, conditions
		return p
	}
	condition := func(kind, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason}
	}
	before := status(2, "a", "a")
	for _, tc := range []struct {
		was, is *v1alpha1.InferencePool
		want    []string
	}{
		{newPool(), status(2, "a", "a"), nil},
		{before, status(2, "a", "a"), nil},
		{before, status(3, "a", "a"), []string{"ScaledUp"}},
		{before, status(1, "a", "a"), []string{"ScaledDown"}},
		{before, status(2, "a", "b"), []string{"RolloutStarted"}},
		{status(2, "a", "b"), status(2, "b", "b"), []string{"RolloutFinished"}},
		{before, status(2, "a", "a", condition(v1alpha1.ConditionUpToDate, "RolloutStopped")), []string{"RolloutStopped"}},
		{before, status(2, "a", "a", condition(v1alpha1.ConditionPodsHealthy, lifecycle.CrashLooping)), []string{"PodStuck"}},
		{before, status(2, "a", "a", condition(v1alpha1.ConditionPodsHealthy, "EngineFlagsMissing")), []string{"InjectionSkipped"}},
		{before, status(2, "a", "a", condition(v1alpha1.ConditionEventsSynced, "StreamMissing")), []string{"EventsDegraded"}},
		{before, status(2, "a", "a", condition(v1alpha1.ConditionGatewayConforms, "PicksNotFollowed")), []string{"GatewayDeviates"}},
		{before, status(2, "a", "a", condition(v1alpha1.ConditionModelServed, "ModelNotListed")), []string{"ModelNotServed"}},
		{before, status(2, "a", "a", condition(v1alpha1.ConditionResourcesSuffice, "MemoryShort")), []string{"PickerOverloaded"}},
	} {
		w := newWorld(t)
		r := newVerdict()
		r.Reconciler = w.r
		r.recordChanges(tc.was, tc.is)
		w.expectEvents("", tc.want...)
	}
}

// expectEvents fails unless exactly these events were recorded, once each.
func (w *world) expectEvents(what string, want ...string) {
	w.t.Helper()
	got := w.newEvents()
	for _, reason := range want {
		if got[reason] != 1 {
			w.t.Errorf("%s: %d events %s", what, got[reason], reason)
		}
		delete(got, reason)
	}
	if len(got) > 0 {
		w.t.Errorf("%s: unexpected events %v", what, got)
	}
}

func TestThePoolIsNotReadyAsSoonAsItsLastEndpointIsNot(t *testing.T) {
	w := newWorld(t)
	w.r.Children = nil
	pickers := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: poolKey.Namespace, Name: "chat-picker"}}
	pickers.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kvasir.dev/v1alpha1", Kind: "InferencePool", Name: "chat", UID: "pool-uid", Controller: ptr.To(true)}}
	w.must(w.api.Create(t.Context(), pickers))
	pickers.Status.ReadyReplicas = 2
	w.must(w.api.Status().Update(t.Context(), pickers))
	w.serve()
	if got := w.condition(v1alpha1.ConditionReady); got != "True Serving" {
		t.Fatalf("at first: %s", got)
	}
	ready := func(yes bool, of []*corev1.Pod) {
		for _, pod := range of {
			w.setStatus(pod, func(s *corev1.PodStatus) { setCondition(s, corev1.PodReady, yes, w.clock.Now()) })
		}
		w.settleDown()
	}
	ready(false, w.all()[:1])
	if got := w.condition(v1alpha1.ConditionReady); got != "True Serving" {
		t.Errorf("with one of two: %s", got)
	}
	ready(false, w.all()[1:])
	if got := w.condition(v1alpha1.ConditionReady); got != "False NoReadyEndpoint" {
		t.Errorf("with none of two: %s, %d ready", got, *w.pool().Status.ReadyReplicas)
	}
	ready(true, w.all()[:1])
	if got := w.condition(v1alpha1.ConditionReady); got != "True Serving" {
		t.Errorf("with one again: %s", got)
	}
}

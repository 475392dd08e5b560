package inferencepool

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/routingpolicy"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/operator/placement"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// Bounds of the status.
const (
	maxPods    = 32
	maxEnded   = 8 // of these, pods that ended
	maxReason  = 64
	maxMessage = 256
)

// problems that this reconciliation met, for conditions.
type problems struct {
	template  string                // it is refused
	reference string                // something that is named is not there
	taken     []string              // names that objects of other owners have
	gateway   []string              // as taken, of the gateway's objects
	refused   []string              // other objects that the API server refused, and why
	route     []string              // as refused, of the inference extension's pool and the route
	traffic   []string              // as refused, of single gateways' own kinds
	overlap   string                // the older pool that selects the same pods
	skipped   []podtemplate.Skipped // what could not be injected
	target    string                // the scale target refused
}

// verdict is the part that judges what the others found and did, and writes the status.
type verdict struct {
	*scope
	*observed
	*outcome
	gateway *gatewayFacts // nil when they could not be read
	network networkFacts
	next    *v1alpha1.InferencePoolStatus
	stuck   *corev1.Pod // the first that has a trouble
}

// status computes the contents of the status.
func (r *verdict) status(childrenErr, podsErr error) {
	s := r.next
	s.ObservedGeneration = r.pool.Generation
	if r.problems.template == "" && (r.decision.Pods != nil || r.decision.Current != "" || podsErr == nil) {
		r.countPods(s)
	}
	s.Selector = r.selector()
	r.pickerStatus(s)
	if id := r.view.KeyID(); id != "" {
		s.KeySpace = v1alpha1.KeySpaceStatus{KeyID: id, BlockTokens: r.pool.Spec.KeySpace.BlockTokens}
	}
	inForce, affected := routingpolicy.PoolStatus(r.pool, r.policy, &r.view)
	s.RoutingPolicy = inForce
	r.conditions(childrenErr, podsErr, affected)
}

// writeStatus writes the status, once, when it differs.
func (r *verdict) writeStatus(ctx context.Context) error {
	if equality.Semantic.DeepEqual(r.pool.Status, *r.next) {
		return nil
	}
	was := r.pool.DeepCopy()
	is := was.DeepCopy()
	is.Status = *r.next
	err := r.Client.Status().Patch(ctx, is, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsConflict(err):
		r.retry = true
		return nil
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("writing the status of pool %s: %w", r.key, err)
	}
	r.recordChanges(was, is)
	return nil
}

// countPods fills in the numbers. They are of the state that the decision was made from.
func (r *verdict) countPods(s *v1alpha1.InferencePoolStatus) {
	c := &r.decision.Counts
	s.DesiredReplicas = count(r.size.now)
	s.Replicas, s.ReadyReplicas, s.DrainingReplicas = count(c.Staying), count(c.Ready), count(c.Draining)
	s.UpdatedReplicas = count(c.Updated)
	s.Autoscaling = r.autoscalingStatus(&r.pool.Spec.Autoscaling, &r.size, r.pool.Status.Autoscaling)
	s.Roles = r.roleStatuses()
	ranks := max(int(r.pool.Spec.Engine.DataParallel.Ranks), 1)
	s.Endpoints = v1alpha1.EndpointCounts{
		Total: count(c.Total * ranks), Ready: count(c.Ready * ranks), Synced: count(c.Synced * ranks), Degraded: count(c.Degraded * ranks),
	}
	if r.pool.Spec.Template != nil {
		s.UpdateRevision = r.key.Name + "-" + r.revisions.update
		s.CurrentRevision = ""
		if r.decision.Current != "" {
			s.CurrentRevision = r.key.Name + "-" + r.decision.Current
		}
	}
	s.Injected = r.revisions.injected
	s.Islands = r.islandStatus()
	s.Pods = r.summaries()
}

// selector is that of the scale subresource. A HorizontalPodAutoscaler averages over the pods that it selects and
// multiplies by status.replicas, so both leave out pods that get no more requests.
func (r *scope) selector() string {
	const notDraining = "!" + v1alpha1.LabelDrain
	return config.PodLabels(r.pool).String() + "," + notDraining
}

func (r *verdict) pickerStatus(s *v1alpha1.InferencePoolStatus) {
	s.Picker = v1alpha1.PickerStatus{Replicas: count(0), ReadyReplicas: count(0), ServiceName: resources.PickerName(r.key.Name)}
	if r.pool.Spec.Picker.Mode == v1alpha1.PickerExternal {
		n := r.view.Live()
		s.Picker = v1alpha1.PickerStatus{Replicas: count(n), ReadyReplicas: count(n), ServiceName: r.pool.Spec.Picker.External.ServiceName}
		return
	}
	s.Picker.FleetName = (&cluster{r.scope, r.observed}).servingFleet()
	if r.fleets.target != "" {
		s.Picker.ServiceName = resources.NamesOfFleet(r.fleets.target).Pickers
		if r.fleets.pickers != nil {
			s.Picker.Replicas, s.Picker.ReadyReplicas = ptr.To(r.fleets.pickers.Status.Replicas), ptr.To(r.fleets.pickers.Status.ReadyReplicas)
		}
		return
	}
	if r.picker != nil {
		s.Picker.Replicas, s.Picker.ReadyReplicas = ptr.To(r.picker.Status.Replicas), ptr.To(r.picker.Status.ReadyReplicas)
	}
}

// islandStatus is the status of each island that the pool names.
func (r *verdict) islandStatus() []v1alpha1.IslandStatus {
	var out []v1alpha1.IslandStatus
	if r.islands == nil {
		return nil
	}
	for k := range r.islands.all {
		name := r.islands.all[k].Name
		n, m, state := r.decision.Counts.Islands[name], r.memory.islands[name], v1alpha1.IslandAvailable
		priced := placement.Island{}
		if k < len(r.islands.priced) {
			priced = r.islands.priced[k]
		}
		switch {
		case m != nil && m.failures > 0 && r.now.Before(m.exhausted.Add(priced.Rest(m.failures))):
			state = v1alpha1.IslandExhausted
		case n.Pending > 0:
			state = v1alpha1.IslandWaiting
		}
		one := v1alpha1.IslandStatus{
			Name: name, Replicas: count(n.Total), ReadyReplicas: count(n.Ready), PendingReplicas: count(n.Pending), State: state,
		}
		at := metav1.NewTime(r.now)
		one.LastTransitionTime = &at
		for _, before := range r.pool.Status.Islands {
			if before.Name == name && before.State == state {
				one.LastTransitionTime = before.LastTransitionTime
			}
		}
		out = append(out, one)
	}
	return out
}

// summaries are the pods that do not simply serve, worst first. The text about a pod stays until its stage or the reason
// changes.
func (r *verdict) summaries() []v1alpha1.PodSummary {
	before := map[string]v1alpha1.PodSummary{}
	for _, p := range r.pool.Status.Pods {
		before[p.Name] = p
	}
	var out []v1alpha1.PodSummary
	for _, p := range r.decision.Ended[:min(len(r.decision.Ended), maxEnded)] {
		since := metav1.NewTime(p.EndedAt.Truncate(time.Second))
		out = append(out, v1alpha1.PodSummary{
			Name: p.Name, Stage: v1alpha1.StageEnded, Since: &since, Reason: shortReason(p.Trouble.Reason),
			Message: p.Trouble.Message[:min(len(p.Trouble.Message), maxMessage)],
		})
	}
	for i := range r.decision.Pods {
		seen := &r.decision.Pods[i]
		if seen.Stage == lifecycle.StageReady && seen.Trouble.Reason == "" || len(out) == maxPods {
			continue
		}
		now := metav1.NewTime(r.now.Truncate(1e9))
		one := v1alpha1.PodSummary{Name: seen.Pod.Name, Stage: v1alpha1.PodStage(seen.Stage), Since: &now}
		one.Reason, one.Message = seen.Trouble.Reason, seen.Trouble.Message
		if m := seen.Pod.Mark; m.Reason != "" {
			one.Reason, one.Message = drainReasons[m.Reason], "no deadline"
			if !m.Deadline.IsZero() {
				one.Message = "deadline " + m.Deadline.UTC().Format("15:04:05")
			}
			one.Reason = cmp.Or(one.Reason, "Manual")
		} else if seen.Pod.Deleting {
			one.Reason, one.Message = "Deleted", "by another client, or drained"
		}
		one.Message = one.Message[:min(len(one.Message), maxMessage)]
		if old, ok := before[one.Name]; ok && old.Stage == one.Stage && old.Reason == one.Reason {
			one = old
		}
		out = append(out, one)
	}
	return out
}

// shortReason cuts a reason that Kubernetes or a container runtime chose to what the status admits.
func shortReason(reason string) string { return reason[:min(len(reason), maxReason)] }

var drainReasons = map[string]string{
	lifecycle.DrainScaleDown: "ScaleDown", lifecycle.DrainRollout: "Rollout", lifecycle.DrainNode: "Node", lifecycle.DrainManual: "Manual",
}

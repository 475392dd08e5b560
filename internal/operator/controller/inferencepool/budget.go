package inferencepool

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/objects"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
)

// nodeFor is how long the replacement of a pod whose node goes away can be without a node before evictions no longer wait
// for it. It is longer than cloud providers usually need for a GPU node, and shorter than the time-outs of managed node
// upgrades.
const nodeFor = 10 * time.Minute

// budget is the part that chooses what the disruption budget admits.
type budget struct {
	*scope
	*observed
}

// stays reports whether a pod is neither draining, nor being deleted, nor finished.
func stays(pod *corev1.Pod) bool {
	_, draining := pod.Labels[v1alpha1.LabelDrain]
	finished := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
	return pod.DeletionTimestamp.IsZero() && !draining && !finished
}

// servesUnready reports whether a pod that is there to stay serves without its reporter.
func (r *budget) servesUnready() bool {
	return slices.ContainsFunc(r.pods, func(pod *corev1.Pod) bool {
		return pod.Spec.NodeName != "" && stays(pod) && config.PodServes(pod) && !config.PodReady(pod)
	})
}

// replacesFirst reports whether an eviction can wait until the pod's replacement serves, and explains to people what the
// budget admits. A node is cordoned before its pods are evicted; the operator then creates the replacement, and sets the
// drain mark on the old pod when the new one serves. If the operator does not do that, or finds no room for a replacement,
// an eviction that waits would never be admitted.
func (r *budget) replacesFirst(ctx context.Context) (replaces bool, why string, err error) {
	if r.pool.Spec.Template == nil {
		return false, "", nil
	}
	if why = r.neverReplaces(); why != "" {
		r.memory.evictions.waitSince = time.Time{}
	} else if why, err = r.noReplacement(ctx); err != nil {
		return false, "", err
	}
	switch {
	case why != "" && r.memory.evictions.short():
		return false, fmt.Sprintf("The next pod can be evicted when the replacement of the one before serves, or had no node for %s; %s", shortDuration(nodeFor), why), nil
	case why != "":
		return false, "Pods can be evicted, one at a time or as many as rollout.maxUnavailable allows: " + why, nil
	}
	return true, fmt.Sprintf("A pod can be evicted when its replacement serves, which is created when its node is cordoned. "+
		"If no replacement gets a node within %s, pods are evicted without one", shortDuration(nodeFor)), nil
}

// neverReplaces returns why pods of this pool are not replaced before they leave their nodes; "" if they are.
func (r *budget) neverReplaces() string {
	defaults := r.pool.Spec.WithDefaults()
	surge, _ := limits(defaults.Rollout, chosenSize(r.scope, r.observed).now)
	switch {
	case !r.NodeSignals:
		return "the operator is limited to some namespaces and cannot read nodes"
	case r.pool.Spec.Paused != "":
		return "spec.paused is set, so that a cordon replaces no pod"
	case (&nodes{r.scope}).nodeRules().keepCordon:
		return "drain.onCordon is Keep, so that a cordon replaces no pod"
	case surge == 0:
		return "rollout.maxSurge is 0, so that no pod is replaced before it ends"
	}
	return ""
}

// noReplacement returns why evictions cannot wait for a replacement at the moment; "" when they can. Pods with a toleration of
// cordons stay when their node is cordoned. Otherwise what counts is how long pods have waited whose nodes go away.
func (r *budget) noReplacement(ctx context.Context) (string, error) {
	recalled, err := r.recall(ctx)
	if err != nil {
		return "", err
	}
	waits, loads, progress := false, false, time.Time{}
	all := r.servesUnready() // then evictions of pods that do not serve wait as well
	for _, pod := range r.pods {
		if !stays(pod) {
			continue
		}
		progress = latest(progress, pod.CreationTimestamp.Time)
		if assigned, at := since(pod, corev1.PodScheduled); assigned {
			progress = latest(progress, at)
		}
		if pod.Spec.NodeName == "" {
			continue
		}
		if tolerates(pod, corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule) {
			r.memory.evictions.waitSince = time.Time{}
			return "pod " + pod.Name + " tolerates " + corev1.TaintNodeUnschedulable + ", so that a cordon does not replace it", nil
		}
		state, err := (&nodes{r.scope}).node(ctx, pod)
		if err != nil {
			return "", err
		}
		serves := config.PodServes(pod)
		if (state == lifecycle.NodeLeaves || state == lifecycle.NodeUnready) && (serves || all) {
			waits = true
			if spot, err := r.onSpot(ctx, pod); spot || err != nil {
				return "the node of pod " + pod.Name + " is a spot instance, which can end before a replacement serves", err
			}
		}
		loads = loads || state == lifecycle.NodeStays && !serves && troubleOf(pod).Reason == ""
	}
	m := &r.memory.evictions
	if !waits {
		m.waitSince = time.Time{}
		return "", nil
	}
	if m.waitSince.IsZero() {
		m.waitSince = cmp.Or(recalled, r.now)
	}
	if m.noRoom != "" {
		return "there is no room for a replacement: " + m.noRoom, nil
	}
	limit, what := nodeFor, "no replacement got a node"
	if loads { // it has a node, and its model loads
		limit, what = max(limit, time.Duration(r.pool.Spec.Rollout.ProgressDeadlineSeconds)*time.Second), "no replacement became ready"
	}
	// Replacements come one after another, each made when the one before serves: the time of the newest one counts.
	if due := latest(m.waitSince, progress).Add(limit); r.now.Before(due) {
		r.wakeAt(due)
		return "", nil
	}
	return what + " within " + shortDuration(limit), nil
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// recall returns since when pods waited as the operator's replica that led before has written it on the budget; zero for no such time, and
// after the first call, since this process knows better then.
func (r *budget) recall(ctx context.Context) (since time.Time, err error) {
	if r.memory.evictions.recalled {
		return time.Time{}, nil
	}
	kept := &policyv1.PodDisruptionBudget{}
	if err := r.Client.Get(ctx, r.key, kept); client.IgnoreNotFound(err) != nil {
		return time.Time{}, fmt.Errorf("reading the disruption budget of pool %s: %w", r.key, err)
	}
	r.memory.evictions.recalled = true
	if at, wrong := time.Parse(time.RFC3339, kept.Annotations[v1alpha1.AnnotationEvictionsWaitSince]); wrong == nil && !at.After(r.now) {
		since = at // others were edited by people
	}
	return since, nil
}

// spotLabels are how providers and Karpenter label spot instances. Their end within minutes is often announced by a cordon and
// evictions alone.
var spotLabels = map[string]string{
	"karpenter.sh/capacity-type":            "spot",
	"eks.amazonaws.com/capacityType":        "SPOT",
	"cloud.google.com/gke-spot":             "true",
	"cloud.google.com/gke-preemptible":      "true",
	"kubernetes.azure.com/scalesetpriority": "spot",
}

// SpotLabel reports whether a label of a node shows that the node is a spot instance: caches of nodes must keep such labels.
func SpotLabel(key, value string) bool { return value != "" && spotLabels[key] == value }

// onSpot reports whether a pod's node is a spot instance.
func (r *budget) onSpot(ctx context.Context, pod *corev1.Pod) (bool, error) {
	node, err := (&nodes{r.scope}).find(ctx, pod.Spec.NodeName)
	if node == nil || err != nil {
		return false, err
	}
	for key, value := range node.Labels {
		if SpotLabel(key, value) {
			return true, nil
		}
	}
	return false, nil
}

// recallRoom remembers for the next budget why no pod could be created; "" when nothing kept the operator from it, or when a pod is about
// to end, which makes room.
func (r *podKeeper) recallRoom(err error) {
	before, of := r.memory.evictions.noRoom, &budget{r.scope, r.observed}
	switch {
	case slices.ContainsFunc(r.pods, func(pod *corev1.Pod) bool { return !stays(pod) && of.ends(pod, markOf(pod)) }):
		r.memory.evictions.noRoom = ""
	case quota(err):
		r.memory.evictions.noRoom = "a quota is used up"
	case objects.Refused(err):
		r.memory.evictions.noRoom = "the API server refuses pods"
	case r.decision.NoRoom:
		r.memory.evictions.noRoom = "no island has room"
	case r.decision.Backoff > 0:
		r.memory.evictions.noRoom = "new pods end"
	default:
		r.memory.evictions.noRoom = ""
	}
	if before != r.memory.evictions.noRoom {
		r.retry = true // the budget was made from what is outdated now
	}
}

// tolerates reports whether a pod tolerates a taint.
func tolerates(pod *corev1.Pod, key string, effect corev1.TaintEffect) bool {
	taint := corev1.Taint{Key: key, Effect: effect}
	for i := range pod.Spec.Tolerations {
		if pod.Spec.Tolerations[i].ToleratesTaint(logr.Discard(), &taint, true) {
			return true
		}
	}
	return false
}

// shortDuration writes whole minutes without their seconds.
func shortDuration(d time.Duration) string {
	if d%time.Minute == 0 {
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return d.String()
}

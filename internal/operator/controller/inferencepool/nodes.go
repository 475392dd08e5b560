package inferencepool

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
)

// leaving and dying are taints of nodes that will be removed: leaving soon, with a drain that another controller begins;
// dying within minutes, in any case.
var (
	leaving = map[string]bool{
		"node.kubernetes.io/not-ready": true, "node.kubernetes.io/unreachable": true, "node.kubernetes.io/unschedulable": true,
		"ToBeDeletedByClusterAutoscaler": true, "karpenter.sh/disrupted": true, "karpenter.sh/disruption": true,
		"aws-node-termination-handler/scheduled-maintenance":     true,
		"aws-node-termination-handler/asg-lifecycle-termination": true,
		"aws-node-termination-handler/rebalance-recommendation":  true,
	}
	dying = map[string]bool{
		"node.kubernetes.io/out-of-service": true, "aws-node-termination-handler/spot-itn": true,
		"cloud.google.com/impending-node-termination": true,
		"node.cloudprovider.kubernetes.io/shutdown":   true,
	}
)

// nodes is the part that reads the states of nodes.
type nodes struct{ *scope }

// node describes the state of a pod's node. One that cannot be read stays, as that of a pod without a node. One that does not exist any
// more dies: Kubernetes deletes its pods from 40 s later on, and its machine is often off already.
func (r *nodes) node(ctx context.Context, pod *corev1.Pod) (lifecycle.Node, error) {
	name := pod.Spec.NodeName
	if !r.NodeSignals || name == "" {
		return lifecycle.NodeStays, nil
	}
	node, err := r.find(ctx, name)
	switch {
	case err != nil:
		return lifecycle.NodeStays, err
	case node == nil:
		return lifecycle.NodeDies, nil
	}
	state, again := nodeOf(node, pod, engineRuns(pod, r.pool.Spec.Engine.ContainerName), r.nodeRules())
	r.wakeAt(again)
	return state, nil
}

// goneFor is how long a node that the API server did not have is taken to be gone without asking again: it can be registered again, which
// is no change that the controller reconciles for.
const goneFor = 10 * time.Second

// find returns a node; nil for one that does not exist. A pod can be bound to a new node before the cache has that node, so the
// API server has the last word.
func (r *nodes) find(ctx context.Context, name string) (*corev1.Node, error) {
	key, node := types.NamespacedName{Name: name}, &corev1.Node{}
	err := r.Client.Get(ctx, key, node)
	if apierrors.IsNotFound(err) {
		maps.DeleteFunc(r.memory.gone, func(_ string, until time.Time) bool { return !r.now.Before(until) })
		if until, gone := r.memory.gone[name]; gone {
			r.wakeAt(until)
			return nil, nil
		}
		err = r.Direct.Get(ctx, key, node)
	}
	switch {
	case apierrors.IsNotFound(err):
		r.memory.gone[name] = r.now.Add(goneFor)
		r.wakeAt(r.now.Add(goneFor))
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading node %s: %w", name, err)
	}
	return node, nil
}

// notReadyFor is how long a node must have been not ready before its pods are replaced, unless the pool sets another time.
// A kubelet that restarts or a network that fails for a moment is no reason to start engines on other GPUs.
const notReadyFor = time.Minute

// nodeRules are a pool's rules about the states of nodes, at a time.
type nodeRules struct {
	now         time.Time
	notReadyFor time.Duration
	keepCordon  bool // a cordon alone changes nothing
}

func (r *nodes) nodeRules() nodeRules {
	drain := &r.pool.Spec.Drain
	rules := nodeRules{now: r.now, notReadyFor: notReadyFor}
	if drain.NodeNotReadySeconds != nil {
		rules.notReadyFor = time.Duration(*drain.NodeNotReadySeconds) * time.Second
	}
	rules.keepCordon = drain.OnCordon == v1alpha1.CordonKeep || r.pool.Spec.Paused != ""
	return rules
}

// nodeOf returns the effect of a node's state on a pod, and when to check again because of the time; zero for never. A pod
// that tolerates what drives others away might be put there again, so that replacing it would never end: it goes only when
// the node dies, and only when it has run.
func nodeOf(node *corev1.Node, pod *corev1.Pod, runs bool, rules nodeRules) (state lifecycle.Node, again time.Time) {
	state = lifecycle.NodeStays
	for _, taint := range taintsOf(node) {
		tolerated := slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
			return t.ToleratesTaint(logr.Discard(), &taint, true)
		})
		switch {
		case dying[taint.Key] && (runs || !tolerated):
			return lifecycle.NodeDies, time.Time{}
		case !leaving[taint.Key] || tolerated:
		case taint.Key == corev1.TaintNodeUnschedulable && rules.keepCordon && node.DeletionTimestamp.IsZero():
		case taint.Key == corev1.TaintNodeNotReady || taint.Key == corev1.TaintNodeUnreachable:
			if due := notReadySince(node, &taint).Add(rules.notReadyFor); rules.now.Before(due) {
				again = due
				continue
			}
			state = max(state, lifecycle.NodeUnready)
		default:
			state = max(state, lifecycle.NodeLeaves)
		}
	}
	return state, again
}

// notReadySince returns the time of the last change of a node's readiness, or of the taint; zero when neither is known.
func notReadySince(node *corev1.Node, taint *corev1.Taint) time.Time {
	at := time.Time{}
	if taint.TimeAdded != nil {
		at = taint.TimeAdded.Time
	}
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady && c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	return at
}

// taintsOf are a node's taints, with those that a control plane derives from its spec.
func taintsOf(node *corev1.Node) []corev1.Taint {
	taints := slices.Clone(node.Spec.Taints)
	if node.Spec.Unschedulable || !node.DeletionTimestamp.IsZero() {
		taints = append(taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	return taints
}

package inferencepool

import (
	"context"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// SetupWithManager adds the controller to a manager. changed receives pools with a new size, picker state or warm-up.
func (r *Reconciler) SetupWithManager(mgr manager.Manager, changed <-chan event.GenericEvent, workers int) error {
	b := builder.ControllerManagedBy(mgr).
		Named("inferencepool").
		For(&v1alpha1.InferencePool{}, builder.WithPredicates(predicate.Or[client.Object](predicate.GenerationChangedPredicate{},
			predicate.AnnotationChangedPredicate{}))).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.poolsOf)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.behindGateways), builder.WithPredicates(gatewayPods)).
		Watches(&v1alpha1.RoutingPolicy{}, handler.EnqueueRequestsFromMapFunc(r.neighbours),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&appsv1.Deployment{}, handler.EnqueueRequestsFromMapFunc(r.ofFleet)).
		Owns(&appsv1.Deployment{}).
		Owns(&appsv1.ControllerRevision{}).
		Owns(&corev1.Service{}).
		Owns(&corev1.ServiceAccount{}).
		Owns(&corev1.ConfigMap{}).
		Owns(&rbacv1.Role{}).
		Owns(&rbacv1.RoleBinding{}).
		Owns(&policyv1.PodDisruptionBudget{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&networkingv1.NetworkPolicy{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers})
	if !r.WithoutFleets {
		b = b.Watches(&v1alpha1.PickerFleet{}, handler.EnqueueRequestsFromMapFunc(r.ofFleet),
			builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	}
	if r.NodeSignals {
		b = b.Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.poolsOn), builder.WithPredicates(nodeChanges))
	}
	if changed != nil {
		b = b.WatchesRawSource(source.Channel(changed, &handler.EnqueueRequestForObject{}))
	}
	c, err := b.Build(r)
	if err != nil {
		return err
	}
	r.optional = NewOptionalWatches(c, mgr.GetCache())
	return nil
}

// nodeChanges are the changes that concern a node's future.
var nodeChanges = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { n, ok := e.Object.(*corev1.Node); return ok && signals(n) != "" },
	DeleteFunc: func(event.DeleteEvent) bool { return true }, // its pods are lost
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*corev1.Node)
		after, also := e.ObjectNew.(*corev1.Node)
		return ok && also && signals(before) != signals(after)
	},
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// signals are the taints of a node that announce its removal.
func signals(node *corev1.Node) string {
	var keys []string
	for _, t := range taintsOf(node) {
		if leaving[t.Key] || dying[t.Key] {
			keys = append(keys, t.Key)
		}
	}
	return strings.Join(keys, ",")
}

// poolsOf are the pools that a pod concerns, as an engine or as a picker. This runs for every change of every pod, so it lists no
// pools: one that it does not know yet will be reconciled.
func (r *Reconciler) poolsOf(_ context.Context, o client.Object) []reconcile.Request {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []reconcile.Request
	fleet := pod.Labels[resources.LabelFleet]
	for pool, set := range r.selectors {
		if pool.Namespace == pod.Namespace && (config.HasLabels(pod, set) || pickerOf(pod) == pool.Name ||
			fleet != "" && slices.Contains(r.fleetsOf[pool], fleet)) {
			out = append(out, reconcile.Request{NamespacedName: pool})
		}
	}
	return out
}

// neighbours are all pools of an object's namespace.
func (r *Reconciler) neighbours(ctx context.Context, o client.Object) []reconcile.Request {
	return r.requests(ctx, o.GetNamespace(), func(*v1alpha1.InferencePool) bool { return true })
}

func (r *Reconciler) requests(ctx context.Context, namespace string, want func(*v1alpha1.InferencePool) bool) []reconcile.Request {
	var list v1alpha1.InferencePoolList
	// The pools are shared with the cache and only read.
	if err := r.Client.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil // from a cache that has begun: it cannot fail
	}
	var out []reconcile.Request
	for i := range list.Items {
		if want(&list.Items[i]) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return out
}

// poolsOn are the pools with pods on a node. Pods carry their pool's label, or are selected, or their group's leader is.
func (r *Reconciler) poolsOn(ctx context.Context, node client.Object) []reconcile.Request {
	var pods corev1.PodList
	// These are all pods of the cluster, and they are only looked at.
	if err := r.Client.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	seen := map[reconcile.Request]bool{}
	var out []reconcile.Request
	for i := range pods.Items {
		if pods.Items[i].Spec.NodeName != node.GetName() {
			continue
		}
		concerned := []corev1.Pod{pods.Items[i]}
		if config.Worker(&pods.Items[i]) {
			if group, err := r.groupOf(ctx, &pods.Items[i]); err == nil { // from a cache that has begun: it cannot fail
				concerned = group
			}
		}
		for j := range concerned {
			for _, request := range r.poolsOf(ctx, &concerned[j]) {
				if !seen[request] {
					seen[request] = true
					out = append(out, request)
				}
			}
		}
	}
	return out
}

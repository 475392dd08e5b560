// Package routingpolicy writes the status of RoutingPolicies: for each pool that a policy names, whether the policy is
// applied there, whether the objects that it refers to exist, and how many replicas of the pool's picker follow it. Nothing
// depends on it: pickers read policies themselves, and decide by the same rule (PolicyWinners of package config).
package routingpolicy

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// When a policy is looked at again without a change of an object: pickers, Secrets and a gateway's pools are not
// watched. Reading the pickers' state sends no request.
const (
	unsettledAfter = 2 * time.Second  // while not all replicas follow
	secretsAfter   = 10 * time.Second // as often as pickers read them
	settledAfter   = 30 * time.Second
)

// gatewayPool is the kind of a gateway's pool. Its definition might be missing.
var gatewayPool = schema.GroupVersionKind{Group: "inference.networking.k8s.io", Version: "v1", Kind: "InferencePool"}

// Pickers returns which policy the replicas of a pool's picker follow.
type Pickers interface {
	View(pool types.NamespacedName) operatorfeed.View
}

// Others finds pools that another installation of the operator manages: it writes the status of their policies.
type Others interface {
	ManagesPool(ctx context.Context, pool types.NamespacedName) (bool, error)
}

// Reconciler writes the status of policies.
type Reconciler struct {
	// Client reads policies and pools from a cache and patches status.
	Client client.Client
	// Direct asks the API server: the operator is allowed to get a Secret, but not to list or watch any.
	Direct   client.Reader
	Pickers  Pickers
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// Others is nil where there can be no other installation.
	Others Others
}

// SetupWithManager adds the controller to a manager. changed receives pools whose pickers have news; nil for
// none.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, changed <-chan event.GenericEvent) error {
	b := ctrl.NewControllerManagedBy(mgr).
		Named("routingpolicy").
		// A policy that is created, changed or deleted can make any other of its namespace win or lose.
		Watches(&v1alpha1.RoutingPolicy{}, handler.EnqueueRequestsFromMapFunc(r.neighbours),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.InferencePool{}, handler.EnqueueRequestsFromMapFunc(r.targeting),
			builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	if changed != nil {
		b = b.WatchesRawSource(source.Channel(changed, handler.EnqueueRequestsFromMapFunc(r.targeting)))
	}
	return b.Complete(r)
}

// neighbours are all policies of an object's namespace.
func (r *Reconciler) neighbours(ctx context.Context, o client.Object) []reconcile.Request {
	return r.requests(ctx, o.GetNamespace(), func(*v1alpha1.RoutingPolicy) bool { return true })
}

// targeting are the policies that name a pool.
func (r *Reconciler) targeting(ctx context.Context, pool client.Object) []reconcile.Request {
	return r.requests(ctx, pool.GetNamespace(), func(p *v1alpha1.RoutingPolicy) bool {
		for _, target := range config.PolicyTargets(p) {
			if target.Name == pool.GetName() {
				return true
			}
		}
		return false
	})
}

func (r *Reconciler) requests(ctx context.Context, namespace string, want func(*v1alpha1.RoutingPolicy) bool) []reconcile.Request {
	policies, err := r.policies(ctx, namespace)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Reading policies from the cache failed")
		return nil
	}
	var all []reconcile.Request
	for _, p := range policies {
		if want(p) {
			all = append(all, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(p)})
		}
	}
	return all
}

func (r *Reconciler) policies(ctx context.Context, namespace string) ([]*v1alpha1.RoutingPolicy, error) {
	var list v1alpha1.RoutingPolicyList
	if err := r.Client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("listing policies of %s: %w", namespace, err)
	}
	all := make([]*v1alpha1.RoutingPolicy, len(list.Items))
	for i := range list.Items {
		all[i] = &list.Items[i]
	}
	return all, nil
}

// Reconcile brings the status of one policy up to date.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	p := &v1alpha1.RoutingPolicy{}
	if err := r.Client.Get(ctx, request.NamespacedName, p); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if yields, err := r.yields(ctx, p); yields || err != nil {
		return reconcile.Result{RequeueAfter: settledAfter}, err
	}
	f, again, err := r.gather(ctx, p)
	if err != nil {
		return reconcile.Result{}, err
	}
	next := p.DeepCopy()
	next.Status = policyStatus(p, f, metav1.NewTime(r.Clock.Now()))
	if !equality.Semantic.DeepEqual(p.Status, next.Status) {
		patch := client.MergeFromWithOptions(p, client.MergeFromWithOptimisticLock{})
		if err := r.Client.Status().Patch(ctx, next, patch); err != nil {
			return reconcile.Result{}, fmt.Errorf("writing the status of policy %s: %w", request.NamespacedName, err)
		}
		r.recordEvents(ctx, p, next)
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// yields reports whether another installation of the operator manages a pool of the policy.
func (r *Reconciler) yields(ctx context.Context, p *v1alpha1.RoutingPolicy) (bool, error) {
	if r.Others == nil {
		return false, nil
	}
	for _, pool := range config.PolicyTargets(p) {
		if yes, err := r.Others.ManagesPool(ctx, pool); yes || err != nil {
			return yes, err
		}
	}
	return false, nil
}

// gather collects the inputs of a policy's status, and returns after how long to check again.
func (r *Reconciler) gather(ctx context.Context, p *v1alpha1.RoutingPolicy) (f facts, again time.Duration, err error) {
	again = settledAfter
	if _, errs := config.Policy(p); len(errs) > 0 {
		f.invalid = errs.ToAggregate().Error()
	}
	if p.Spec.ResponseCache.Type != "" {
		f.note = "requests through gateways are not answered from the response cache"
	}
	if len(p.Spec.SecretNames()) > 0 {
		again = secretsAfter
		if err := r.secrets(ctx, p, &f); err != nil {
			return f, 0, err
		}
	}
	policies, err := r.policies(ctx, p.Namespace)
	if err != nil {
		return f, 0, err
	}
	winners := config.PolicyWinners(policies, nil)
	for i, pool := range config.PolicyTargets(p) {
		t := target{}
		if t.found, err = r.exists(ctx, pool, &p.Spec.TargetRefs[i]); err != nil {
			return f, 0, err
		}
		if t.found && p.Spec.Admission.Tenants.Identification == v1alpha1.IdentifyByCertificate {
			if t.note, err = r.certificates(ctx, pool); err != nil {
				return f, 0, err
			}
		}
		if winner := winners[pool]; winner != nil && winner.Name != p.Name {
			t.winner = winner.Name
		}
		view := r.Pickers.View(pool)
		t.programmed, t.replicas = view.Programmed(p.Name, p.Generation)
		if t.found && t.winner == "" && t.programmed < t.replicas {
			again = unsettledAfter
		}
		f.targets = append(f.targets, t)
	}
	return f, again, nil
}

// secrets looks at the Secrets that a policy names.
func (r *Reconciler) secrets(ctx context.Context, p *v1alpha1.RoutingPolicy, f *facts) error {
	found := map[string]*corev1.Secret{}
	for _, name := range p.Spec.SecretNames() {
		s := &corev1.Secret{}
		err := r.Direct.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: name}, s)
		switch {
		case err == nil:
			found[name] = s
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("reading the Secrets of policy %s: %w", p.Name, err)
		}
	}
	missing, invalid := config.PolicySecrets(p, func(name string) *corev1.Secret { return found[name] })
	f.missing = missing
	for _, err := range invalid {
		f.malformed = append(f.malformed, err.BadValue.(string)+": "+err.Detail)
	}
	return nil
}

// certificates says why the clients of a pool cannot show a certificate; empty where they can, or where the operator does not know.
func (r *Reconciler) certificates(ctx context.Context, key types.NamespacedName) (string, error) {
	pool := &v1alpha1.InferencePool{}
	if err := r.Client.Get(ctx, key, pool); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	settings, of := &pool.Spec.Picker.PickerSettings, "the pool"
	if pool.Spec.Picker.Mode == v1alpha1.PickerExternal {
		return "", nil
	}
	if name := pool.Spec.Picker.FleetName(); name != "" {
		fleet := &v1alpha1.PickerFleet{}
		if err := r.Client.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: name}, fleet); err != nil {
			return "", client.IgnoreNotFound(err)
		}
		settings, of = &fleet.Spec.PickerSettings, "PickerFleet "+name
	}
	if settings.ProxyTLS.ClientCASecretRef.Name != "" {
		return "", nil
	}
	return "the pickers ask clients for no certificate, so all requests are of no known tenant: set proxyTLS.clientCASecretRef of " + of, nil
}

// exists reports whether there is such a Kvasir pool, or, for a target that names one, a gateway's.
func (r *Reconciler) exists(ctx context.Context, pool types.NamespacedName, ref *v1alpha1.PolicyTarget) (bool, error) {
	err := r.Client.Get(ctx, pool, &v1alpha1.InferencePool{})
	if err == nil {
		return true, nil
	}
	if !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("reading pool %s: %w", pool, err)
	}
	if ref.Group == nil || *ref.Group != gatewayPool.Group {
		return false, nil
	}
	bare := &metav1.PartialObjectMetadata{}
	bare.SetGroupVersionKind(gatewayPool)
	err = r.Direct.Get(ctx, pool, bare)
	switch {
	case err == nil:
		return true, nil
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return false, nil
	}
	return false, fmt.Errorf("reading the gateway's pool %s: %w", pool, err)
}

// recordEvents writes the events of what has changed, at the pools.
func (r *Reconciler) recordEvents(ctx context.Context, before, now *v1alpha1.RoutingPolicy) {
	for i := range now.Spec.TargetRefs {
		ref := ancestorRef(&now.Spec.TargetRefs[i])
		old, conditions := conditionsOf(before.Status, ref), conditionsOf(now.Status, ref)
		conflicted := changed(old, conditions, v1alpha1.ConditionAccepted, status.ReasonConflicted)
		applied := changed(old, conditions, v1alpha1.ConditionProgrammed, status.ReasonProgrammed)
		if conflicted == nil && applied == nil {
			continue
		}
		pool := &v1alpha1.InferencePool{}
		if err := r.Client.Get(ctx, types.NamespacedName{Namespace: now.Namespace, Name: string(ref.Name)}, pool); err != nil {
			continue // there is no such pool to attach the event to
		}
		if conflicted != nil {
			r.Recorder.Eventf(pool, now, corev1.EventTypeWarning, "PolicyConflicted", "Resolve", "RoutingPolicy %s is not in force: %s", now.Name,
				conflicted.Message)
		}
		if applied != nil {
			r.Recorder.Eventf(pool, now, corev1.EventTypeNormal, "PolicyApplied", "Apply", "RoutingPolicy %s of generation %d is followed by %s",
				now.Name, now.Generation, applied.Message)
		}
	}
}

// changed returns a condition that has a reason, if it has not had it before for this generation.
func changed(before, now []metav1.Condition, typ, reason string) *metav1.Condition {
	c, old := meta.FindStatusCondition(now, typ), meta.FindStatusCondition(before, typ)
	if c == nil || c.Reason != reason || old != nil && old.Reason == reason && old.ObservedGeneration == c.ObservedGeneration {
		return nil
	}
	return c
}

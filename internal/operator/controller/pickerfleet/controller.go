// Package pickerfleet keeps the pickers of PickerFleets: their Deployment, with the objects that it needs, and the status of the fleet.
// Which pools a fleet serves follows from the pools: from their specs, and, while a pool moves, from their status, which the controller of
// pools writes.
//
// The objects of a fleet belong to the fleet and to its pools. If the fleet is deleted while it has pools, its pickers stay and serve
// them, as they are, until the last of them has left or is deleted.
package pickerfleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/inferencepool"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/objects"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// Pauses until a fleet is looked at again though no object has changed.
const (
	// gathered is how long changes of pools are gathered: a hundred pools that come at once change the role of the pickers a few times.
	gathered = 200 * time.Millisecond
	// Secrets are read again after secretsEvery, because the operator is not allowed to watch them, and after missingEvery while pickers
	// that are not ready might wait for one.
	secretsEvery = 10 * time.Minute
	missingEvery = 10 * time.Second
	// refusedEvery is how often what the API server refuses is tried again.
	refusedEvery = 10 * time.Second
	// othersEvery is how often a fleet of another operator is looked at.
	othersEvery = 30 * time.Second
)

// Pickers returns what the replicas of a pool's pickers have reported.
type Pickers interface {
	Known(pool types.NamespacedName) operatorfeed.View
}

// Reconciler reconciles PickerFleets.
type Reconciler struct {
	// Client reads from a cache and writes.
	Client client.Client
	// Direct asks the API server: the operator is allowed to get a Secret, but not to list or watch any.
	Direct   client.Reader
	Pickers  Pickers
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// Config returns the configuration of pickers. Optional APIs can be installed later.
	Config func() resources.Config
	// Others finds the fleets of other installations; nil for none.
	Others *inferencepool.Others

	optional *inferencepool.OptionalWatches // nil without a manager

	mu     sync.Mutex // guards fleets; what a fleet points to belongs to its one reconciliation
	fleets map[types.NamespacedName]*memory
}

// memory of one fleet, lost with the process.
type memory struct {
	applied map[objectKey]applied
	swept   sweep
	trusted []byte
	// certsAt is when to renew a certificate, certsSeen when the Secrets were read, and account the ServiceAccount that owned them.
	certsAt, certsSeen time.Time
	account            types.UID
	brought            brought
}

// brought is what the last look for the Secrets that the user brings has found.
type brought struct {
	uid        types.UID // of the fleet
	generation int64
	at         time.Time
	missing    string // the first that is not there, or lacks an entry; empty for none
}

// due is when they are looked for again.
func (b *brought) due() time.Time {
	if b.missing != "" {
		return b.at.Add(missingEvery)
	}
	return b.at.Add(secretsEvery)
}

// objectKey names an object of one kind in a fleet's namespace.
type objectKey struct{ kind, name string }

// applied is what this process has applied last, and the resulting version.
type applied struct{ hash, version string }

// sweep is what the last look for unwanted objects went by.
type sweep struct {
	config     resources.Config
	generation int64
	uid        types.UID
	rule       bool
}

// scope is the state of one reconciliation.
type scope struct {
	*Reconciler
	key    types.NamespacedName
	fleet  resources.Fleet // its objects are shared with the cache and must not be changed
	config resources.Config
	memory *memory
	now    time.Time
	wake   time.Time

	pickers *appsv1.Deployment // nil when there is none yet
	stuck   string             // the first pod of the pickers that does not start, and trouble why
	trouble lifecycle.Trouble
	after   string // whose pickers get the operator's image first
	// taken are names that objects of other owners have, refused what the API server refuses, and missing a Secret that is not there.
	taken, refused []string
	missing        string
	// door are the problems of what gateways see, and neighbours all pools of the namespace.
	door         inferencepool.GatewayProblems
	neighbours   []*v1alpha1.InferencePool
	certificates error // why the certificates cannot be made from those in the Secrets
}

// Reconcile brings one fleet nearer to its spec.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	fleet := &v1alpha1.PickerFleet{}
	err := r.Client.Get(ctx, request.NamespacedName, fleet)
	switch {
	case apierrors.IsNotFound(err):
		r.forget(request.NamespacedName)
		return reconcile.Result{}, r.leave(ctx, request.NamespacedName)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("reading fleet %s: %w", request, err)
	case !fleet.DeletionTimestamp.IsZero():
		return reconcile.Result{}, nil // what it leaves is looked at when it is gone
	}
	s := &scope{Reconciler: r, key: request.NamespacedName, config: r.Config(), memory: r.memory(request.NamespacedName), now: r.Clock.Now()}
	if s.neighbours, err = r.allPools(ctx, fleet.Namespace); err != nil {
		return reconcile.Result{}, err
	}
	if s.fleet, err = r.gather(ctx, fleet, s.neighbours); err != nil {
		return reconcile.Result{}, err
	}
	return s.run(ctx)
}

func (r *Reconciler) memory(key types.NamespacedName) *memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.fleets[key]
	if m == nil {
		m = &memory{applied: map[objectKey]applied{}}
		if r.fleets == nil {
			r.fleets = map[types.NamespacedName]*memory{}
		}
		r.fleets[key] = m
	}
	return m
}

func (r *Reconciler) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.fleets, key)
}

// serves reports whether the pickers of a fleet serve a pool, or are to.
func serves(fleet string, pool *v1alpha1.InferencePool) bool {
	return pool.Spec.Picker.FleetName() == fleet || pool.Status.Picker.FleetName == fleet
}

// gather finds the pools of a fleet, and the Secrets of their policies.
func (r *Reconciler) gather(ctx context.Context, fleet *v1alpha1.PickerFleet,
	neighbours []*v1alpha1.InferencePool) (resources.Fleet, error) {
	f := resources.Fleet{PickerFleet: fleet, Pools: poolsOf(fleet.Name, neighbours)}
	if len(f.Pools) == 0 {
		return f, nil
	}
	var list v1alpha1.RoutingPolicyList
	if err := r.Client.List(ctx, &list, client.InNamespace(fleet.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return f, fmt.Errorf("listing policies of %s: %w", fleet.Namespace, err)
	}
	policies := make([]*v1alpha1.RoutingPolicy, len(list.Items))
	for i := range list.Items {
		policies[i] = &list.Items[i]
	}
	winners := config.PolicyWinners(policies, nil)
	for _, pool := range f.Pools {
		if policy := winners[client.ObjectKeyFromObject(pool)]; policy != nil {
			f.PolicySecrets = append(f.PolicySecrets, policy.Spec.SecretNames()...)
		}
	}
	return f, nil
}

// poolsOf are those that the pickers of a fleet serve, or are to, sorted by name.
func poolsOf(fleet string, all []*v1alpha1.InferencePool) []*v1alpha1.InferencePool {
	var pools []*v1alpha1.InferencePool
	for _, pool := range all {
		if pool.DeletionTimestamp.IsZero() && serves(fleet, pool) {
			pools = append(pools, pool)
		}
	}
	slices.SortFunc(pools, func(a, b *v1alpha1.InferencePool) int { return cmp.Compare(a.Name, b.Name) })
	return pools
}

// allPools are the pools of a namespace. They are shared with the cache and must not be changed.
func (r *Reconciler) allPools(ctx context.Context, namespace string) ([]*v1alpha1.InferencePool, error) {
	var list v1alpha1.InferencePoolList
	if err := r.Client.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing pools of %s: %w", namespace, err)
	}
	pools := make([]*v1alpha1.InferencePool, len(list.Items))
	for i := range list.Items {
		pools[i] = &list.Items[i]
	}
	return pools, nil
}

// run keeps the objects of the fleet, and writes the status.
func (r *scope) run(ctx context.Context) (reconcile.Result, error) {
	if err := r.readPickers(ctx); err != nil {
		return reconcile.Result{}, err
	}
	if yields, err := r.yields(ctx); yields || err != nil {
		return reconcile.Result{RequeueAfter: othersEvery}, err
	}
	keepErr := r.keep(ctx)
	if err := r.writeStatus(ctx); err != nil {
		return reconcile.Result{}, err
	}
	if keepErr != nil {
		return reconcile.Result{}, keepErr
	}
	if r.wake.IsZero() {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: max(r.wake.Sub(r.now), time.Millisecond)}, nil
}

// wakeAt asks to be called again at t.
func (r *scope) wakeAt(t time.Time) {
	if !t.IsZero() && (r.wake.IsZero() || t.Before(r.wake)) {
		r.wake = t
	}
}

// readPickers reads the Deployment, and what keeps it from getting its pods.
func (r *scope) readPickers(ctx context.Context) error {
	pickers := &appsv1.Deployment{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: r.key.Namespace, Name: resources.NamesOfFleet(r.key.Name).Pickers}, pickers)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading the pickers of fleet %s: %w", r.key, err)
	}
	if err == nil && r.owns(pickers) {
		r.pickers = pickers
	}
	r.stuck, r.trouble, err = inferencepool.StuckPicker(ctx, r.Client, r.pickers)
	return err
}

// yields reports whether the fleet is another operator's, and says so.
func (r *scope) yields(ctx context.Context) (bool, error) {
	other, yes, err := r.Others.Manages(ctx, r.fleet.PickerFleet, r.pickers)
	if !yes || err != nil {
		return false, err
	}
	if r.Recorder != nil {
		r.Recorder.Eventf(r.fleet.PickerFleet, nil, corev1.EventTypeWarning, "OtherOperator", "OtherOperator",
			"the operator %s manages this fleet, and this one (%s) leaves it alone. To have this one manage it: kubectl annotate kvfleet -n %s %s %s=%s --overwrite",
			cmp.Or(other.Named, other.Account.String()), r.Others.Own, r.key.Namespace, r.key.Name, v1alpha1.AnnotationOperator,
			r.Others.Own.Namespace)
	}
	return true, nil
}

// keep applies the objects of the fleet. What the API server refuses does not hold up the rest.
func (r *scope) keep(ctx context.Context) error {
	if err := r.keepCertificates(ctx); err != nil {
		return err
	}
	r.fleet.Trusted = r.memory.trusted
	if err := r.optional.Keep(r.optionalKinds(r.config)); err != nil {
		return err
	}
	if err := r.passDoor(r.labelEngines(ctx)); err != nil {
		return err
	}
	all, err := resources.FleetObjects(r.config, r.fleet)
	if err != nil {
		return fmt.Errorf("objects of fleet %s: %w", r.key, err)
	}
	if r.pickers != nil && r.fleet.Generation == r.observed() {
		turns := inferencepool.Turns{Client: r.Client, Others: r.Others}
		if r.after, err = turns.Ahead(ctx, &r.config, r.pickers, r.now); err != nil {
			return err
		}
		if r.after != "" {
			r.wakeAt(r.now.Add(inferencepool.TurnEvery))
		}
	}
	wanted, rule := map[objectKey]bool{}, false
	for _, o := range all {
		wanted[objectKey{o.GetKind(), o.GetName()}] = true
		rule = rule || o.GroupVersionKind() == resources.DestinationRuleKind
	}
	for _, o := range all {
		if o.GetKind() == "ConfigMap" && r.memory.trusted == nil {
			continue // its certificates are not known, and those that are there stay
		}
		if o.GetKind() == "Deployment" && r.after != "" {
			continue // it stays as it is until it is its turn
		}
		pass := r.pass
		if isDoor(o.GroupVersionKind()) || resources.IsTraffic(o.GroupVersionKind()) {
			pass = r.passDoor
		}
		if err := pass(r.apply(ctx, o)); err != nil {
			return err
		}
	}
	if err := r.findSecrets(ctx); err != nil {
		return err
	}
	swept := sweep{r.config, r.fleet.Generation, r.fleet.UID, rule}
	if r.memory.swept == swept {
		return nil
	}
	err = r.deleteObjects(ctx, r.key, r.config, func(o client.Object, kind string) bool {
		return r.owns(o) && !wanted[objectKey{kind, o.GetName()}]
	})
	if err := r.pass(err); err != nil {
		return err
	}
	r.memory.swept = swept
	return nil
}

// observed is the generation that the status is about.
func (r *scope) observed() int64 {
	if g := r.fleet.Status.ObservedGeneration; g != nil {
		return *g
	}
	return 0
}

// pass keeps an error with which the API server refuses an object for a condition, and returns any other.
func (r *scope) pass(err error) error {
	if !objects.Refused(err) {
		return err
	}
	r.refused = append(r.refused, err.Error())
	r.wakeAt(r.now.Add(refusedEvery))
	return nil
}

// findSecrets looks for the Secrets that the user brings: of the pickers' certificate, without which none of them starts, and of the
// proxy's, without which they serve no clients. It does so for each generation of the fleet, and again from time to time.
func (r *scope) findSecrets(ctx context.Context) error {
	known, spec := &r.memory.brought, &r.fleet.Spec
	proxy := &spec.ProxyTLS
	wanted := []secretRef{
		{"tls.secretRef", spec.TLS.SecretRef.Name, nil},
		{"proxyTLS.secretRef", proxy.SecretRef.Name, []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey}},
		{"proxyTLS.clientCASecretRef", proxy.ClientCASecretRef.Name, []string{proxy.ClientCASecretRef.Key}},
	}
	wanted = slices.DeleteFunc(wanted, func(s secretRef) bool { return s.name == "" })
	if known.uid != r.fleet.UID || known.generation != r.fleet.Generation || !r.now.Before(known.due()) {
		missing, err := r.firstMissing(ctx, wanted)
		if err != nil {
			return err
		}
		*known = brought{r.fleet.UID, r.fleet.Generation, r.now, missing}
	}
	if r.missing = known.missing; len(wanted) > 0 {
		r.wakeAt(known.due())
	}
	return nil
}

// secretRef is a Secret that a field of the fleet names, with the entries that it must have.
type secretRef struct {
	field, name string
	entries     []string
}

// firstMissing says which of some Secrets is not there, or lacks an entry; empty if none is missing.
func (r *scope) firstMissing(ctx context.Context, all []secretRef) (string, error) {
	for _, s := range all {
		secret := &corev1.Secret{}
		err := r.Direct.Get(ctx, types.NamespacedName{Namespace: r.key.Namespace, Name: s.name}, secret)
		if apierrors.IsNotFound(err) {
			return "Secret " + s.name + " of " + s.field + " is not there", nil
		}
		if err != nil {
			return "", fmt.Errorf("reading Secret %s of fleet %s: %w", s.name, r.key, err)
		}
		for _, entry := range s.entries {
			if len(secret.Data[entry]) == 0 {
				return "Secret " + s.name + " of " + s.field + " has no entry " + entry, nil
			}
		}
	}
	return "", nil
}

// deleteObjects deletes the objects of a fleet of the operator's making that are not wanted.
func (r *Reconciler) deleteObjects(ctx context.Context, key types.NamespacedName, c resources.Config,
	unwanted func(o client.Object, kind string) bool) error {
	for _, gvk := range resources.FleetKinds(c) {
		found, err := r.made(ctx, key, gvk)
		if err != nil {
			return err
		}
		for i := range found {
			o := &found[i]
			if !unwanted(o, gvk.Kind) {
				continue
			}
			o.SetGroupVersionKind(gvk)
			uid := o.GetUID()
			err := r.Client.Delete(ctx, o, client.Preconditions{UID: &uid})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return fmt.Errorf("deleting %s %s: %w", gvk.Kind, o.GetName(), err)
			}
		}
	}
	return nil
}

// leave deletes what is left of a fleet that does not exist, unless pools are served by it.
func (r *Reconciler) leave(ctx context.Context, key types.NamespacedName) error {
	all, err := r.allPools(ctx, key.Namespace)
	if err != nil || len(poolsOf(key.Name, all)) > 0 {
		return err
	}
	err = r.label(ctx, key, func(*corev1.Pod) bool { return false }, true)
	if err != nil && !objects.Refused(err) {
		return err
	}
	return r.deleteObjects(ctx, key, r.Config(), func(client.Object, string) bool { return true })
}

// problems are those that keep the fleet from having all of its objects.
func (r *scope) problems() (reason, message string) {
	switch {
	case r.certificates != nil:
		return status.ReasonCertificateInvalid, "certificates of the fleet: " + r.certificates.Error()
	case len(r.taken) > 0:
		return "NameTaken", "objects of another owner have names that the fleet needs: " + strings.Join(slices.Sorted(slices.Values(r.taken)), ", ")
	case len(r.refused) > 0:
		return "ObjectRefused", strings.Join(r.refused, "; ")
	case r.missing != "":
		return "ReferenceNotFound", r.missing
	}
	return "", ""
}

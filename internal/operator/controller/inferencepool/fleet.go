package inferencepool

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// A pool moves between pickers of its own and those of a fleet, or between two fleets, without a gap:
//
//	reporters   clients   what is waited for
//	before      before    each ready picker of the target serves the pool
//	target      before    these pickers know the caches of all engines and the keys of all tenants, for movesWithin at most
//	target      target    the pickers before are given up
//
// How far a pool is stands in the selectors of its two Services, so another replica of the operator continues, and a pool whose spec
// changes on the way turns round. The Services keep their names: engines are not restarted, and clients need no other address.
const (
	// movesWithin is how long clients stay with the pickers before though those of the target serve, because they do not know all caches and
	// tenants yet.
	movesWithin = 2 * time.Minute
	// lingers is how long the pickers of a fleet serve a pool that has left: connections of clients, and gateways, find the others meanwhile.
	lingers = time.Minute
)

// fleets is what is known of the fleets of a pool.
type fleets struct {
	// target is the fleet that the spec names; empty for pickers of the pool's own.
	target string
	// object is the target, pickers its Deployment; nil where there is none.
	object  *v1alpha1.PickerFleet
	pickers *appsv1.Deployment
	// ready are the pickers of all fleets of the pool that are ready.
	ready int32
	// clients is the fleet to which clients are sent as this reconciliation began.
	clients string
}

// moveMemory is what this process knows of a move. A replica of the operator that takes over waits as long again.
type moveMemory struct {
	// reporters is since when reporters are sent to the target and clients are not; zero for not so.
	reporters time.Time
	// clients is since when clients are sent to the target and the fleet before still serves the pool; zero for not so.
	clients time.Time
}

// fleetCA are the certificates of a fleet's CA, and when they were read.
type fleetCA struct {
	pem []byte
	at  time.Time
}

// findFleets finds out which pickers serve the pool now, and which do from this reconciliation on.
func (r *cluster) findFleets(ctx context.Context) error {
	f, move := &r.fleets, &r.move
	if r.pool.Spec.Picker.Mode == v1alpha1.PickerExternal {
		r.recordFleets(r.key, nil)
		return nil
	}
	f.target = r.pool.Spec.Picker.FleetName()
	var err error
	if move.Clients, err = r.leadsTo(ctx, resources.PickerName(r.key.Name)); err != nil {
		return err
	}
	if move.Reporters, err = r.leadsTo(ctx, resources.PeersName(r.key.Name)); err != nil {
		return err
	}
	f.clients = move.Clients
	for _, fleet := range []string{f.target, move.Clients, move.Reporters, r.pool.Status.Picker.FleetName} {
		if fleet != "" && !slices.Contains(move.Fleets, fleet) {
			move.Fleets = append(move.Fleets, fleet)
		}
	}
	slices.Sort(move.Fleets)
	r.recordFleets(r.key, move.Fleets)
	if len(move.Fleets) == 0 {
		return nil
	}
	ready := map[string]int32{}
	for _, fleet := range move.Fleets {
		pickers := &appsv1.Deployment{}
		err := r.Client.Get(ctx, types.NamespacedName{Namespace: r.key.Namespace, Name: resources.NamesOfFleet(fleet).Pickers}, pickers)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading the pickers of fleet %s: %w", fleet, err)
		}
		if err != nil || pickers.Labels[resources.LabelFleet] != fleet {
			continue
		}
		f.ready += pickers.Status.ReadyReplicas
		ready[fleet] = pickers.Status.ReadyReplicas
		if fleet == f.target {
			f.pickers = pickers
		}
	}
	if f.target != "" {
		object := &v1alpha1.PickerFleet{}
		err := r.Client.Get(ctx, types.NamespacedName{Namespace: r.key.Namespace, Name: f.target}, object)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading fleet %s: %w", f.target, err)
		}
		if err == nil {
			f.object = object
		}
	}
	return r.stepOn(ctx, ready)
}

// leadsTo returns the fleet that one of the pool's Services selects, empty for pickers of the pool's own. A Service that is not there yet
// leads to the target.
func (r *cluster) leadsTo(ctx context.Context, name string) (string, error) {
	service := &corev1.Service{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: r.key.Namespace, Name: name}, service)
	switch {
	case apierrors.IsNotFound(err):
		return r.fleets.target, nil
	case err != nil:
		return "", fmt.Errorf("reading the Service %s: %w", name, err)
	case !metav1.IsControlledBy(service, r.pool):
		return r.fleets.target, nil
	}
	return service.Spec.Selector[resources.LabelFleet], nil
}

// standing is where a move stands: fleets, or empty for the pool's own pickers.
type standing struct {
	target, reporters, clients string
	// gone: there is no Deployment of the pickers to which clients are sent, and down: none of its pods is ready, which can pass. fit: the
	// target can serve the pool, and serves: it does.
	gone, down, fit, serves bool
	// known: the target knows all caches and tenants, or has had the time to.
	known bool
}

// next returns where reporters and clients are sent from now on.
func (s standing) next() (reporters, clients string) {
	switch {
	case s.fit && (s.gone || s.down && s.serves): // there is nothing to lose
		return s.target, s.target
	case !s.serves:
		return s.reporters, s.clients
	case s.reporters != s.target:
		return s.target, s.clients
	case s.known:
		return s.reporters, s.target
	}
	return s.reporters, s.clients
}

// stepOn takes the next step of a move, if its time has come. ready are the ready pickers of each fleet that has a Deployment.
func (r *cluster) stepOn(ctx context.Context, ready map[string]int32) error {
	f, move, memory := &r.fleets, &r.move, &r.memory.move
	states, serves, err := r.serving(ctx, f.target)
	if err != nil {
		return err
	}
	there, up := r.picker != nil, r.picker != nil && r.picker.Status.ReadyReplicas > 0
	if move.Clients != "" {
		_, there = ready[move.Clients]
		up = ready[move.Clients] > 0
	}
	if move.Reporters != f.target || move.Clients == f.target {
		memory.reporters = time.Time{}
	} else if memory.reporters.IsZero() {
		memory.reporters = r.now
	}
	late := memory.reporters.Add(movesWithin)
	at := standing{
		target: f.target, reporters: move.Reporters, clients: move.Clients, gone: !there, down: !up,
		fit: f.target == "" || resources.Unfit(r.pool) == "", serves: serves, known: r.knownBy(states) || !r.now.Before(late),
	}
	if move.Reporters, move.Clients = at.next(); !memory.reporters.IsZero() && move.Clients != f.target {
		r.wakeAt(late)
	}
	move.KeepsOwn = f.target != "" && r.picker != nil && f.clients == ""
	if move.Clients != f.clients {
		r.wakeAt(r.now.Add(cacheBehind)) // then the Service shows it, and what was before is given up
	}
	return nil
}

// serving returns the states of the pickers of a fleet, or of the pool's own, and whether they can take the pool over: each of them that is
// ready reports that it serves the pool, and there is one.
func (r *cluster) serving(ctx context.Context, fleet string) (states []*operatorfeed.State, serves bool, err error) {
	selector := r.ownPickers()
	if fleet != "" {
		selector = resources.FleetPods(fleet)
	} else if r.picker == nil || !pickersServe(r.picker) {
		return nil, false, nil
	}
	var pods corev1.PodList
	// The listed pods are shared with the cache and must not be changed.
	if err := r.Client.List(ctx, &pods, client.InNamespace(r.key.Namespace), client.MatchingLabels(selector),
		client.UnsafeDisableDeepCopy); err != nil {
		return nil, false, fmt.Errorf("listing the pickers of pool %s: %w", r.key, err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !config.PodReady(pod) || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		at := slices.IndexFunc(r.view.Replicas, func(s operatorfeed.State) bool { return s.Picker == pod.Name })
		if at < 0 {
			return nil, false, nil
		}
		states = append(states, &r.view.Replicas[at])
	}
	return states, len(states) > 0, nil
}

// ownPickers are the labels of the pods of the pool's own pickers.
func (r *scope) ownPickers() map[string]string {
	return map[string]string{
		"app.kubernetes.io/name": "kvasir", resources.LabelComponent: resources.ComponentPicker, resources.LabelInstance: r.key.Name,
	}
}

// knownBy reports whether pickers have read all Secrets of the policy, and know the cache of each engine that serves, or it is known that
// they cannot. Without the Secrets, they would refuse tenants that the pickers before know: the right to read them comes with the pool.
func (r *cluster) knownBy(states []*operatorfeed.State) bool {
	if slices.ContainsFunc(states, func(s *operatorfeed.State) bool { return !s.Resolved }) {
		return false
	}
	for _, pod := range r.pods {
		if !config.PodServes(pod) || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		for _, s := range states {
			if known := s.Pods[string(pod.UID)]; !known.Synced && !known.Degraded {
				return false
			}
		}
	}
	return true
}

// servingFleet returns the fleet whose pickers serve the pool, for the status. Pickers of a fleet follow it: they serve a pool that has
// left until it is another.
func (r *cluster) servingFleet() string {
	before, now, memory := r.pool.Status.Picker.FleetName, r.move.Clients, &r.memory.move
	if before == "" || before == now || now != r.fleets.target {
		memory.clients = time.Time{}
		return now
	}
	if memory.clients.IsZero() {
		memory.clients = r.now
	}
	if over := memory.clients.Add(lingers); r.now.Before(over) {
		r.wakeAt(over)
		return before
	}
	memory.clients = time.Time{}
	return now
}

// trustedBy returns what the pool's reporters and pickers trust: the pool's own CA, and those of its fleets.
func (r *children) trustedBy(ctx context.Context) []byte {
	var all bytes.Buffer
	all.Write(r.memory.trusted)
	for _, fleet := range r.move.Fleets {
		all.Write(r.caOf(ctx, fleet))
	}
	return all.Bytes()
}

// caOf returns the certificates of a fleet's CA. A CA is in them long before it signs, so they are read seldom; what cannot be read stays.
func (r *children) caOf(ctx context.Context, fleet string) []byte {
	known, every := r.memory.fleetCAs[fleet], foundEvery
	if len(known.pem) == 0 {
		every = missingEvery
	}
	if r.now.Before(known.at.Add(every)) {
		r.wakeAt(known.at.Add(every))
		return known.pem
	}
	known.at = r.now
	trusted := &corev1.ConfigMap{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: r.key.Namespace, Name: resources.NamesOfFleet(fleet).CA}, trusted)
	if err == nil && trusted.Labels[resources.LabelFleet] == fleet {
		known.pem = []byte(trusted.Data[resources.CAEntry])
	} else if apierrors.IsNotFound(err) {
		known.pem = nil
	}
	if len(known.pem) == 0 {
		every = missingEvery
	}
	r.wakeAt(known.at.Add(every))
	r.memory.fleetCAs[fleet] = known
	return known.pem
}

// recordFleets records the fleets of a pool, for poolsOf and ofFleet.
func (r *Reconciler) recordFleets(key types.NamespacedName, fleets []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(fleets) == 0 {
		delete(r.fleetsOf, key)
		return
	}
	if r.fleetsOf == nil {
		r.fleetsOf = map[types.NamespacedName][]string{}
	}
	r.fleetsOf[key] = fleets
}

// ofFleet are the pools of a fleet, or of the fleet whose object it is. One that it does not know yet will be reconciled.
func (r *Reconciler) ofFleet(_ context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[resources.LabelFleet]
	if _, ok := o.(*v1alpha1.PickerFleet); ok {
		name = o.GetName()
	}
	if name == "" {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []reconcile.Request
	for pool, fleets := range r.fleetsOf {
		if pool.Namespace == o.GetNamespace() && slices.Contains(fleets, name) {
			out = append(out, reconcile.Request{NamespacedName: pool})
		}
	}
	return out
}

// fleetAvailable judges the pickers of a pool that is in a fleet, or on the way into one or out of it.
func (r *verdict) fleetAvailable() metav1.Condition {
	f := &r.fleets
	ready, want := int32(0), v1alpha1.DefaultPickerReplicas
	if f.pickers != nil {
		ready = f.pickers.Status.ReadyReplicas
	}
	if f.object != nil && f.object.Spec.Replicas > 0 {
		want = f.object.Spec.Replicas
	}
	serve := "pickers of its own"
	if r.move.Clients != "" {
		serve = "the pickers of fleet " + r.move.Clients
	}
	switch moving, available := r.move.Clients != f.target, f.ready > 0 || r.picker != nil && r.picker.Status.ReadyReplicas > 0; {
	case f.target != "" && f.object == nil && available:
		return status.PickerAvailable.False(status.ReasonFleetNotFound, "there is no PickerFleet %s; %s, which are still there, serve the pool. "+
			"Create the fleet, or set picker.mode or picker.fleetRef", f.target, serve)
	case f.target != "" && f.object == nil:
		return status.PickerAvailable.False(status.ReasonFleetNotFound, "there is no PickerFleet %s. Create it, or set picker.mode or picker.fleetRef", f.target)
	case moving && available:
		return status.PickerAvailable.True("Moving", "%s serve the pool until those that it moves to do", serve)
	case f.ready == 0 && f.target == "":
		return status.PickerAvailable.False(status.ReasonUnavailable, "%s are not ready, and those that the pool moves to are not either", serve)
	case ready == 0:
		return status.PickerAvailable.False(status.ReasonUnavailable, "0 of %d replicas of fleet %s are ready", want, f.target)
	case ready < want:
		return status.PickerAvailable.False("SomeUnavailable", "%d of %d replicas of fleet %s are ready", ready, want, f.target)
	}
	return status.PickerAvailable.True("Available", "%d of %d replicas of fleet %s are ready", ready, want, f.target)
}

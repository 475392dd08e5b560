// Package inferencepool reconciles pods, pickers and status with an InferencePool. It reads from a cache, package lifecycle
// decides, the actions are executed in order with preconditions, and the status is written once, when it has changed. The
// controller can be killed between any two writes: each action follows from the present state of the cluster. What it keeps
// in memory only makes it faster or reduces traffic.
//
// A reconciliation (scope.run) is a sequence of parts. Each embeds what it reads: scope, what the cache has (observed), and what was
// decided about pods (outcome).
//
//	cluster         reads the pods, the pickers and the policy
//	referenceCheck  looks for the Secrets and ConfigMaps that the pool names
//	children        applies the objects beside the pods; secrets and budget are parts of it
//	gatewayReader   reads what gateways say about the pool
//	podKeeper       of a pool with a template: collects facts (podFacts, nodes, sizing, placing), lets package lifecycle decide, and
//	                carries the decision out (executor, podWriter, revising, reporterUpdate)
//	adoption        the same for pods that another workload owns
//	verdict         computes conditions and counts, and writes the status
package inferencepool

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/objects"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
)

// LongestWay is the longest time that a request takes from a pick to the engine.
const LongestWay = 2 * time.Second

// Pauses until a pool is looked at again though no object has changed.
const (
	lasts         = 8 * time.Second  // that something must last until a condition reports it: within ten seconds, with the way of the news
	settle        = 10 * time.Second // that a new reporter must have run
	cacheBehind   = time.Second      // until the cache shows our own writes; a watch is usually quicker
	expectAtMost  = 30 * time.Second // after which a write that never showed is given up
	afterConflict = 200 * time.Millisecond
)

// Pickers returns what the replicas of a pool's picker know, and warms pods up.
type Pickers interface {
	View(pool types.NamespacedName) operatorfeed.View
	// Warm fills a pod's cache with the hottest prefixes, up to so many tokens, and returns when that is done, cannot be
	// done, or ctx ends.
	Warm(ctx context.Context, pool types.NamespacedName, podUID string, tokens int) error
}

// Engines asks engines of draining pods how busy they are.
type Engines interface {
	// Watch replaces the pods of a pool that are asked.
	Watch(pool *v1alpha1.InferencePool, pods []*corev1.Pod)
	// Readings of a pod, oldest first.
	Readings(podUID string) []lifecycle.Reading
	// Forget a pool.
	Forget(pool types.NamespacedName)
}

// Reconciler reconciles InferencePools.
type Reconciler struct {
	// Client reads from a cache and writes.
	Client client.Client
	// Direct asks the API server: the operator is allowed to get a Secret, but not to list or watch any.
	Direct   client.Reader
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	Pickers  Pickers
	Engines  Engines
	// Sizer of autoscaled pools; nil for none: they stay as they are.
	Sizer Sizer
	// Warmups runs warm-ups; nil for none: pods then turn warm at their deadline.
	Warmups *Warmups
	// Children returns the configuration for pickers and other child objects. Optional APIs can be installed later.
	Children func() resources.Config
	// ReporterImage and ReporterLogLevel of the sidecar, and Version of what is injected.
	ReporterImage, ReporterLogLevel, Version string
	// NodeSignals is whether nodes can be read.
	NodeSignals bool
	// WithoutFleets is whether no fleets are watched, because their kind is not defined.
	WithoutFleets bool
	// Others finds the pools of other installations; nil for none.
	Others *Others
	// Namespaces that the operator watches; none for all.
	Namespaces []string

	optional *OptionalWatches // nil without a manager

	mu    sync.Mutex // guards pools, selectors and fleetsOf; what a pool points to belongs to its one reconciliation
	pools map[types.NamespacedName]*memory
	// selectors are the labels of the pods of each pool that has been reconciled.
	selectors map[types.NamespacedName]labels.Set
	// fleetsOf are the fleets whose pickers serve, or are to serve, each pool; none for a pool that has nothing to do with any.
	fleetsOf map[types.NamespacedName][]string
}

// memory of one pool, lost with the process.
type memory struct {
	expected    expectations
	size        *int32 // that the pool was last steered to; nil before the first time
	roleSizes   map[v1alpha1.RoleName]*int32
	marks       map[string]seenMark
	pending     map[string]pending
	recorded    map[recordedEvent]time.Time
	islands     map[string]*islandMemory
	taken       map[string]time.Time // names of pods that another owner has, and when that was seen
	provisioned map[string]bool      // UIDs of pods whose ProvisioningRequest has been made
	applied     map[objectKey]applied
	gone        map[string]time.Time // nodes that do not exist, and until when that is taken to be so
	certsAt     time.Time            // when to renew a certificate
	// certsSeen is when the Secrets of the certificates were read.
	certsSeen time.Time
	trusted   []byte
	keyAt     time.Time // when the Secret of the key root was looked at, and what the pool asked for then
	keyFor    string
	swept     sweep
	// noProtocolUntil is until when the gateways' pool is applied without appProtocol, which its definition lacks.
	noProtocolUntil time.Time
	evictions       evictionMemory
	rehearsal       rehearsal
	// references is what is known of what the pool names.
	references references
	// move is how far the pool is between the pickers of two owners; fleetCAs are what is known of those of fleets.
	move     moveMemory
	fleetCAs map[string]fleetCA
	// family is that of the first addresses of pods; empty until the API server has given it to a Service of the pool, or a pod has one.
	family corev1.IPFamily
}

func (r *Reconciler) memory(key types.NamespacedName) *memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.pools[key]
	if m == nil {
		m = &memory{
			expected: expectations{}, marks: map[string]seenMark{}, pending: map[string]pending{}, recorded: map[recordedEvent]time.Time{},
			islands: map[string]*islandMemory{}, provisioned: map[string]bool{}, applied: map[objectKey]applied{},
			taken: map[string]time.Time{}, gone: map[string]time.Time{}, fleetCAs: map[string]fleetCA{},
		}
		if r.pools == nil {
			r.pools = map[types.NamespacedName]*memory{}
		}
		r.pools[key] = m
	}
	return m
}

func (r *Reconciler) forget(key types.NamespacedName) {
	r.mu.Lock()
	delete(r.pools, key)
	delete(r.selectors, key)
	delete(r.fleetsOf, key)
	r.mu.Unlock()
	if r.Engines != nil {
		r.Engines.Forget(key)
	}
}

// recordSelector records which pods a pool has, for poolsOf. The pool's pods are read after that: a change of a pod that came before is
// in the cache by then.
func (r *Reconciler) recordSelector(key types.NamespacedName, pool *v1alpha1.InferencePool) {
	set := config.PodLabels(pool)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.selectors == nil {
		r.selectors = map[types.NamespacedName]labels.Set{}
	}
	r.selectors[key] = set
}

// scope is the state of one reconciliation of a pool. Every part of the reconciliation embeds it, and adds the problems that
// conditions report and the times at which to reconcile again.
type scope struct {
	*Reconciler
	pool   *v1alpha1.InferencePool // with defaults; shared with the cache and must not be changed
	key    types.NamespacedName
	memory *memory
	now    time.Time
	view   operatorfeed.View
	move   resources.Move // the pickers that serve the pool from now on

	problems problems
	wake     time.Time
	retry    bool // a write met a newer object
}

// observed is what the cache has of a pool. Its objects are shared with the cache and must not be changed.
type observed struct {
	pods      []*corev1.Pod          // of the pool
	strangers []*corev1.Pod          // that have our label and another owner
	orphans   []*corev1.Pod          // of the operator's making, without an owner
	podOf     map[string]*corev1.Pod // by UID
	picker    *appsv1.Deployment     // nil when there is none yet
	policy    *v1alpha1.RoutingPolicy
	fleets    fleets
	// stuckPicker is the first pod of the pickers that does not start, and pickerTrouble why; empty for none.
	stuckPicker   string
	pickerTrouble lifecycle.Trouble
	// pickersAfter is the pool whose pickers get the operator's image before those of this one, NAMESPACE/NAME; empty for none.
	pickersAfter string
}

// outcome is what was decided about a pool's pods, and what the decision was made from.
type outcome struct {
	size      size
	revisions revisions
	reporters reporters
	islands   *islands
	decision  lifecycle.Result
}

// Reconcile brings one pool nearer to its spec.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	pool := &v1alpha1.InferencePool{}
	if err := r.Client.Get(ctx, request.NamespacedName, pool); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(request.NamespacedName)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !pool.DeletionTimestamp.IsZero() { // its objects are garbage-collected, and preStop hooks drain its pods
		r.forget(request.NamespacedName)
		return reconcile.Result{}, nil
	}
	return r.begin(pool).run(ctx)
}

// begin returns the scope of a new reconciliation of a pool.
func (r *Reconciler) begin(pool *v1alpha1.InferencePool) *scope {
	key := client.ObjectKeyFromObject(pool)
	shared := *pool
	shared.Spec = pool.Spec.WithDefaults()
	s := &scope{Reconciler: r, pool: &shared, key: key, memory: r.memory(key), now: r.Clock.Now()}
	r.recordSelector(key, s.pool)
	if r.Pickers != nil {
		s.view = r.Pickers.View(key)
	}
	return s
}

// run reads, maintains the objects beside the pods, then the pods, and writes the status.
func (r *scope) run(ctx context.Context) (reconcile.Result, error) {
	seen := cluster{scope: r, observed: &observed{}}
	if err := seen.read(ctx); err != nil {
		return reconcile.Result{}, err
	}
	if yields, err := seen.yields(ctx); yields || err != nil {
		return reconcile.Result{RequeueAfter: othersEvery}, err
	}
	if wait := r.memory.expected.behind(seen.pods, r.now); wait {
		return reconcile.Result{RequeueAfter: cacheBehind}, nil
	}
	if err := seen.findPolicy(ctx); err != nil {
		return reconcile.Result{}, err
	}
	(&referenceCheck{r}).findReferences(ctx)
	network, childrenErr := (&children{r, seen.observed}).keep(ctx)
	r.memory.guessFamily(seen.pods)
	gateway, err := (&gatewayReader{r}).read(ctx)
	childrenErr = cmp.Or(childrenErr, err)
	pods := &outcome{}
	var podsErr error
	if r.pool.Spec.Template != nil {
		podsErr = (&podKeeper{r, seen.observed, pods}).keep(ctx)
	} else {
		podsErr = (&adoption{r, seen.observed, pods}).keep(ctx)
	}
	v := &verdict{scope: r, observed: seen.observed, outcome: pods, gateway: gateway, network: network, next: r.pool.Status.DeepCopy()}
	v.status(childrenErr, podsErr)
	if err := v.writeStatus(ctx); err != nil {
		return reconcile.Result{}, err
	}
	for _, err := range []error{podsErr, childrenErr} {
		switch {
		case objects.Refused(err): // conditions report it, and drains continue at their own pace
			r.wakeAt(r.now.Add(refusedEvery))
		case err != nil:
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{RequeueAfter: r.after()}, nil
}

// after is when to reconcile again; 0 for the next change.
func (r *scope) after() time.Duration {
	if r.retry {
		return afterConflict
	}
	if r.wake.IsZero() {
		return 0
	}
	return max(r.wake.Sub(r.now), time.Millisecond)
}

// wakeAt asks to be called again at t, zero for never.
func (r *scope) wakeAt(t time.Time) {
	if !t.IsZero() && (r.wake.IsZero() || t.Before(r.wake)) {
		r.wake = t
	}
}

// podKeeper creates, drains and deletes the pods of a pool that has a template.
type podKeeper struct {
	*scope
	*observed
	*outcome
}

// keep lets package lifecycle decide, and carries its decision out.
func (r *podKeeper) keep(ctx context.Context) error {
	r.size = chosenSize(r.scope, r.observed) // the status has it whatever comes
	revising := &revising{r.scope, r.observed, r.outcome}
	if err := revising.findRevisions(ctx); err != nil {
		return err
	}
	if r.problems.template != "" {
		return nil // the pods that are there stay
	}
	if adopted, err := r.adoptPods(ctx); adopted || err != nil {
		r.keepSize(&r.size)
		r.retry = r.retry || adopted
		return err
	}
	reporterUpdate := &reporterUpdate{r.scope, r.observed, r.outcome}
	r.reporters = reporterUpdate.findReporters()
	input, err := r.facts(ctx)
	if err != nil {
		return err
	}
	executor, placing := &executor{newPodWriter(r.scope, r.observed), r.outcome}, &placing{r.scope, r.observed, r.outcome}
	rehearsed := executor.rehearse(ctx)
	input.Pool.Refused = rehearsed != nil && (objects.Refused(rehearsed) || !r.admitted())
	r.decision = lifecycle.Make(input)
	r.wakeAt(r.decision.Wake)
	var refusal error
	steps := []func(context.Context) error{executor.execute, placing.askForNodes, revising.pruneRevisions, reporterUpdate.patchReporters}
	for _, step := range steps {
		switch err := step(ctx); {
		case objects.Refused(err):
			refusal = cmp.Or(refusal, err)
		case err != nil:
			return err
		}
	}
	r.recallRoom(refusal)
	return cmp.Or(refusal, rehearsed)
}

// admitted reports whether the API server has created a pod of the newest revision. A rollout that has begun goes on while a
// rehearsal has no answer: to hold it would end pods that load.
func (r *podKeeper) admitted() bool {
	return slices.ContainsFunc(r.pods, func(p *corev1.Pod) bool { return p.Labels[v1alpha1.LabelRevision] == r.revisions.update })
}

// objectKey names an object of one kind in a pool's namespace.
type objectKey struct{ kind, name string }

package inferencepool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	kvevents "github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
	"github.com/kvasir-dev/kvasir/internal/status"
)

var (
	poolKey   = types.NamespacedName{Namespace: "llm", Name: "chat"}
	errBroken = errors.New("the connection broke")
	errDead   = errors.New("the controller is dead")
)

// testScheme has only the groups that the controller uses: for each write, the fake client goes through all kinds of its scheme.
var testScheme = sync.OnceValue(func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, corev1.AddToScheme, eventsv1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme,
		v1alpha1.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	for _, kind := range []schema.GroupVersionKind{resources.ProvisioningKind, resources.GIEKind, resources.RouteKind} {
		s.AddKnownTypeWithName(kind, &unstructured.Unstructured{})
		kind.Kind += "List"
		s.AddKnownTypeWithName(kind, &unstructured.UnstructuredList{})
	}
	return s
})

// world is an API server, what runs in its cluster, and a controller that reads from a cache.
type world struct {
	t     *testing.T
	clock *testingclock.FakePassiveClock
	api   client.WithWatch // the truth
	cache client.WithWatch // what the controller reads and writes through
	r     *Reconciler
	log   []string

	stale  func() bool     // whether a cache stays as it is; nil for never
	pods   *corev1.PodList // of the cache
	pools  *v1alpha1.InferencePoolList
	kept   *appsv1.ControllerRevisionList
	broken func(verb string, obj client.Object) (before, after error) // of writes
	writes int
	// rehearsals counts the questions whether a pod would be created.
	rehearsals int
	// applies answers for applied objects before they are there; nil where no server applies any.
	applies func(*unstructured.Unstructured) error

	engines             map[string]*engine // by pod UID
	pickers             map[string]*picker
	reported            operatorfeed.Pool
	warmed              []string
	keyID               string // that all pickers use
	tokens, predictions operatorfeed.Finding
	model               operatorfeed.Finding
	doomed              []string // pods that were deleted too early
	// blind is whether the operator cannot reach engines, reading whether the pickers read them.
	blind, reading bool
	// stream is that of every pod at the pickers; nil for one that is complete.
	stream *kvevents.Status
}

// engine is what runs in a pod.
type engine struct {
	requests []time.Time // their ends
	readings []lifecycle.Reading
}

// picker is one replica: it follows pods late.
type picker struct {
	draining map[string]bool
}

func newPool(change ...func(*v1alpha1.InferencePool)) *v1alpha1.InferencePool {
	pool := &v1alpha1.InferencePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: poolKey.Namespace, Name: poolKey.Name, Generation: 1, UID: "pool-uid"},
		Spec: v1alpha1.InferencePoolSpec{
			Model:    v1alpha1.Model{Name: "m"},
			Replicas: ptr.To[int32](2),
			Engine: v1alpha1.Engine{
				Type: v1alpha1.EngineVLLM, Flags: v1alpha1.FlagsInject, Ports: v1alpha1.EnginePorts{HTTP: 8000, Events: 5557, Replay: 5657},
				DataParallel: v1alpha1.DataParallel{Ranks: 1},
				Events:       v1alpha1.Events{Source: v1alpha1.EventsAuto, Reporter: v1alpha1.Reporter{DrainPort: 9445}},
			},
			Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "vllm", Image: "vllm/vllm-openai:v0.24.0", Args: []string{"--model", "m"}},
			}}},
			Drain: v1alpha1.Drain{DeadlineSeconds: ptr.To[int32](600)},
		},
	}
	for _, f := range change {
		f(pool)
	}
	return pool
}

func emptyWorld(t *testing.T) *world {
	return &world{
		t: t, clock: testingclock.NewFakePassiveClock(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)),
		engines: map[string]*engine{}, pickers: map[string]*picker{"a": {}, "b": {}},
	}
}

func newWorld(t *testing.T, change ...func(*v1alpha1.InferencePool)) *world {
	t.Helper()
	w := emptyWorld(t)
	w.serveFrom(newServer().WithObjects(newPool(change...)).Build())
	return w
}

// newServer is a fake API server that does not note who owns which fields, a quarter of its work: serveFrom answers what is applied.
func newServer() *fake.ClientBuilder {
	tracker := clienttesting.NewObjectTracker(testScheme(), serializer.NewCodecFactory(testScheme()).UniversalDecoder())
	return fake.NewClientBuilder().WithScheme(testScheme()).WithObjectTracker(tracker).
		WithStatusSubresource(&v1alpha1.InferencePool{}, &corev1.Pod{})
}

// serveFrom has an API server as the truth.
func (w *world) serveFrom(api client.WithWatch) {
	uids := 0
	w.api = interceptor.NewClient(api, interceptor.Funcs{
		// What an API server adds.
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			uids++
			obj.SetUID(types.UID(fmt.Sprintf("uid-%04d", uids)))
			obj.SetCreationTimestamp(metav1.NewTime(w.clock.Now()))
			return c.Create(ctx, obj, opts...)
		},
	})
	w.cache = interceptor.NewClient(w.api, interceptor.Funcs{
		List: w.list, Get: w.get,
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if o := (&client.CreateOptions{}).ApplyOptions(opts); len(o.DryRun) > 0 {
				return w.rehearse(obj)
			}
			return w.write("create", obj, func() error { return c.Create(ctx, obj, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			return w.write("delete", obj, func() error {
				doomed := w.doomedBy(obj)
				err := c.Delete(ctx, obj, opts...)
				if err == nil && doomed != "" {
					w.doomed = append(w.doomed, doomed)
				}
				return err
			})
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return w.write("patch", obj, func() error { return c.Patch(ctx, obj, patch, opts...) })
		},
		Apply: func(_ context.Context, _ client.WithWatch, config runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
			return w.apply(config)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			return w.write("patch "+sub, obj, func() error { return c.SubResource(sub).Patch(ctx, obj, patch, opts...) })
		},
	})
	w.start()
}

// start begins a controller without memory.
func (w *world) start() {
	w.r = &Reconciler{
		Client: w.cache, Direct: w.api, Clock: w.clock, Pickers: w, Engines: w, Recorder: events.NewFakeRecorder(10000),
		ReporterImage: "reporter:v1", Version: "v1", NodeSignals: true,
	}
	w.pods, w.pools, w.kept = nil, nil, nil
}

func (w *world) say(format string, args ...any) {
	w.log = append(w.log, w.clock.Now().Format("15:04:05 ")+fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), strings.Join(w.log[max(0, len(w.log)-60):], "\n"))
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.fail("%v", err)
	}
}

// write is a write of the controller, which can be lost before or after it is done.
func (w *world) write(verb string, obj client.Object, do func() error) error {
	var before, after error
	if w.broken != nil {
		before, after = w.broken(verb, obj)
	}
	if before != nil {
		return before
	}
	w.writes++
	err := do()
	w.say("%s %T %s: %v", verb, obj, obj.GetName(), err)
	if err == nil {
		err = after
	}
	return err
}

// rehearse answers whether an object would be created.
func (w *world) rehearse(obj client.Object) error {
	w.rehearsals++
	if w.broken == nil {
		return nil
	}
	before, _ := w.broken("create", obj)
	return before
}

// apply merges as an API server does in the simple case of one manager, where a test asks for it.
func (w *world) apply(config runtime.ApplyConfiguration) error {
	raw, err := json.Marshal(config)
	w.must(err)
	o := &unstructured.Unstructured{}
	w.must(json.Unmarshal(raw, &o.Object))
	if w.applies == nil {
		return nil
	}
	if err := w.applies(o); err != nil {
		return err
	}
	live := o.DeepCopy()
	if err := w.api.Get(context.Background(), client.ObjectKeyFromObject(o), live); err != nil {
		return w.api.Create(context.Background(), o)
	}
	o.SetResourceVersion(live.GetResourceVersion())
	o.SetUID(live.GetUID())
	if status, ok := live.Object["status"]; ok {
		o.Object["status"] = status
	}
	return w.api.Update(context.Background(), o)
}

// list and get read from the cache, which follows the truth kind by kind.
func (w *world) list(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(opts)
	matches := func(obj client.Object) bool {
		return (o.Namespace == "" || o.Namespace == obj.GetNamespace()) &&
			(o.LabelSelector == nil || o.LabelSelector.Matches(labels.Set(obj.GetLabels())))
	}
	switch list := list.(type) {
	case *corev1.PodList:
		if w.pods == nil || w.stale == nil || !w.stale() {
			w.pods = &corev1.PodList{}
			w.must(c.List(ctx, w.pods))
		}
		for i := range w.pods.Items {
			if matches(&w.pods.Items[i]) {
				list.Items = append(list.Items, *w.pods.Items[i].DeepCopy())
			}
		}
		return nil
	case *appsv1.ControllerRevisionList:
		if w.kept == nil || w.stale == nil || !w.stale() {
			w.kept = &appsv1.ControllerRevisionList{}
			w.must(c.List(ctx, w.kept))
		}
		list.Items = w.kept.DeepCopy().Items
		return nil
	}
	return c.List(ctx, list, opts...)
}

func (w *world) get(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	pool, ok := obj.(*v1alpha1.InferencePool)
	if !ok {
		return c.Get(ctx, key, obj, opts...)
	}
	if w.pools == nil || w.stale == nil || !w.stale() {
		w.pools = &v1alpha1.InferencePoolList{}
		w.must(c.List(ctx, w.pools))
	}
	for i := range w.pools.Items {
		if w.pools.Items[i].Name == key.Name {
			w.pools.Items[i].DeepCopyInto(pool)
			return nil
		}
	}
	return c.Get(ctx, key, obj, opts...)
}

// doomedBy returns what is wrong with the delete of an object now: a busy pod must have reached its deadline.
func (w *world) doomedBy(obj client.Object) string {
	truth := &corev1.Pod{}
	if _, ok := obj.(*corev1.Pod); !ok || w.api.Get(context.Background(), client.ObjectKeyFromObject(obj), truth) != nil {
		return ""
	}
	mark, busy := markOf(truth), w.busy(string(truth.UID))
	if !engineRuns(truth, "") || !mark.Deadline.IsZero() && (busy == 0 || !w.clock.Now().Before(mark.Deadline)) {
		return ""
	}
	return fmt.Sprintf("%s with %d requests, %+v", truth.Name, busy, mark)
}

func (w *world) busy(uid string) int {
	e := w.engines[uid]
	if e == nil {
		return 0
	}
	e.requests = slices.DeleteFunc(e.requests, func(end time.Time) bool { return !end.After(w.clock.Now()) })
	return len(e.requests)
}

// View implements Pickers.
func (w *world) View(types.NamespacedName) operatorfeed.View {
	var expected []operatorfeed.Expected
	for _, name := range slices.Sorted(maps.Keys(w.pickers)) {
		expected = append(expected, operatorfeed.Expected{Picker: name, Ready: true})
	}
	return w.reported.View(w.clock.Now(), expected)
}

// Warm implements Pickers.
func (w *world) Warm(_ context.Context, _ types.NamespacedName, uid string, _ int) error {
	w.warmed = append(w.warmed, uid)
	return nil
}

// Watch implements Engines: every engine is asked all the time.
func (w *world) Watch(*v1alpha1.InferencePool, []*corev1.Pod) {}

// Forget implements Engines.
func (w *world) Forget(types.NamespacedName) {}

// Readings implements Engines.
func (w *world) Readings(uid string) []lifecycle.Reading {
	if e := w.engines[uid]; e != nil && !w.blind {
		return slices.Clone(e.readings)
	}
	return nil
}

// all pods, as they are.
func (w *world) all() []*corev1.Pod {
	var list corev1.PodList
	w.must(w.api.List(context.Background(), &list))
	out := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	return out
}

func (w *world) pool() *v1alpha1.InferencePool {
	pool := &v1alpha1.InferencePool{}
	w.must(w.api.Get(context.Background(), poolKey, pool))
	return pool
}

// edit changes the spec as a person does.
func (w *world) edit(change func(*v1alpha1.InferencePoolSpec)) {
	pool := w.pool()
	change(&pool.Spec)
	pool.Generation++
	w.must(w.api.Update(context.Background(), pool))
}

// setStatus of a pod, as a kubelet does.
func (w *world) setStatus(pod *corev1.Pod, change func(*corev1.PodStatus)) {
	pod = pod.DeepCopy()
	change(&pod.Status)
	if err := w.api.Status().Update(context.Background(), pod); err != nil && !isGone(err) {
		w.fail("%v", err)
	}
}

// tick lets all pickers see all pods and speak, and reads all engines, twice.
func (w *world) tick() {
	for range 2 {
		w.clock.SetTime(w.clock.Now().Add(2 * time.Second))
		for _, name := range slices.Sorted(maps.Keys(w.pickers)) {
			w.speak(name)
		}
		w.readEngines()
	}
}

// speak lets a picker see all pods and say so.
func (w *world) speak(name string) {
	s := operatorfeed.State{Picker: name, Incarnation: 1, Ready: true, Resolved: true, Pods: map[string]operatorfeed.PodState{}}
	s.KeyID, s.Tokens, s.Predictions, s.Model = w.keyID, w.tokens, w.predictions, w.model
	draining := map[string]bool{}
	for _, pod := range w.all() {
		_, marked := pod.Labels[v1alpha1.LabelDrain]
		draining[string(pod.UID)] = marked
		state := operatorfeed.PodState{Draining: marked, Synced: isTrue(pod, corev1.ContainersReady)}
		if w.reading {
			state.Busy, state.ReadAge = w.busy(string(pod.UID)), 100*time.Millisecond
		}
		s.Pods[string(pod.UID)] = state
		if w.stream != nil {
			one := *w.stream
			one.Endpoint.ID.Pod = string(pod.UID)
			status.Knowledge(s.Pods, []kvevents.Status{one})
		}
	}
	w.pickers[name].draining = draining
	w.reported.Receive(w.clock.Now(), s)
}

func (w *world) readEngines() {
	for uid, e := range w.engines {
		e.readings = append(e.readings, lifecycle.Reading{At: w.clock.Now(), Busy: w.busy(uid)})
		e.readings = e.readings[max(0, len(e.readings)-3):]
	}
}

func (w *world) engine(pod *corev1.Pod) *engine {
	uid := string(pod.UID)
	if w.engines[uid] == nil {
		w.engines[uid] = &engine{}
	}
	return w.engines[uid]
}

// reconcile once, and return after what time to check again; 0 for none.
func (w *world) reconcile() (time.Duration, error) {
	result, err := w.r.Reconcile(context.Background(), reconcile.Request{NamespacedName: poolKey})
	if len(w.doomed) > 0 {
		w.fail("deleted before its deadline: %s", w.doomed)
	}
	return result.RequeueAfter, err
}

// settleDown reconciles until nothing more is written.
func (w *world) settleDown() {
	w.t.Helper()
	for range 50 {
		before := w.writes
		if _, err := w.reconcile(); err != nil {
			w.fail("%v", err)
		}
		if w.writes == before {
			return
		}
	}
	w.fail("it writes for ever")
}

func (w *world) condition(kind string) string {
	c := meta.FindStatusCondition(w.pool().Status.Conditions, kind)
	if c == nil {
		return "none"
	}
	return string(c.Status) + " " + c.Reason
}

// reading of an engine.
func reading(at time.Time, busy int) lifecycle.Reading { return lifecycle.Reading{At: at, Busy: busy} }

// chance of a seeded random source.
func chance(rng *rand.Rand, percent float64) bool { return rng.Float64()*100 < percent }

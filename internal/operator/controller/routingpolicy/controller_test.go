package routingpolicy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
)

var start = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

// views are the reports of pickers, by pool.
type views map[string]operatorfeed.View

func (v views) View(pool types.NamespacedName) operatorfeed.View { return v[pool.Name] }

// following are replicas that follow generations of a policy.
func following(policy string, generations ...int64) operatorfeed.View {
	var v operatorfeed.View
	for i, generation := range generations {
		v.Replicas = append(v.Replicas, operatorfeed.State{Picker: fmt.Sprint(i), PolicyName: policy, PolicyGeneration: generation})
	}
	return v
}

// world is a reconciler with its surroundings.
type world struct {
	*Reconciler
	t        *testing.T
	views    views
	clock    *testingclock.FakePassiveClock
	recorder *events.FakeRecorder
	writes   int
	fail     func() error // of calls to the API server
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	scheme.AddKnownTypeWithName(gatewayPool, &metav1.PartialObjectMetadata{})
	w := &world{t: t, views: views{}, clock: testingclock.NewFakePassiveClock(start), recorder: events.NewFakeRecorder(100), fail: func() error { return nil }}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.RoutingPolicy{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				return errors.Join(w.fail(), c.Get(ctx, key, o, opts...))
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, name string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				if err := w.fail(); err != nil {
					return err
				}
				w.writes++
				return c.SubResource(name).Patch(ctx, o, p, opts...)
			},
		}).Build()
	w.Reconciler = &Reconciler{Client: c, Direct: c, Pickers: w.views, Recorder: w.recorder, Clock: w.clock}
	return w
}

func (w *world) reconcile(name string) (reconcile.Result, error) {
	return w.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: name}})
}

func (w *world) mustReconcile(name string) time.Duration {
	w.t.Helper()
	result, err := w.reconcile(name)
	if err != nil {
		w.t.Fatal(err)
	}
	return result.RequeueAfter
}

func (w *world) get(name string) *v1alpha1.RoutingPolicy {
	w.t.Helper()
	p := &v1alpha1.RoutingPolicy{}
	if err := w.Client.Get(w.t.Context(), types.NamespacedName{Namespace: "ns", Name: name}, p); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// reasons of a policy's conditions at its targets: "m: Accepted ResolvedRefs Programmed".
func reasons(p *v1alpha1.RoutingPolicy) string {
	var all []string
	for _, a := range p.Status.Ancestors {
		var words []string
		for _, c := range a.Conditions {
			words = append(words, c.Reason)
		}
		all = append(all, string(a.AncestorRef.Name)+": "+strings.Join(words, " "))
	}
	return strings.Join(all, "; ")
}

// admitter is shared by all tests: it takes long to load.
var admitter = sync.OnceValues(crdadmission.New)

// policy made at a second after the start.
func policy(t *testing.T, name string, second int, spec string) *v1alpha1.RoutingPolicy {
	t.Helper()
	a, err := admitter()
	if err != nil {
		t.Fatal(err)
	}
	o, err := a.Admit(t.Context(), []byte("apiVersion: kvasir.dev/v1alpha1\nkind: RoutingPolicy\nmetadata: {name: "+name+", namespace: ns}\nspec: "+spec), nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := crdadmission.Policy(o)
	if err != nil {
		t.Fatal(err)
	}
	p.Generation = 1
	p.CreationTimestamp = metav1.NewTime(start.Add(time.Duration(second) * time.Second))
	return p
}

func pool(name string) *v1alpha1.InferencePool {
	return &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", Generation: 1}}
}

func bare(name string) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}}
	o.SetGroupVersionKind(gatewayPool)
	return o
}

const (
	onM      = "{targetRefs: [{name: m}]}"
	onBoth   = "{targetRefs: [{name: m}, {name: o}]}"
	onBare   = "{targetRefs: [{group: inference.networking.k8s.io, name: b}]}"
	withKeys = "{targetRefs: [{name: m}], admission: {tenants: {identification: APIKey, secretRefs: [{name: keys}], classes: [{name: default}]}}}"
)

func TestStatus(t *testing.T) {
	for name, tc := range map[string]struct {
		objects []client.Object
		views   views
		want    map[string]string
		again   time.Duration
	}{
		"all replicas follow": {
			objects: []client.Object{pool("m"), policy(t, "p", 1, onM)}, views: views{"m": following("p", 1, 1)},
			want: map[string]string{"p": "m: Accepted ResolvedRefs Programmed"}, again: settledAfter,
		},
		"one replica follows the generation before": {
			objects: []client.Object{pool("m"), policy(t, "p", 1, onM)}, views: views{"m": following("p", 1, 0)},
			want: map[string]string{"p": "m: Accepted ResolvedRefs Reconciling"}, again: unsettledAfter,
		},
		"replicas follow another policy": {
			objects: []client.Object{pool("m"), policy(t, "p", 1, onM)}, views: views{"m": following("q", 7)},
			want: map[string]string{"p": "m: Accepted ResolvedRefs Reconciling"}, again: unsettledAfter,
		},
		"there is no picker": {
			objects: []client.Object{pool("m"), policy(t, "p", 1, onM)},
			want:    map[string]string{"p": "m: Accepted ResolvedRefs NoPicker"}, again: settledAfter,
		},
		"there is no pool": {
			objects: []client.Object{policy(t, "p", 1, onM)},
			want:    map[string]string{"p": "m: TargetNotFound ResolvedRefs"}, again: settledAfter,
		},
		"the older policy wins": {
			objects: []client.Object{pool("m"), policy(t, "p", 2, onM), policy(t, "q", 1, onM)}, views: views{"m": following("q", 1)},
			want: map[string]string{"p": "m: Conflicted ResolvedRefs", "q": "m: Accepted ResolvedRefs Programmed"}, again: settledAfter,
		},
		"of the same age the first by name wins": {
			objects: []client.Object{pool("m"), policy(t, "p", 1, onM), policy(t, "q", 1, onM)},
			want:    map[string]string{"p": "m: Accepted ResolvedRefs NoPicker", "q": "m: Conflicted ResolvedRefs"}, again: settledAfter,
		},
		"one wins here and loses there": {
			objects: []client.Object{pool("m"), pool("o"), policy(t, "p", 2, onBoth), policy(t, "q", 1, onM)}, views: views{"o": following("p", 1)},
			want: map[string]string{"p": "m: Conflicted ResolvedRefs; o: Accepted ResolvedRefs Programmed"}, again: settledAfter,
		},
		"a gateway's own pool": {
			objects: []client.Object{bare("b"), policy(t, "p", 1, onBare)},
			want:    map[string]string{"p": "b: Accepted ResolvedRefs NoPicker"}, again: settledAfter,
		},
		"a gateway's pool that is not there": {
			objects: []client.Object{policy(t, "p", 1, onBare)},
			want:    map[string]string{"p": "b: TargetNotFound ResolvedRefs"}, again: settledAfter,
		},
		"a gateway's pool that one of ours made": {
			objects: []client.Object{pool("b"), bare("b"), policy(t, "p", 1, onBare), policy(t, "q", 0, "{targetRefs: [{name: b}]}")},
			want:    map[string]string{"p": "b: Conflicted ResolvedRefs", "q": "b: Accepted ResolvedRefs NoPicker"}, again: settledAfter,
		},
		"the Secret is not there": {
			objects: []client.Object{pool("m"), policy(t, "p", 1, withKeys)},
			want:    map[string]string{"p": "m: Accepted SecretNotFound NoPicker"}, again: secretsAfter,
		},
		"an entry of the Secret is none": {
			objects: []client.Object{pool("m"), policy(t, "p", 1, withKeys), secret("acme", "my-key")},
			want:    map[string]string{"p": "m: Accepted SecretInvalid NoPicker"}, again: secretsAfter,
		},
		"the Secret is there": {
			objects: []client.Object{pool("m"), policy(t, "p", 1, withKeys), secret("acme", `{"sha256":["`+strings.Repeat("0a", 32)+`"]}`)},
			want:    map[string]string{"p": "m: Accepted ResolvedRefs NoPicker"}, again: secretsAfter,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.objects...)
			for pool, view := range tc.views {
				w.views[pool] = view
			}
			for policy, want := range tc.want {
				again := w.mustReconcile(policy)
				got := w.get(policy)
				if reasons(got) != want {
					t.Errorf("%s has %q, want %q", policy, reasons(got), want)
				}
				if policy == "p" && again != tc.again {
					t.Errorf("next reconcile after %s, want %s", again, tc.again)
				}
				if strings.Contains(fmt.Sprint(got.Status), "my-key") {
					t.Error("the status repeats what is in the Secret")
				}
			}
		})
	}
}

func secret(entry, value string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "keys", Namespace: "ns"}, Data: map[string][]byte{entry: []byte(value)}}
}

func TestAPolicyOfAnotherVersionIsInvalid(t *testing.T) {
	p := policy(t, "p", 1, onM)
	p.Spec.Strategy.Type = "OfTheFuture"
	w := newWorld(t, pool("m"), p)
	w.mustReconcile("p")
	if got := reasons(w.get("p")); got != "m: Invalid ResolvedRefs" {
		t.Errorf("got %q", got)
	}
}

// TestHooksThatDoNotCompileAreInvalid: the condition names the field, the step and the position.
func TestHooksThatDoNotCompileAreInvalid(t *testing.T) {
	w := newWorld(t, pool("m"), policy(t, "p", 1, `{targetRefs: [{name: m}], hooks: {steps: [{name: a, when: "tennant == ''", model: m}]}}`))
	w.mustReconcile("p")
	got := w.get("p")
	if reasons(got) != "m: Invalid ResolvedRefs" {
		t.Errorf("got %q", reasons(got))
	}
	const want = "spec.hooks.steps[0].when: Invalid value: \"tennant == ''\": step a: 1:1: undeclared reference to 'tennant'"
	if message := got.Status.Ancestors[0].Conditions[0].Message; !strings.Contains(message, want) {
		t.Errorf("the condition says %s", message)
	}
}

func TestTheLoserIsToldTheWinner(t *testing.T) {
	w := newWorld(t, pool("m"), policy(t, "p", 2, onM), policy(t, "q", 1, onM))
	w.mustReconcile("p")
	c := meta.FindStatusCondition(w.get("p").Status.Ancestors[0].Conditions, v1alpha1.ConditionAccepted)
	if c == nil || !strings.Contains(c.Message, "q") || c.ObservedGeneration != 1 {
		t.Errorf("got %+v", c)
	}
}

func TestNothingIsWrittenWhereNothingChanges(t *testing.T) {
	w := newWorld(t, pool("m"), pool("o"), policy(t, "p", 1, onBoth), policy(t, "q", 2, withKeys))
	w.views["m"] = following("p", 1, 1)
	for range 5 {
		w.mustReconcile("p")
		w.mustReconcile("q")
		w.clock.SetTime(w.clock.Now().Add(time.Hour))
	}
	if w.writes != 2 {
		t.Errorf("%d writes, want one for each policy", w.writes)
	}
}

func TestATransitionKeepsItsTime(t *testing.T) {
	w := newWorld(t, pool("m"), policy(t, "p", 1, onM))
	w.views["m"] = following("p", 1, 0)
	w.mustReconcile("p")
	w.clock.SetTime(start.Add(time.Minute))
	w.views["m"] = following("p", 1, 0, 0)
	w.mustReconcile("p")
	conditions := w.get("p").Status.Ancestors[0].Conditions
	programmed := meta.FindStatusCondition(conditions, v1alpha1.ConditionProgrammed)
	if programmed.Message != "1 of 3 replicas" || !programmed.LastTransitionTime.Time.Equal(start) {
		t.Errorf("got %+v", programmed)
	}
	w.views["m"] = following("p", 1, 1)
	w.mustReconcile("p")
	conditions = w.get("p").Status.Ancestors[0].Conditions
	if at := meta.FindStatusCondition(conditions, v1alpha1.ConditionProgrammed).LastTransitionTime; !at.Time.Equal(start.Add(time.Minute)) {
		t.Errorf("programmed at %s", at)
	}
	if at := meta.FindStatusCondition(conditions, v1alpha1.ConditionAccepted).LastTransitionTime; !at.Time.Equal(start) {
		t.Errorf("accepted at %s", at)
	}
}

func TestEntriesOfOthersStay(t *testing.T) {
	p := policy(t, "p", 1, onM)
	other := gwapiv1.PolicyAncestorStatus{
		AncestorRef: gwapiv1.ParentReference{Name: "m"}, ControllerName: "example.com/other",
		Conditions: []metav1.Condition{{Type: "Accepted", Status: "True", Reason: "Fine", LastTransitionTime: metav1.NewTime(start)}},
	}
	p.Status.Ancestors = []gwapiv1.PolicyAncestorStatus{other}
	w := newWorld(t, pool("m"), p)
	w.mustReconcile("p")
	got := w.get("p").Status.Ancestors
	if len(got) != 2 || got[0].ControllerName != other.ControllerName || got[1].ControllerName != ControllerName {
		t.Errorf("got %+v", got)
	}
}

func TestEventsAreToldOnce(t *testing.T) {
	w := newWorld(t, pool("m"), policy(t, "p", 1, onM), policy(t, "q", 2, onM))
	w.views["m"] = following("p", 1)
	for range 3 {
		w.mustReconcile("p")
		w.mustReconcile("q")
	}
	close(w.recorder.Events)
	var got []string
	for e := range w.recorder.Events {
		got = append(got, strings.Join(strings.Fields(e)[:2], " "))
	}
	if diff := cmp.Diff([]string{"Normal PolicyApplied", "Warning PolicyConflicted"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAPolicyThatIsGoneIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	if again := w.mustReconcile("p"); again != 0 {
		t.Errorf("next reconcile after %s", again)
	}
}

// Whatever is edited, and whichever calls fail: in the end each status is what a fresh controller would write, and
// nothing is written any more.
func TestItSettlesWhateverHappens(t *testing.T) {
	specs := []string{onM, onBoth, onBare, withKeys}
	prototypes := map[string]*v1alpha1.RoutingPolicy{}
	for _, spec := range specs {
		prototypes[spec] = policy(t, "x", 0, spec)
	}
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 3))
		w := newWorld(t, pool("m"), pool("o"))
		names := []string{"p", "q", "o"}
		broken := errors.New("the API server is away")
		for range 40 {
			w.fail = func() error {
				if r.IntN(4) == 0 {
					return broken
				}
				return nil
			}
			name := names[r.IntN(len(names))]
			_, _ = w.reconcile(name)
			w.fail = func() error { return nil }
			p := &v1alpha1.RoutingPolicy{}
			exists := w.Client.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: name}, p) == nil
			spec := prototypes[specs[r.IntN(len(specs))]].Spec
			switch {
			case !exists:
				p = &v1alpha1.RoutingPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", Generation: 1}, Spec: spec}
				p.CreationTimestamp = metav1.NewTime(start.Add(time.Duration(r.IntN(3)) * time.Second))
				mustDo(t, w.Client.Create(t.Context(), p))
			case r.IntN(5) == 0:
				mustDo(t, w.Client.Delete(t.Context(), p))
			case r.IntN(2) == 0:
				p.Spec, p.Generation = spec, p.Generation+1
				mustDo(t, w.Client.Update(t.Context(), p))
			}
			w.views["m"] = following(names[r.IntN(len(names))], r.Int64N(3), r.Int64N(3))
		}
		for _, name := range names {
			w.mustReconcile(name)
		}
		settled := w.writes
		for _, name := range names {
			w.mustReconcile(name)
			p := &v1alpha1.RoutingPolicy{}
			if w.Client.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: name}, p) != nil {
				continue
			}
			f, _, err := w.gather(t.Context(), p)
			mustDo(t, err)
			fresh := p.DeepCopy()
			fresh.Status = gwapiv1.PolicyStatus{}
			fresh.Status = policyStatus(fresh, f, metav1.NewTime(start))
			if reasons(fresh) != reasons(p) {
				t.Fatalf("seed %d: %s has %q, want %q", seed, name, reasons(p), reasons(fresh))
			}
		}
		if w.writes != settled {
			t.Fatalf("seed %d: %d writes after it had settled", seed, w.writes-settled)
		}
	}
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestStatusOfThePool(t *testing.T) {
	winner := policy(t, "p", 1, onM)
	before := v1alpha1.PolicyInForce{Name: "p", Generation: 3}
	for name, tc := range map[string]struct {
		winner *v1alpha1.RoutingPolicy
		before v1alpha1.PolicyInForce
		view   operatorfeed.View
		want   v1alpha1.PolicyInForce
	}{
		"no policy":                          {before: before, view: following("p", 3)},
		"all follow":                         {winner: winner, view: following("p", 3, 3), want: before},
		"the lowest generation counts":       {winner: winner, view: following("p", 4, 3), want: before},
		"one follows another policy":         {winner: winner, before: before, view: mixed("p", "q"), want: before},
		"one does not report":                {winner: winner, before: before, view: operatorfeed.View{Replicas: following("p", 9).Replicas, Silent: []string{"b"}}, want: before},
		"none reports":                       {winner: winner, before: before, want: before},
		"none reports, another was in force": {winner: winner, before: v1alpha1.PolicyInForce{Name: "q", Generation: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			m := pool("m")
			m.Status.RoutingPolicy = tc.before
			got, condition := PoolStatus(m, tc.winner, &tc.view)
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
			if (condition != nil) != (tc.winner != nil) {
				t.Errorf("condition %v", condition)
			}
		})
	}
}

func mixed(policies ...string) operatorfeed.View {
	var v operatorfeed.View
	for _, name := range policies {
		v.Replicas = append(v.Replicas, operatorfeed.State{PolicyName: name, PolicyGeneration: 5})
	}
	return v
}

// TestACrossingWithoutAnIslandIsTold: a policy that keeps requests on the pickers' island has no effect while that is not known.
func TestACrossingWithoutAnIslandIsTold(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		rule   v1alpha1.IslandCrossing
		picker v1alpha1.Picker
		told   bool
	}{
		"never, from no island":        {v1alpha1.CrossNever, v1alpha1.Picker{}, true},
		"last resort, from no island":  {v1alpha1.CrossLastResort, v1alpha1.Picker{}, true},
		"never, from an island":        {v1alpha1.CrossNever, v1alpha1.Picker{PickerSettings: v1alpha1.PickerSettings{Island: "here"}}, false},
		"when cheaper, from no island": {v1alpha1.CrossWhenCheaper, v1alpha1.Picker{}, false},
		"never, with external pickers": {v1alpha1.CrossNever, v1alpha1.Picker{Mode: v1alpha1.PickerExternal}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, winner := pool("m"), &v1alpha1.RoutingPolicy{}
			m.Spec.Picker, winner.Spec.Guards.IslandCrossing = tc.picker, tc.rule
			_, condition := PoolStatus(m, winner, &operatorfeed.View{})
			if told := strings.Contains(condition.Message, "picker.island"); told != tc.told {
				t.Errorf("%q", condition.Message)
			}
		})
	}
}

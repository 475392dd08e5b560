package modelroute

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
)

var start = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

// world is a reconciler with its surroundings.
type world struct {
	*Reconciler
	t      *testing.T
	clock  *testingclock.FakePassiveClock
	writes int
	fail   func(name string) error // of writes
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, clock: testingclock.NewFakePassiveClock(start), fail: func(string) error { return nil }}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.ModelRoute{}).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, name string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				if err := w.fail(o.GetName()); err != nil {
					return err
				}
				w.writes++
				return c.SubResource(name).Patch(ctx, o, p, opts...)
			},
		}).Build()
	w.Reconciler = &Reconciler{Client: c, Clock: w.clock}
	return w
}

func (w *world) reconcile() (reconcile.Result, error) {
	return w.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns"}})
}

func (w *world) mustReconcile() reconcile.Result {
	w.t.Helper()
	result, err := w.reconcile()
	if err != nil {
		w.t.Fatal(err)
	}
	return result
}

// said is the reason and the message of a condition of a route.
func (w *world) said(name, condition string) string {
	w.t.Helper()
	r := &v1alpha1.ModelRoute{}
	if err := w.Client.Get(w.t.Context(), types.NamespacedName{Namespace: "ns", Name: name}, r); err != nil {
		w.t.Fatal(err)
	}
	c := meta.FindStatusCondition(r.Status.Conditions, condition)
	if c == nil {
		return ""
	}
	return c.Reason + ": " + c.Message
}

func pool(name, fleet string) *v1alpha1.InferencePool {
	p := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	p.Spec.Model.Name = v1alpha1.ModelName("model-" + name)
	p.Spec.Model.Adapters.Discovery = v1alpha1.Disabled
	p.Spec.Picker.Mode = v1alpha1.PickerManaged
	if fleet != "" {
		p.Spec.Picker.Mode, p.Spec.Picker.FleetRef.Name = v1alpha1.PickerOfFleet, fleet
	}
	return p
}

// route is one to pools, that was created at a second.
func route(name string, second int, model v1alpha1.ModelName, pools ...v1alpha1.PoolName) *v1alpha1.ModelRoute {
	r := &v1alpha1.ModelRoute{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, Generation: 1, CreationTimestamp: metav1.NewTime(start.Add(time.Duration(second) * time.Second)),
	}}
	r.Spec.Models = []v1alpha1.ModelName{model}
	r.Spec.Rules = []v1alpha1.ModelRouteRule{{}}
	for _, p := range pools {
		r.Spec.Rules[0].Backends = append(r.Spec.Rules[0].Backends, v1alpha1.ModelRouteBackend{Pool: p})
	}
	return r
}

func TestTheStatusSaysWhichRoutesAreApplied(t *testing.T) {
	renamed := route("renamed", 1, "renamed", "a")
	renamed.Spec.Rules[0].Backends[0].ModelName = "unknown"
	fallback := route("fallback", 1, "fallback", "a")
	fallback.Spec.Rules[0].Fallback = []v1alpha1.ModelRouteFallback{{Pool: "managed"}}
	w := newWorld(t,
		pool("a", "default"), pool("b", "default"), pool("c", "other"), pool("managed", ""),
		route("fine", 1, "fine", "a", "b"), route("older", 1, "chat", "a"), route("younger", 2, "chat", "a"),
		route("early", 1, "early", "a", "coming"), route("unowned", 1, "unowned", "managed"), route("wide", 1, "wide", "a", "c"),
		renamed, fallback, route("elsewhere", 1, "elsewhere", "c"),
	)
	w.mustReconcile()
	const pools = "ResolvedRefs: the pools are of the PickerFleet default"
	for name, want := range map[string][2]string{
		"fine":      {"Accepted: ", pools},
		"older":     {"Accepted: ", pools},
		"younger":   {`NameTaken: spec.models[0]: Duplicate value: "chat, a name of ModelRoute ns/older"`, pools},
		"early":     {"Accepted: ", "ReferenceNotFound: spec.rules[0].backends[1].pool: InferencePool ns/coming does not exist"},
		"unowned":   {"Accepted: ", "PoolWithoutFleet: spec.rules[0].backends[0].pool: InferencePool ns/managed is of no PickerFleet: its picker.mode is Managed, and only pickers of a fleet follow routes"},
		"wide":      {"Accepted: ", "SeveralFleets: spec.rules[0].backends[1].pool: InferencePool ns/c is of the PickerFleet other, another pool of the route of default"},
		"renamed":   {"Accepted: ", "ModelNameUnknown: spec.rules[0].backends[0].modelName: unknown is none of the names of InferencePool ns/a"},
		"fallback":  {"Accepted: ", "PoolWithoutFleet: spec.rules[0].fallback[0].pool: InferencePool ns/managed is of no PickerFleet: its picker.mode is Managed, and only pickers of a fleet follow routes"},
		"elsewhere": {"Accepted: ", "ResolvedRefs: the pools are of the PickerFleet other"},
	} {
		for i, condition := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionResolvedRefs} {
			if got := w.said(name, condition); got != want[i] {
				t.Errorf("%s %s:\n got %s\nwant %s", name, condition, got, want[i])
			}
		}
	}
	writes := w.writes
	w.clock.SetTime(start.Add(time.Hour))
	if w.mustReconcile(); w.writes != writes {
		t.Errorf("%d writes without a change", w.writes-writes)
	}
	if err := w.Client.Create(t.Context(), pool("coming", "default")); err != nil {
		t.Fatal(err)
	}
	if w.mustReconcile(); w.writes != writes+1 || w.said("early", v1alpha1.ConditionResolvedRefs) != pools {
		t.Errorf("a pool that has come: %d writes, want 1; %s", w.writes-writes, w.said("early", v1alpha1.ConditionResolvedRefs))
	}
	if err := w.Client.Delete(t.Context(), route("older", 1, "chat")); err != nil {
		t.Fatal(err)
	}
	if w.mustReconcile(); w.writes != writes+2 || w.said("younger", v1alpha1.ConditionAccepted) != "Accepted: " {
		t.Errorf("the older route is gone: %d writes, want 2; %s", w.writes-writes, w.said("younger", v1alpha1.ConditionAccepted))
	}
}

// TestTheStatusIsWhatPickersDo: Accepted is True of exactly the routes that the translation of a picker applies.
func TestTheStatusIsWhatPickersDo(t *testing.T) {
	a, err := crdadmission.New()
	if err != nil {
		t.Fatal(err)
	}
	defaults, err := a.DefaultPolicy()
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(5, 6))
	for range 50 {
		var objects []client.Object
		var routes []*v1alpha1.ModelRoute
		for i := range 12 {
			r := route(fmt.Sprint(i), random.IntN(3), v1alpha1.ModelName(fmt.Sprint(random.IntN(6))), "a")
			if more := v1alpha1.ModelName(fmt.Sprint(random.IntN(6))); more != r.Spec.Models[0] {
				r.Spec.Models = append(r.Spec.Models, more)
			}
			objects, routes = append(objects, r), append(routes, r)
		}
		w := newWorld(t, objects...)
		w.mustReconcile()
		var want, got []string
		for _, r := range routes {
			if strings.HasPrefix(w.said(r.Name, v1alpha1.ConditionAccepted), "Accepted") {
				want = append(want, r.Name)
			}
		}
		translator, err := config.NewTranslator(config.Settings{}, defaults)
		if err != nil {
			t.Fatal(err)
		}
		for i := range routes { // a picker that has known them one by one
			state := translator.Translate(config.Objects{Routes: routes[:i+1]})
			got = nil
			for _, s := range state.RouteSpecs {
				got = append(got, s.Name)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Fatalf("a picker applies %q, and the status says %q", got, want)
		}
	}
}

// TestAFailedWriteLeavesTheOthers, and is tried again.
func TestAFailedWriteLeavesTheOthers(t *testing.T) {
	w := newWorld(t, route("a", 1, "a", "m"), route("b", 1, "b", "m"), route("c", 1, "c", "m"))
	w.fail = func(name string) error {
		if name == "a" {
			return errors.New("refused")
		}
		return nil
	}
	if _, err := w.reconcile(); err == nil || !strings.Contains(err.Error(), "writing the status of route ns/a: refused") {
		t.Errorf("error %v", err)
	}
	if w.writes != 2 {
		t.Errorf("%d writes, want those of b and c", w.writes)
	}
	w.fail = func(string) error { return nil }
	if w.mustReconcile(); w.writes != 3 {
		t.Errorf("%d writes, want 3", w.writes)
	}
}

// others manage some pools.
type others map[string]bool

func (o others) ManagesPool(_ context.Context, pool types.NamespacedName) (bool, error) {
	return o[pool.Name], nil
}

// TestRoutesOfAnotherInstallationAreLeftAlone, and looked at again: it might leave.
func TestRoutesOfAnotherInstallationAreLeftAlone(t *testing.T) {
	w := newWorld(t, pool("a", "default"), pool("b", "default"), route("mine", 1, "mine", "a"), route("theirs", 1, "theirs", "a", "b"))
	w.Others = others{"b": true}
	if result := w.mustReconcile(); result.RequeueAfter != othersAfter || w.writes != 1 || w.said("theirs", v1alpha1.ConditionAccepted) != "" {
		t.Errorf("again after %s, %d writes, theirs has %q", result.RequeueAfter, w.writes, w.said("theirs", v1alpha1.ConditionAccepted))
	}
	w.Others = others{}
	if result := w.mustReconcile(); result.RequeueAfter != 0 || w.said("theirs", v1alpha1.ConditionAccepted) == "" {
		t.Errorf("again after %s, theirs has no status", result.RequeueAfter)
	}
}

// TestConditionsOfOthersStay: the controller owns its two.
func TestConditionsOfOthersStay(t *testing.T) {
	r := route("a", 1, "a", "m")
	r.Status.Conditions = []metav1.Condition{{Type: "example.com/Seen", Status: metav1.ConditionTrue, Reason: "Seen", LastTransitionTime: metav1.NewTime(start)}}
	w := newWorld(t, r)
	w.mustReconcile()
	if got := w.said("a", "example.com/Seen"); got != "Seen: " {
		t.Errorf("the other's condition is %q", got)
	}
	if got := w.said("a", v1alpha1.ConditionAccepted); got != "Accepted: " {
		t.Errorf("Accepted is %q", got)
	}
}

// TestOneRequestIsForANamespace: ten thousand changes of one moment are decided about once.
func TestOneRequestIsForANamespace(t *testing.T) {
	requests := map[reconcile.Request]bool{}
	for i := range 10_000 {
		for _, r := range namespaceOf(t.Context(), route(fmt.Sprint(i), i, "m", "a")) {
			requests[r] = true
		}
	}
	if len(requests) != 1 {
		t.Errorf("%d requests", len(requests))
	}
}

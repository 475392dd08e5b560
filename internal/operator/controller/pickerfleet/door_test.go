package pickerfleet

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// behindGateways is a world whose cluster has the kinds of gateways.
func behindGateways(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := newWorld(t, objects...)
	for _, kind := range []schema.GroupVersionKind{resources.GIEKind, resources.RouteKind} {
		w.api.Scheme().AddKnownTypeWithName(kind, &unstructured.Unstructured{})
		kind.Kind += "List"
		w.api.Scheme().AddKnownTypeWithName(kind, &unstructured.UnstructuredList{})
	}
	w.r.Config = func() resources.Config { return resources.Config{PickerImage: "picker", GIE: true, Routes: true} }
	return w
}

// member is a pool of a fleet, or with pickers of its own if that is empty, whose pods have the label app.
func member(name, fleet string, day int) *v1alpha1.InferencePool {
	p := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: big.Namespace, Name: name, UID: types.UID(name),
		CreationTimestamp: metav1.Date(2026, 1, day, 0, 0, 0, 0, metav1.Now().Location())}}
	p.Spec.Selector.MatchLabels = map[string]v1alpha1.LabelValue{"app": v1alpha1.LabelValue(name)}
	p.Spec.Engine.Ports.HTTP = 8000
	if fleet != "" {
		p.Spec.Picker.Mode, p.Spec.Picker.FleetRef.Name = v1alpha1.PickerOfFleet, fleet
	}
	return p
}

func pod(name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: big.Namespace, Name: name, UID: types.UID(name), Labels: labels}}
}

// engines are the names of the pods that the gateways of the fleet select.
func (w *world) engines() (names []string) {
	w.Helper()
	selector, _, _ := unstructured.NestedStringMap(resources.FleetPool(resources.Fleet{PickerFleet: fleet(nil)}).Object, "spec", "selector", "matchLabels")
	var pods corev1.PodList
	if err := w.api.List(w.Context(), &pods, client.InNamespace(big.Namespace), client.MatchingLabels(selector)); err != nil {
		w.Fatal(err)
	}
	for i := range pods.Items {
		names = append(names, pods.Items[i].Name)
	}
	slices.Sort(names)
	return names
}

// TestGatewaysSelectTheEnginesOfTheFleetAlone: not those of other pools and other fleets, whatever labels pods have already, no worker of a
// group, and no picker.
func TestGatewaysSelectTheEnginesOfTheFleetAlone(t *testing.T) {
	forged := v1alpha1.LabelFleetPrefix + big.Name
	w := behindGateways(t, fleet(nil), member("a", "big", 1), member("b", "big", 2), member("own", "", 1), member("other", "small", 1),
		pod("a-0", map[string]string{"app": "a"}),
		pod("b-0", map[string]string{"app": "b", forged: "wrong"}),
		pod("own-0", map[string]string{"app": "own", forged: v1alpha1.FleetEngine}),
		pod("other-0", map[string]string{"app": "other", forged: v1alpha1.FleetEngine}),
		pod("nobodys", map[string]string{"app": "web", forged: v1alpha1.FleetEngine}),
		pod("worker", map[string]string{"app": "a", config.LabelMember: "1"}),
		pod("picker", resources.FleetPods("big")))
	// A pool of the fleet that selects what an older pool has.
	greedy := member("greedy", "big", 9)
	greedy.Spec.Selector.MatchLabels = map[string]v1alpha1.LabelValue{"app": "other"}
	if err := w.api.Create(t.Context(), greedy); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	if got := w.engines(); !slices.Equal(got, []string{"a-0", "b-0"}) {
		t.Errorf("gateways select %v", got)
	}
	// A pool leaves: its pods are selected until the fleet does not serve it any more.
	a := &v1alpha1.InferencePool{}
	w.there(a, "a")
	a.Spec.Picker = v1alpha1.Picker{Mode: v1alpha1.PickerManaged}
	a.Status.Picker.FleetName = "big"
	if err := w.api.Update(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	if got := w.engines(); !slices.Equal(got, []string{"a-0", "b-0"}) {
		t.Errorf("while the fleet serves pool a, gateways select %v", got)
	}
	a.Status.Picker.FleetName = ""
	if err := w.api.Update(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	if got := w.engines(); !slices.Equal(got, []string{"b-0"}) {
		t.Errorf("without pool a, gateways select %v", got)
	}
	// The fleet ends, and then its last pools.
	if err := w.api.Delete(t.Context(), fleet(nil)); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	if got := w.engines(); !slices.Equal(got, []string{"b-0"}) {
		t.Errorf("after the fleet, gateways select %v", got)
	}
	for _, name := range []string{"b", "greedy"} {
		if err := w.api.Delete(t.Context(), member(name, "big", 1)); err != nil {
			t.Fatal(err)
		}
	}
	w.reconcile()
	if got := w.engines(); len(got) != 0 {
		t.Errorf("after the last pool, gateways select %v", got)
	}
}

// TestAPodIsLookedAtForItsFleets: those of its pool, and those whose label it has.
func TestAPodIsLookedAtForItsFleets(t *testing.T) {
	w := behindGateways(t, member("a", "big", 1))
	for name, tc := range map[string]struct {
		labels map[string]string
		want   []types.NamespacedName
	}{
		"an engine":           {map[string]string{"app": "a"}, []types.NamespacedName{big}},
		"a pod with a label":  {map[string]string{v1alpha1.LabelFleetPrefix + "small": "x"}, []types.NamespacedName{{Namespace: "llm", Name: "small"}}},
		"a pod of no pool":    {map[string]string{"app": "web"}, nil},
		"a picker of a fleet": {resources.FleetPods("big"), nil},
	} {
		if got := w.r.ofPod(t.Context(), pod("p", tc.labels)); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func (w *world) gatewayObject(kind schema.GroupVersionKind) *unstructured.Unstructured {
	w.Helper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	if !w.there(o, "big-fleet") {
		return nil
	}
	return o
}

// TestAFleetSaysWhatGatewaysSayOfIt, and makes what they see as long as its spec says so.
func TestAFleetSaysWhatGatewaysSayOfIt(t *testing.T) {
	w := behindGateways(t, fleet(func(s *v1alpha1.PickerFleetSpec) {
		s.Gateway.Mode, s.Gateway.ParentRefs = v1alpha1.GatewayAuto, []gwapiv1.ParentReference{{Name: "g"}}
	}), member("a", "big", 1), pod("a-0", map[string]string{"app": "a"}))
	w.reconcile()
	w.expect(v1alpha1.ConditionGatewayAccepted, "False NotReferenced")
	door, route := w.gatewayObject(resources.GIEKind), w.gatewayObject(resources.RouteKind)
	if door == nil || route == nil {
		t.Fatalf("gateways see %v and %v", door, route)
	}
	door.Object["status"] = map[string]any{"parents": []any{map[string]any{"parentRef": map[string]any{"name": "g"},
		"conditions": []any{map[string]any{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}}}}}
	if err := w.api.Update(t.Context(), door); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	w.expect(v1alpha1.ConditionGatewayAccepted, "True Accepted", "by g")

	f := &v1alpha1.PickerFleet{}
	w.there(f, big.Name)
	f.Spec.Gateway, f.Generation = v1alpha1.FleetGateway{Mode: v1alpha1.GatewayDisabled}, 2
	if err := w.api.Update(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	w.expect(v1alpha1.ConditionGatewayAccepted, "Unknown Disabled")
	if w.gatewayObject(resources.GIEKind) != nil || w.gatewayObject(resources.RouteKind) != nil || len(w.engines()) != 0 {
		t.Errorf("gateways still see the fleet, with the pods %v", w.engines())
	}
}

// TestAPoolOfTheFleetsNameKeepsItsDoor: the pool big-fleet has what gateways see under this name, and the fleet's pickers serve without it.
func TestAPoolOfTheFleetsNameKeepsItsDoor(t *testing.T) {
	theirs := resources.GatewayPool(member("big-fleet", "", 1), resources.Move{})
	theirs.SetOwnerReferences([]metav1.OwnerReference{resources.Owner(member("big-fleet", "", 1))})
	w := behindGateways(t, fleet(func(s *v1alpha1.PickerFleetSpec) { s.Gateway.Mode = v1alpha1.GatewayAuto }), member("a", "big", 1), theirs)
	w.reconcile()
	w.expect(v1alpha1.ConditionGatewayAccepted, "False NameTaken", "InferencePool big-fleet")
	if got := w.condition(v1alpha1.ConditionAvailable); got == "" || got[:len("False NameTaken")] == "False NameTaken" {
		t.Errorf("Available is %s", got)
	}
	selector, _, _ := unstructured.NestedStringMap(w.gatewayObject(resources.GIEKind).Object, "spec", "selector", "matchLabels")
	if selector["app"] != "big-fleet" {
		t.Errorf("the pool of another owner selects %v", selector)
	}
	if got := w.r.ofDoor(t.Context(), theirs); len(got) != 1 || got[0].NamespacedName != big {
		t.Errorf("when it goes, %v is looked at", got)
	}
}

package inferencepool

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
)

// TestClientsFollowToPickersThatServe: in every state, and by every way through the states.
func TestClientsFollowToPickersThatServe(t *testing.T) {
	for name, tc := range map[string]struct {
		at                 standing
		reporters, clients string
	}{
		"nothing to do":                                 {standing{"f", "f", "f", false, false, true, true, true}, "f", "f"},
		"the target does not serve yet":                 {standing{"f", "", "", false, false, true, false, true}, "", ""},
		"first the reporters":                           {standing{"f", "", "", false, false, true, true, true}, "f", ""},
		"the caches are not known":                      {standing{"f", "f", "", false, false, true, true, false}, "f", ""},
		"then the clients":                              {standing{"f", "f", "", false, false, true, true, true}, "f", "f"},
		"back, before the clients have gone":            {standing{"", "f", "", false, false, true, true, true}, "", ""},
		"back, after they have":                         {standing{"", "f", "f", false, false, true, true, true}, "", "f"},
		"the target went on the way":                    {standing{"f", "f", "", false, false, true, false, false}, "f", ""},
		"what was before is gone":                       {standing{"f", "", "", true, false, true, false, false}, "f", "f"},
		"it is gone, and the target cannot serve":       {standing{"f", "", "", true, false, false, false, false}, "", ""},
		"it is down, and the target does not serve yet": {standing{"g", "f", "f", false, true, true, false, false}, "f", "f"},
		"it is down, and the target serves":             {standing{"g", "f", "f", false, true, true, true, false}, "g", "g"},
		"its own are down, and the target serves":       {standing{"f", "", "", false, true, true, true, false}, "f", "f"},
		"from fleet to fleet":                           {standing{"g", "f", "f", false, false, true, true, false}, "g", "f"},
	} {
		if reporters, clients := tc.at.next(); reporters != tc.reporters || clients != tc.clients {
			t.Errorf("%s: reporters go to %q and clients to %q, want %q and %q", name, reporters, clients, tc.reporters, tc.clients)
		}
	}
	for _, target := range []string{"", "f"} {
		for bits := range 1 << 5 {
			on := func(bit int) bool { return bits&(1<<bit) != 0 }
			at := standing{target: target, gone: false, down: on(4), fit: true, serves: on(0), known: on(1)}
			if on(2) {
				at.reporters = "f"
			}
			if on(3) {
				at.clients = "f"
			}
			reporters, clients := at.next()
			if clients != at.clients && (!at.serves || clients != target || reporters != target) {
				t.Errorf("%+v: clients go to %q, reporters to %q", at, clients, reporters)
			}
			at.serves, at.known = true, true
			for range 2 {
				at.reporters, at.clients = at.next()
			}
			if at.reporters != target || at.clients != target {
				t.Errorf("two steps end at %+v", at)
			}
		}
	}
}

// TestAPoolStaysWithAFleetThatIsDown: its pickers are all unready for a moment while the pool is on the way to a fleet that does not
// exist. Once they were left, nothing would lead clients back. Pickers that are not there at all are left.
func TestAPoolStaysWithAFleetThatIsDown(t *testing.T) {
	w, ctx := newWorld(t, func(p *v1alpha1.InferencePool) {
		p.Spec.Picker.Mode, p.Spec.Picker.FleetRef.Name = v1alpha1.PickerOfFleet, "misspelt"
	}), t.Context()
	ns, fleet := poolKey.Namespace, map[string]string{resources.LabelFleet: "a"}
	for _, name := range []string{resources.PickerName(poolKey.Name), resources.PeersName(poolKey.Name)} {
		w.must(w.api.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(w.pool(), v1alpha1.GroupVersion.WithKind(v1alpha1.KindInferencePool)),
			}},
			Spec: corev1.ServiceSpec{Selector: fleet},
		}))
	}
	pickers := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: resources.NamesOfFleet("a").Pickers, Labels: fleet}}
	w.must(w.api.Create(ctx, pickers))
	leads := func() resources.Move {
		r := &cluster{w.r.begin(w.pool()), &observed{}}
		w.must(r.findFleets(ctx))
		return r.move
	}
	if m := leads(); m.Clients != "a" || m.Reporters != "a" {
		t.Errorf("clients are sent to %q and reporters to %q while the pickers of a are down", m.Clients, m.Reporters)
	}
	w.must(w.api.Delete(ctx, pickers))
	if m := leads(); m.Clients != "misspelt" || m.Reporters != "misspelt" {
		t.Errorf("clients are sent to %q and reporters to %q when there are no pickers of a", m.Clients, m.Reporters)
	}
}

// TestPickersKnowAPoolWithItsTenants: clients do not go to a picker that would refuse the keys of tenants, or does not know a cache.
func TestPickersKnowAPoolWithItsTenants(t *testing.T) {
	serving := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}, Status: corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "10.0.0.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}}
	if !config.PodServes(serving) {
		t.Fatal("the pod does not serve")
	}
	r := &cluster{&scope{}, &observed{pods: []*corev1.Pod{serving}}}
	state := func(resolved, synced bool) *operatorfeed.State {
		return &operatorfeed.State{Resolved: resolved, Pods: map[string]operatorfeed.PodState{string(serving.UID): {Synced: synced}}}
	}
	for name, tc := range map[string]struct {
		states []*operatorfeed.State
		want   bool
	}{
		"all is known":           {[]*operatorfeed.State{state(true, true), state(true, true)}, true},
		"one lacks the tenants":  {[]*operatorfeed.State{state(true, true), state(false, true)}, false},
		"one lacks a cache":      {[]*operatorfeed.State{state(true, false), state(true, true)}, false},
		"of an earlier version":  {[]*operatorfeed.State{state(false, true)}, false},
		"no pod, but no tenants": {[]*operatorfeed.State{{}}, false},
	} {
		if got := r.knownBy(tc.states); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

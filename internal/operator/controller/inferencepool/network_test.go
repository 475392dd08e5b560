package inferencepool

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/status"
)

func TestEnginesClosed(t *testing.T) {
	gate := types.NamespacedName{Namespace: "infra", Name: "gate"}
	closed := func(p *v1alpha1.InferencePool) { p.Spec.Engine.NetworkPolicy.Mode = v1alpha1.EngineNetworkClosed }
	from := func(p *v1alpha1.InferencePool) {
		p.Spec.Engine.NetworkPolicy.From = []v1alpha1.NetworkPeer{{PodSelector: &metav1.LabelSelector{}}, {IPBlock: v1alpha1.IPBlock{CIDR: "10.0.0.0/8"}}}
	}
	for name, tc := range map[string]struct {
		pool   func(*v1alpha1.InferencePool)
		facts  networkFacts
		want   string
		phrase string // that the message must contain
	}{
		"no gateway":              {closed, networkFacts{}, "True Closed", "none"},
		"a gateway":               {closed, networkFacts{gateways: []types.NamespacedName{gate}}, "True Closed", "infra/gate"},
		"peers of the user":       {from, networkFacts{}, "True Closed", "2 peers"},
		"a gateway without pods":  {closed, networkFacts{missing: []string{"Gateway infra/gate"}}, "False GatewayPodsMissing", "Gateway infra/gate"},
		"one that the user names": {from, networkFacts{missing: []string{"Gateway infra/gate"}}, "True GatewayPodsNamed", "Gateway infra/gate"},
		"one that is not seen":    {closed, networkFacts{unseen: []string{"infra/gate (in infra)"}}, "Unknown GatewayNotWatched", "infra/gate (in infra)"},
		"missing counts more than not seen": {
			closed, networkFacts{missing: []string{"Gateway a/b"}, unseen: []string{"infra/gate (in infra)"}}, "False GatewayPodsMissing", "a/b",
		},
		"without the policy": {func(*v1alpha1.InferencePool) {}, networkFacts{absent: true}, "False PolicyMissing", "all clients"},
		"open by choice":     {func(p *v1alpha1.InferencePool) { p.Spec.Engine.NetworkPolicy.Mode = v1alpha1.EngineNetworkOpen }, networkFacts{}, "Unknown Open", "all clients"},
		"open because the pickers are not known": {
			func(p *v1alpha1.InferencePool) { p.Spec.Picker.Mode = v1alpha1.PickerExternal }, networkFacts{}, "False PickersUnnamed", "engine.networkPolicy.from",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := enginesClosed(newPool(tc.pool), &tc.facts)
			if is := string(got.Status) + " " + got.Reason; is != tc.want || !strings.Contains(got.Message, tc.phrase) {
				t.Errorf("%s: %s; want %s with %q", is, got.Message, tc.want, tc.phrase)
			}
		})
	}
}

// dataPlane makes a pod of a gateway.
func (w *world) dataPlane(namespace string, labels map[string]string) *corev1.Pod {
	w.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gate-0", Labels: labels}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	w.must(w.api.Create(context.Background(), pod))
	return pod
}

// enginePolicy is the NetworkPolicy of the pool's engines, nil for none.
func (w *world) enginePolicy() *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{}
	err := w.api.Get(context.Background(), poolKey, p)
	if apierrors.IsNotFound(err) {
		return nil
	}
	w.must(err)
	return p
}

// admits reports whether a policy admits the pods of gateway NAME of a namespace by Gateway API's label.
func admits(p *networkingv1.NetworkPolicy, namespace, name string) bool {
	for _, rule := range p.Spec.Ingress {
		for _, peer := range rule.From {
			if peer.PodSelector != nil && peer.PodSelector.MatchLabels[resources.LabelGateway] == name &&
				slices.Contains(peer.NamespaceSelector.MatchExpressions[0].Values, namespace) {
				return true
			}
		}
	}
	return false
}

func behind(refs ...gwapiv1.ParentReference) func(*v1alpha1.InferencePool) {
	return func(p *v1alpha1.InferencePool) {
		p.Spec.Gateway = v1alpha1.Gateway{Mode: v1alpha1.GatewayAuto, ParentRefs: refs}
	}
}

func noRefusal(*unstructured.Unstructured) error { return nil }

// TestAGatewayWithoutPodsIsNamedUntilTheyCome: its requests would otherwise time out without a reason.
func TestAGatewayWithoutPodsIsNamedUntilTheyCome(t *testing.T) {
	gate := gwapiv1.ParentReference{Namespace: ptr.To[gwapiv1.Namespace]("infra"), Name: "gate"}
	for name, at := range map[string]struct {
		namespace string
		labels    map[string]string
	}{
		"Gateway API's label":   {"infra", map[string]string{resources.LabelGateway: "gate"}},
		"Envoy Gateway's label": {resources.EnvoyGatewayNamespace, map[string]string{resources.LabelEnvoyGateway: "gate", resources.LabelEnvoyGatewaySpace: "infra"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, behind(gate))
			w.withChildren(noRefusal)
			other := w.dataPlane("elsewhere", map[string]string{resources.LabelGateway: "gate"}) // of another Gateway of this name
			w.serve()
			if got := w.condition(v1alpha1.ConditionEnginesClosed); got != "False GatewayPodsMissing" {
				t.Fatalf("without pods: %s", got)
			}
			if p := w.enginePolicy(); p == nil || !admits(p, "infra", "gate") || admits(p, other.Namespace, "gate") {
				t.Fatalf("the gateway is not admitted before its pods come, or another one is: %+v", p)
			}
			pod := w.dataPlane(at.namespace, at.labels)
			w.lasting()
			if got := w.condition(v1alpha1.ConditionEnginesClosed); got != "True Closed" {
				t.Errorf("with pods: %s", got)
			}
			pod.Status.Phase = corev1.PodFailed
			w.must(w.api.Status().Update(context.Background(), pod))
			w.lasting()
			if got := w.condition(v1alpha1.ConditionEnginesClosed); got != "False GatewayPodsMissing" {
				t.Errorf("when the last pod has ended: %s", got)
			}
		})
	}
}

// TestGatewaysOfTheFleetAreAdmitted though the pool itself is shown to none, with the fleet and without it.
func TestGatewaysOfTheFleetAreAdmitted(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) {
		p.Spec.Gateway.Mode, p.Spec.Picker.Mode = v1alpha1.GatewayDisabled, v1alpha1.PickerOfFleet
	})
	w.withChildren(noRefusal)
	fleet := &v1alpha1.PickerFleet{ObjectMeta: metav1.ObjectMeta{Namespace: poolKey.Namespace, Name: v1alpha1.DefaultFleet}}
	fleet.Spec.Gateway = v1alpha1.FleetGateway{Mode: v1alpha1.GatewayAuto, ParentRefs: []gwapiv1.ParentReference{{Name: "gate"}}}
	w.must(w.api.Create(context.Background(), fleet))
	door := resources.FleetPool(resources.Fleet{PickerFleet: fleet})
	w.must(unstructured.SetNestedSlice(door.Object, []any{map[string]any{
		"parentRef":  map[string]any{"namespace": "theirs", "name": "other"},
		"conditions": []any{map[string]any{"type": "Accepted", "status": "True", "reason": "Accepted", "message": ""}},
	}}, "status", "parents"))
	w.must(w.api.Create(context.Background(), door))
	w.serve()
	if p := w.enginePolicy(); p == nil || !admits(p, poolKey.Namespace, "gate") || !admits(p, "theirs", "other") {
		t.Errorf("the fleet's gateways are not admitted: %+v", p)
	}
	w.must(w.api.Delete(context.Background(), fleet))
	w.lasting()
	if p := w.enginePolicy(); p == nil || !admits(p, "theirs", "other") {
		t.Errorf("what the deleted fleet has left is not admitted: %+v", p)
	}
}

// TestParentsThatNoPolicyCanAdmitHoldNothingUp: one of a name that is no label value would have the API server refuse the
// policy, and the engines stay open.
func TestParentsThatNoPolicyCanAdmitHoldNothingUp(t *testing.T) {
	long := strings.Repeat("g", 64)
	for name, tc := range map[string]struct {
		ref     gwapiv1.ParentReference
		watched []string
		want    string
		phrase  string
	}{
		"a long name":      {gwapiv1.ParentReference{Name: gwapiv1.ObjectName(long)}, nil, "False GatewayPodsMissing", "llm/" + long},
		"a mesh's Service": {gwapiv1.ParentReference{Group: ptr.To[gwapiv1.Group](""), Kind: ptr.To[gwapiv1.Kind]("Service"), Name: "web"}, nil, "False GatewayPodsMissing", "Service llm/web"},
		"a namespace that is not watched": {
			gwapiv1.ParentReference{Namespace: ptr.To[gwapiv1.Namespace]("infra"), Name: "gate"}, []string{"llm"}, "Unknown GatewayNotWatched", "infra/gate (in infra)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, behind(tc.ref))
			w.withChildren(noRefusal)
			w.r.Namespaces = tc.watched
			w.serve()
			c := meta.FindStatusCondition(w.pool().Status.Conditions, v1alpha1.ConditionEnginesClosed)
			if c == nil || string(c.Status)+" "+c.Reason != tc.want || !strings.Contains(c.Message, tc.phrase) {
				t.Errorf("%+v, want %s with %q", c, tc.want, tc.phrase)
			}
			p := w.enginePolicy()
			if p == nil {
				t.Fatal("no policy")
			}
			for _, rule := range p.Spec.Ingress {
				if len(rule.From) == 0 {
					t.Errorf("a rule admits all: %+v", rule)
				}
				for _, peer := range rule.From {
					if _, err := metav1.LabelSelectorAsSelector(peer.PodSelector); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

// TestAcceptedGatewaysOfOthersRoutesAreAdmitted: a route that the user writes sends requests to the engines, too. One that the
// gateway does not accept sends none, and anyone could name this pool in one.
func TestAcceptedGatewaysOfOthersRoutesAreAdmitted(t *testing.T) {
	for status, want := range map[string]bool{"True": true, "False": false, "Unknown": false} {
		t.Run(status, func(t *testing.T) {
			w := newWorld(t, behind())
			w.withChildren(noRefusal)
			w.serve()
			pool := &unstructured.Unstructured{}
			pool.SetGroupVersionKind(resources.GIEKind)
			w.must(w.api.Get(context.Background(), poolKey, pool))
			w.must(unstructured.SetNestedSlice(pool.Object, []any{map[string]any{
				"parentRef":  map[string]any{"group": gwapiv1.GroupName, "kind": "Gateway", "namespace": "theirs", "name": "gate"},
				"conditions": []any{map[string]any{"type": "Accepted", "status": status, "reason": "Said", "message": ""}},
			}}, "status", "parents"))
			w.must(w.api.Update(context.Background(), pool))
			w.lasting()
			if got := admits(w.enginePolicy(), "theirs", "gate"); got != want {
				t.Errorf("admitted: %v", got)
			}
		})
	}
}

// TestARefusedNetworkPolicyIsNamed: a selector that only the API server can check.
func TestARefusedNetworkPolicyIsNamed(t *testing.T) {
	w := newWorld(t)
	w.withChildren(func(o *unstructured.Unstructured) error {
		if o.GetKind() == "NetworkPolicy" && o.GetName() == poolKey.Name {
			return apierrors.NewForbidden(anyResource, o.GetName(), errors.New("a valid selector must be used"))
		}
		return nil
	})
	w.serve()
	c := meta.FindStatusCondition(w.pool().Status.Conditions, v1alpha1.ConditionAccepted)
	if c == nil || c.Reason != status.ReasonObjectRefused || !strings.Contains(c.Message, "a valid selector must be used") {
		t.Errorf("%+v", c)
	}
	if got := w.condition(v1alpha1.ConditionEnginesClosed); got != "False PolicyMissing" {
		t.Errorf("engines without their policy are %s", got)
	}
}

func TestPoolsFollowThePodsOfGateways(t *testing.T) {
	pod := func(phase corev1.PodPhase, labels ...string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "infra", Labels: map[string]string{}}, Status: corev1.PodStatus{Phase: phase}}
		for _, l := range labels {
			p.Labels[l] = "gate"
		}
		return p
	}
	running, ended := pod(corev1.PodRunning, resources.LabelGateway), pod(corev1.PodFailed, resources.LabelGateway)
	for name, tc := range map[string]struct{ got, want bool }{
		"it comes":                 {gatewayPods.Create(event.CreateEvent{Object: running}), true},
		"one of Envoy Gateway":     {gatewayPods.Create(event.CreateEvent{Object: pod("", resources.LabelEnvoyGateway)}), true},
		"it goes":                  {gatewayPods.Delete(event.DeleteEvent{Object: running}), true},
		"it ends":                  {gatewayPods.Update(event.UpdateEvent{ObjectOld: running, ObjectNew: ended}), true},
		"it is labelled":           {gatewayPods.Update(event.UpdateEvent{ObjectOld: pod(""), ObjectNew: running}), true},
		"its status changes":       {gatewayPods.Update(event.UpdateEvent{ObjectOld: pod(corev1.PodPending, resources.LabelGateway), ObjectNew: running}), false},
		"another pod":              {gatewayPods.Create(event.CreateEvent{Object: pod(corev1.PodRunning)}), false},
		"another pod's status":     {gatewayPods.Update(event.UpdateEvent{ObjectOld: pod(""), ObjectNew: pod(corev1.PodFailed)}), false},
		"another pod that goes":    {gatewayPods.Delete(event.DeleteEvent{Object: pod("")}), false},
		"a pod that is no gateway": {ofGateway(pod("", "app")), false},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %v", name, tc.got)
		}
	}
	w := newWorld(t)
	if got := w.r.behindGateways(context.Background(), running); len(got) != 1 || got[0].NamespacedName != client.ObjectKeyFromObject(w.pool()) {
		t.Errorf("a gateway's pod of another namespace concerns %v", got)
	}
	w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Gateway.Mode = v1alpha1.GatewayDisabled })
	if got := w.r.behindGateways(context.Background(), running); len(got) != 0 {
		t.Errorf("without gateways: %v", got)
	}
}

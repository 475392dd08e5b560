package inferencepool

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// says is a gateway with conditions, each written TYPE=STATUS.
func says(name string, conditions ...string) gatewayParent {
	p := gatewayParent{}
	p.ParentRef.Name = name
	for _, c := range conditions {
		kind, status, _ := strings.Cut(c, "=")
		p.Conditions = append(p.Conditions, metav1.Condition{
			Type: kind, Status: metav1.ConditionStatus(status), Reason: "Why", Message: "because of " + name,
		})
	}
	return p
}

// A stranger's route must not change a pool's condition.
func TestARouteOfAnotherNamespaceCountsWhereAGatewayFollowsIt(t *testing.T) {
	const route = `{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {namespace: web, name: split}, spec: {rules: [{backendRefs: [
		{group: inference.networking.k8s.io, kind: InferencePool, name: chat, namespace: llm},
		{group: inference.networking.k8s.io, kind: InferencePool, name: chat-new, namespace: llm}]}]}, status: {parents: %s}}`
	const parent = `[{parentRef: {name: gateway}, controllerName: istio.io/gateway-controller, conditions: [
		{type: Accepted, status: "%s", reason: Why}, {type: ResolvedRefs, status: "%s", reason: %s}]}]`
	pool := types.NamespacedName{Namespace: "llm", Name: "chat"}
	for name, tc := range map[string]struct {
		parents string
		want    string
	}{
		"no gateway has it":         {`[]`, ""},
		"it has no ReferenceGrant":  {fmt.Sprintf(parent, "True", "False", "RefNotPermitted"), ""},
		"a gateway follows it":      {fmt.Sprintf(parent, "True", "True", "ResolvedRefs"), "rule 1 of HTTPRoute web/split has this pool beside chat-new"},
		"no listener admits it":     {fmt.Sprintf(parent, "False", "True", "ResolvedRefs"), ""},
		"another backend is absent": {fmt.Sprintf(parent, "True", "False", "BackendNotFound"), "rule 1 of HTTPRoute web/split has this pool beside chat-new"},
	} {
		t.Run(name, func(t *testing.T) {
			o, r := &unstructured.Unstructured{}, &gatewayRoute{}
			if err := yaml.Unmarshal(fmt.Appendf(nil, route, tc.parents), &o.Object); err != nil {
				t.Fatal(err)
			}
			if err := decode(o, r); err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, s := range r.sharing(pool) {
				got += s.refusal()
			}
			if !names(o, "chat") || names(o, "other") || !strings.HasPrefix(got, tc.want) || (got == "") != (tc.want == "") {
				t.Errorf("shared %q, want %q", got, tc.want)
			}
		})
	}
}

func TestGatewayAccepted(t *testing.T) {
	made := func(parents ...gatewayParent) *gatewayPool {
		p := &gatewayPool{}
		if err := decode(resources.GatewayPool(newPool(), resources.Move{}), p); err != nil {
			t.Fatal(err)
		}
		p.Status.Parents = parents
		return p
	}
	changed := func(change func(*gatewayPool)) *gatewayPool {
		p := made(says("a", "Accepted=True", "ResolvedRefs=True"))
		change(p)
		return p
	}
	route := func(parents ...gatewayParent) *gatewayRoute {
		r := &gatewayRoute{}
		r.Status.Parents = parents
		return r
	}
	shared := func(controller string) []sharedRule {
		return []sharedRule{{route: "split", rule: 2, others: []string{"chat-new"}, controllers: []string{controller}}}
	}
	good := says("a", "Accepted=True", "ResolvedRefs=True")
	const existing = v1alpha1.GatewayExisting
	for name, tc := range map[string]struct {
		facts   gatewayFacts
		status  metav1.ConditionStatus
		reason  string
		message string // that it must contain
	}{
		"disabled, whatever there is": {gatewayFacts{mode: v1alpha1.GatewayDisabled, pool: made(good)}, "Unknown", "Disabled", ""},
		"the kind is missing":         {gatewayFacts{missing: "HTTPRoute"}, "Unknown", "CRDsMissing", "HTTPRoute"},
		"the name is taken":           {gatewayFacts{taken: []string{"InferencePool chat"}, pool: made(good)}, "False", "NameTaken", "InferencePool chat"},
		"not made yet":                {gatewayFacts{}, "False", "NotReferenced", "not there yet"},
		"no user has made it":         {gatewayFacts{mode: existing}, "False", "NotReferenced", "Existing"},
		"no gateway":                  {gatewayFacts{pool: made()}, "False", "NotReferenced", "no gateway"},
		"a gateway that waits":        {gatewayFacts{pool: made(says("a", "Accepted=Unknown"))}, "False", "NotReferenced", "gateway a has not said"},
		"accepted":                    {gatewayFacts{pool: made(good), route: route(good)}, "True", "Accepted", "by a"},
		"accepted without ResolvedRefs": {
			gatewayFacts{pool: made(says("a", "Accepted=True"))}, "True", "Accepted", "by a",
		},
		"accepted by two": {gatewayFacts{pool: made(says("b", "Accepted=True"), good)}, "True", "Accepted", "by a, b"},
		"one accepts and one waits": {
			gatewayFacts{pool: made(good, says("b"))}, "True", "Accepted", "by a",
		},
		"one accepts and one rejects": {
			gatewayFacts{pool: made(good, says("b", "Accepted=False"))}, "False", "RejectedByGateway", "gateway b says that Accepted is False, Why: because of b",
		},
		"the picker is not found": {
			gatewayFacts{pool: made(says("a", "Accepted=True", "ResolvedRefs=False"))}, "False", "RejectedByGateway", "ResolvedRefs is False",
		},
		"the route is rejected": {
			gatewayFacts{pool: made(), route: route(says("a", "Accepted=False"))}, "False", "RejectedByGateway", "of the HTTPRoute, gateway a",
		},
		"a rule with two pools on Istio": {
			gatewayFacts{pool: made(good), shared: shared("istio.io/gateway-controller")}, "False", "PoolsShareRule",
			"rule 2 of HTTPRoute split has this pool beside chat-new: Istio asks the picker of only one",
		},
		"a rule with two pools on Envoy Gateway, which says so, too": {
			gatewayFacts{pool: made(says("a", "Accepted=Unknown")), shared: shared("gateway.envoyproxy.io/gatewayclass-controller")},
			"False", "PoolsShareRule", "Envoy Gateway refuses",
		},
		"a policy of the gateway that was refused": {
			gatewayFacts{pool: made(good), refused: []string{"DestinationRule chat-picker is refused: why"}}, "True", "Accepted",
			"by a; DestinationRule chat-picker is refused: why",
		},
		"a rule with two pools on a gateway that can": {
			gatewayFacts{pool: made(good), shared: shared("example.com/gate")}, "True", "Accepted", "by a; rule 2 of HTTPRoute split",
		},
		"the existing one is right": {gatewayFacts{mode: existing, pool: made(good)}, "True", "Accepted", ""},
		"what the API defaults is left out": {gatewayFacts{mode: existing, pool: changed(func(p *gatewayPool) {
			p.Spec.EndpointPickerRef = &pickerRef{Name: "chat-picker"}
		})}, "True", "Accepted", ""},
		"it asks another picker": {gatewayFacts{mode: existing, pool: changed(func(p *gatewayPool) {
			p.Spec.EndpointPickerRef.Name = "other"
		})}, "False", "WrongPicker", "Service other:9002; the pool's picker is Service chat-picker:9002"},
		"it asks another port": {gatewayFacts{mode: existing, pool: changed(func(p *gatewayPool) {
			p.Spec.EndpointPickerRef.Port.Number = 9003
		})}, "False", "WrongPicker", ":9003"},
		"it asks something else": {gatewayFacts{mode: existing, pool: changed(func(p *gatewayPool) {
			p.Spec.EndpointPickerRef.Group, p.Spec.EndpointPickerRef.Kind = "example.com", "Picker"
		})}, "False", "WrongPicker", "Picker.example.com"},
		"it asks no picker": {gatewayFacts{mode: existing, pool: changed(func(p *gatewayPool) {
			p.Spec.EndpointPickerRef = nil
		})}, "False", "WrongPicker", "nobody"},
		"it selects other pods": {gatewayFacts{mode: existing, pool: changed(func(p *gatewayPool) {
			p.Spec.Selector.MatchLabels = map[string]string{"app": "other"}
		})}, "False", "WrongPicker", "app:other"},
		"it names another port": {gatewayFacts{mode: existing, pool: changed(func(p *gatewayPool) {
			p.Spec.TargetPorts = []targetPort{{9999}}
		})}, "False", "WrongPorts", "its targetPorts are [9999]; the pool's engines listen on [8000]"},
		"it names no port": {gatewayFacts{mode: existing, pool: changed(func(p *gatewayPool) { p.Spec.TargetPorts = nil })}, "False", "WrongPorts", "[8000]"},
		"it names one port more": {gatewayFacts{mode: existing, pool: changed(func(p *gatewayPool) {
			p.Spec.TargetPorts = []targetPort{{9999}, {8000}}
		})}, "True", "Accepted", ""},
	} {
		t.Run(name, func(t *testing.T) {
			tc.facts.want = made()
			if tc.facts.mode == "" {
				tc.facts.mode = v1alpha1.GatewayAuto
			}
			got := gatewayAccepted(&tc.facts)
			if got.Status != tc.status || got.Reason != tc.reason || !strings.Contains(got.Message, tc.message) {
				t.Errorf("got %+v, want %s, %s, and a message with %q", got, tc.status, tc.reason, tc.message)
			}
		})
	}
}

// Of a rule with two pools Istio asks one picker only, and serves the other pool without one, silently.
func TestRulesThatHaveSeveralPoolsAreFound(t *testing.T) {
	const head = `{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {namespace: llm, name: split}, spec: {rules: [`
	const chat = `{group: inference.networking.k8s.io, kind: InferencePool, name: chat}`
	const other = `{group: inference.networking.k8s.io, kind: InferencePool, name: chat-new`
	for name, tc := range map[string]struct {
		rules string
		want  []string // that are shared with chat, "RULE OTHER"
		woken []string // pools that a change of the route wakes
	}{
		"one pool":               {`{backendRefs: [` + chat + `]}`, nil, []string{"chat", "split"}},
		"two pools in two rules": {`{backendRefs: [` + chat + `]}, {backendRefs: [` + other + `}]}`, nil, []string{"chat", "chat-new", "split"}},
		"two pools in one rule":  {`{}, {backendRefs: [` + chat + `, ` + other + `, weight: 10}]}`, []string{"2 [chat-new]"}, []string{"chat", "chat-new", "split"}},
		"one pool twice":         {`{backendRefs: [` + chat + `, ` + chat + `]}`, nil, []string{"chat", "split"}},
		"a pool and a Service":   {`{backendRefs: [` + chat + `, {name: chat-new, port: 80}]}`, nil, []string{"chat", "split"}},
		"a pool of another namespace": {`{backendRefs: [` + chat + `, ` + other + `, namespace: elsewhere}]}`, []string{"1 [elsewhere/chat-new]"},
			[]string{"elsewhere/chat-new", "chat", "split"}},
		"its own namespace, named": {`{backendRefs: [` + chat + `, ` + other + `, namespace: llm}]}`, []string{"1 [chat-new]"}, []string{"chat", "chat-new", "split"}},
		"rules of another shape":   {`{backendRefs: 7}`, nil, []string{"split"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(head+tc.rules+`]}}`), &o.Object); err != nil {
				t.Fatal(err)
			}
			var got, woken []string
			route := &gatewayRoute{}
			if decode(o, route) == nil {
				for _, s := range route.sharing(types.NamespacedName{Namespace: "llm", Name: "chat"}) {
					got = append(got, fmt.Sprint(s.rule, " ", s.others))
				}
			}
			for _, request := range ofRoute(context.Background(), o) {
				woken = append(woken, strings.TrimPrefix(request.String(), "llm/"))
			}
			if !slices.Equal(got, tc.want) || !slices.Equal(woken, tc.woken) {
				t.Errorf("shared %q, woken %q; want %q, %q", got, woken, tc.want, tc.woken)
			}
		})
	}
}

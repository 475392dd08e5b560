package inferencepool

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// gatewayRoute is what counts of an HTTPRoute.
type gatewayRoute struct {
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Spec struct {
		Rules []struct {
			BackendRefs []struct {
				Group     string `json:"group"`
				Kind      string `json:"kind"`
				Name      string `json:"name"`
				Namespace string `json:"namespace"`
			} `json:"backendRefs"`
		} `json:"rules"`
	} `json:"spec"`
	Status struct {
		Parents []gatewayParent `json:"parents"`
	} `json:"status"`
}

// pools are the InferencePools that each rule sends requests to, each once.
func (r *gatewayRoute) pools() [][]types.NamespacedName {
	rules := make([][]types.NamespacedName, len(r.Spec.Rules))
	for i := range r.Spec.Rules {
		for _, ref := range r.Spec.Rules[i].BackendRefs {
			pool := types.NamespacedName{Namespace: cmp.Or(ref.Namespace, r.Metadata.Namespace), Name: ref.Name}
			if ref.Group == resources.GIEKind.Group && ref.Kind == resources.GIEKind.Kind && !slices.Contains(rules[i], pool) {
				rules[i] = append(rules[i], pool)
			}
		}
	}
	return rules
}

// sharedRule is a rule of a route that sends requests to several pools.
type sharedRule struct {
	route  string
	rule   int // counted from 1
	others []string
	// controllers of the gateways that have the route.
	controllers []string
}

// onePoolPerRule are the gateways that cannot serve several pools in one rule, by what the names of their controllers
// begin with, and what becomes of such a rule there (Istio 1.31, Envoy AI Gateway of 2026-08).
var onePoolPerRule = []struct{ controller, result string }{
	{"istio.io/", "Istio asks the picker of only one of them, and spreads the other's requests over any pods"},
	{"gateway.envoyproxy.io/", "Envoy Gateway refuses such a rule"},
}

// refusal returns why gateways do not serve the rule as intended; "" where no reason is known.
func (s *sharedRule) refusal() string {
	for _, known := range onePoolPerRule {
		if slices.ContainsFunc(s.controllers, func(name string) bool { return strings.HasPrefix(name, known.controller) }) {
			return fmt.Sprintf("%s: %s. Use a rule for each pool, or split between the Services of the pickers", s, known.result)
		}
	}
	return ""
}

func (s *sharedRule) String() string {
	return fmt.Sprintf("rule %d of HTTPRoute %s has this pool beside %s", s.rule, s.route, strings.Join(s.others, ", "))
}

// sharedRules finds the rules of routes in all namespaces that have this pool and others.
func sharedRules(ctx context.Context, api client.Reader, pool types.NamespacedName) ([]sharedRule, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(resources.RouteKind.GroupVersion().WithKind(resources.RouteKind.Kind + "List"))
	err := api.List(ctx, list)
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b unstructured.Unstructured) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
	var shared []sharedRule
	for i := range list.Items {
		if !names(&list.Items[i], pool.Name) {
			continue
		}
		route := &gatewayRoute{}
		if decode(&list.Items[i], route) != nil {
			continue // a route of another shape is no reason to stop looking after the pool
		}
		shared = append(shared, route.sharing(pool)...)
	}
	return shared, nil
}

// names reports whether a rule of a route names a backend. It spares the decoding of the cluster's other routes.
func names(route *unstructured.Unstructured, backend string) bool {
	rules, _, _ := unstructured.NestedFieldNoCopy(route.Object, "spec", "rules")
	all, _ := rules.([]any)
	return slices.ContainsFunc(all, func(rule any) bool {
		fields, _ := rule.(map[string]any)
		refs, _ := fields["backendRefs"].([]any)
		return slices.ContainsFunc(refs, func(ref any) bool {
			fields, _ := ref.(map[string]any)
			return fields["name"] == backend
		})
	})
}

// sharing are the rules of a route that have a pool and others. A route of another namespace counts only where a gateway
// follows it and found that it can refer to the pool, so that strangers cannot change the pool's condition.
func (r *gatewayRoute) sharing(pool types.NamespacedName) []sharedRule {
	stranger := r.Metadata.Namespace != pool.Namespace
	var controllers []string
	for i := range r.Status.Parents {
		if p := &r.Status.Parents[i]; !stranger || p.follows() {
			controllers = append(controllers, p.ControllerName)
		}
	}
	if stranger && controllers == nil {
		return nil
	}
	var shared []sharedRule
	for i, pools := range r.pools() {
		if len(pools) < 2 || !slices.Contains(pools, pool) {
			continue
		}
		route := types.NamespacedName{Namespace: r.Metadata.Namespace, Name: r.Metadata.Name}
		s := sharedRule{route: seenFrom(pool, route), rule: i + 1, controllers: controllers}
		for _, other := range pools {
			if other != pool {
				s.others = append(s.others, seenFrom(pool, other))
			}
		}
		shared = append(shared, s)
	}
	return shared
}

// follows reports whether a gateway sends requests by a route to backends of other namespaces.
func (p *gatewayParent) follows() bool {
	refs := meta.FindStatusCondition(p.Conditions, string(gwapiv1.RouteConditionResolvedRefs))
	return meta.IsStatusConditionTrue(p.Conditions, string(gwapiv1.RouteConditionAccepted)) &&
		(refs == nil || refs.Reason != string(gwapiv1.RouteReasonRefNotPermitted))
}

// seenFrom is the name of an object, with its namespace if that is not the pool's.
func seenFrom(pool, object types.NamespacedName) string {
	if object.Namespace == pool.Namespace {
		return object.Name
	}
	return object.String()
}

// ofRoute are the pools that a route concerns: the one of its name, for which it might have been made, and those that its
// rules name.
func ofRoute(_ context.Context, o client.Object) []reconcile.Request {
	pools := []types.NamespacedName{client.ObjectKeyFromObject(o)}
	if u, ok := o.(*unstructured.Unstructured); ok {
		route := &gatewayRoute{}
		if decode(u, route) == nil {
			pools = append(pools, slices.Concat(route.pools()...)...)
		}
	}
	slices.SortFunc(pools, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	var requests []reconcile.Request
	for _, pool := range slices.Compact(pools) {
		requests = append(requests, reconcile.Request{NamespacedName: pool})
	}
	return requests
}

package inferencepool

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

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

// pools are the InferencePools of the route's own namespace that each rule sends requests to, each once.
func (r *gatewayRoute) pools() [][]string {
	rules := make([][]string, len(r.Spec.Rules))
	for i := range r.Spec.Rules {
		for _, ref := range r.Spec.Rules[i].BackendRefs {
			if ref.Group == resources.GIEKind.Group && ref.Kind == resources.GIEKind.Kind &&
				(ref.Namespace == "" || ref.Namespace == r.Metadata.Namespace) && !slices.Contains(rules[i], ref.Name) {
				rules[i] = append(rules[i], ref.Name)
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

// sharedRules finds the rules of routes in the pool's namespace that have this pool and others.
func (r *round) sharedRules(ctx context.Context) ([]sharedRule, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(resources.RouteKind.GroupVersion().WithKind(resources.RouteKind.Kind + "List"))
	err := r.Client.List(ctx, list, client.InNamespace(r.key.Namespace))
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing routes of namespace %s: %w", r.key.Namespace, err)
	}
	slices.SortFunc(list.Items, func(a, b unstructured.Unstructured) int { return strings.Compare(a.GetName(), b.GetName()) })
	var shared []sharedRule
	for i := range list.Items {
		route := &gatewayRoute{}
		if decode(&list.Items[i], route) != nil {
			continue // a route of another shape is no reason to stop looking after the pool
		}
		shared = append(shared, route.sharing(r.key.Name)...)
	}
	return shared, nil
}

// sharing are the rules of a route that have a pool and others.
func (r *gatewayRoute) sharing(pool string) []sharedRule {
	var shared []sharedRule
	for i, pools := range r.pools() {
		if len(pools) < 2 || !slices.Contains(pools, pool) {
			continue
		}
		s := sharedRule{route: r.Metadata.Name, rule: i + 1}
		for _, name := range pools {
			if name != pool {
				s.others = append(s.others, name)
			}
		}
		for j := range r.Status.Parents {
			s.controllers = append(s.controllers, r.Status.Parents[j].ControllerName)
		}
		shared = append(shared, s)
	}
	return shared
}

// ofRoute are the pools that a route concerns: the one of its name, for which it might have been made, and those that its
// rules name.
func ofRoute(_ context.Context, o client.Object) []reconcile.Request {
	names := []string{o.GetName()}
	if u, ok := o.(*unstructured.Unstructured); ok {
		route := &gatewayRoute{}
		if decode(u, route) == nil {
			names = append(names, slices.Concat(route.pools()...)...)
		}
	}
	slices.Sort(names)
	var requests []reconcile.Request
	for _, name := range slices.Compact(names) {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}})
	}
	return requests
}

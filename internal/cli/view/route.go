package view

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/dashboard"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// Route is all that is shown of a ModelRoute: as the API server has it, or as pickers apply it, and what these have counted.
type Route struct {
	api.Route `json:",inline"`
	// Accepted and Resolved are the reasons of its conditions, by the operator; empty without a cluster.
	Accepted string `json:"accepted,omitempty"`
	Resolved string `json:"resolved,omitempty"`
	// Problems describe in sentences what is wrong.
	Problems []Problem `json:"problems,omitempty"`
}

// routes are those of a namespace (of all, if it is empty) that name one of some pools, with what the pickers of these pools have counted.
// Where their kind is not defined, or cannot be listed, there are none.
func (s *Source) routes(ctx context.Context, namespace string, told map[string]*api.Live) ([]*Route, error) {
	var list v1alpha1.ModelRouteList
	err := s.Client.List(ctx, &list, client.InNamespace(namespace))
	switch {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	var all []*Route
	for i := range list.Items {
		r := OfRoute(&list.Items[i])
		for _, live := range told {
			for j := range live.Routes {
				if c := &live.Routes[j]; c.Namespace == r.Namespace && c.Name == r.Name {
					r.count(c)
				}
			}
		}
		all = append(all, r)
	}
	return all, nil
}

// OfRoute is a route as the API server has it.
func OfRoute(r *v1alpha1.ModelRoute) *Route {
	out := &Route{Route: api.Route{Namespace: r.Namespace, Name: r.Name, Requests: map[string]int64{}}}
	for _, model := range r.Spec.Models {
		out.Models = append(out.Models, string(model))
	}
	backend := func(pool v1alpha1.PoolName, model v1alpha1.ModelName, weight int) api.RouteBackend {
		return api.RouteBackend{Pool: r.Namespace + "/" + string(pool), Model: string(model), Weight: weight}
	}
	for i := range r.Spec.Rules {
		rule := &r.Spec.Rules[i]
		shown := api.RouteRule{Sticky: rule.Sticky != v1alpha1.StickyNone}
		for j := range rule.Matches {
			var headers []string
			for _, h := range rule.Matches[j].Headers {
				headers = append(headers, strings.ToLower(h.Name))
			}
			shown.When = append(shown.When, dashboard.Condition(rule.Matches[j].Tenant, headers))
		}
		for _, b := range rule.Backends {
			weight := 1
			if b.Weight != nil {
				weight = int(*b.Weight)
			}
			shown.Backends = append(shown.Backends, backend(b.Pool, b.ModelName, weight))
		}
		for _, b := range rule.Fallback {
			shown.Fallbacks = append(shown.Fallbacks, backend(b.Pool, b.ModelName, 0))
		}
		out.Rules = append(out.Rules, shown)
	}
	for _, c := range r.Status.Conditions {
		switch c.Type {
		case v1alpha1.ConditionAccepted:
			out.Accepted = c.Reason
		case v1alpha1.ConditionResolvedRefs:
			out.Resolved = c.Reason
		}
		if c.Status != metav1.ConditionTrue && !status.Absent(&c) {
			out.Problems = append(out.Problems, Problem{c.Type, c.Reason, c.Message})
		}
	}
	if len(r.Status.Conditions) == 0 {
		out.Problems = append(out.Problems, Problem{"operator", "Waiting", "the route has not been seen by the operator: does it run?"})
	}
	return out
}

// count adds what a picker has counted.
func (r *Route) count(c *api.Route) {
	for pool, n := range c.Requests {
		r.Requests[pool] += n
	}
	for pool, causes := range c.Left {
		for cause, n := range causes {
			if r.Left == nil {
				r.Left = map[string]map[string]int64{}
			}
			if r.Left[pool] == nil {
				r.Left[pool] = map[string]int64{}
			}
			r.Left[pool][cause] += n
		}
	}
}

// RoutesOfPickers are the routes that pickers without a cluster apply.
func RoutesOfPickers(told []PickerReport) []*Route {
	var all []*Route
	for _, t := range told {
		if t.Err != nil {
			continue
		}
		for i := range t.Live.Routes {
			c := &t.Live.Routes[i]
			at := slices.IndexFunc(all, func(r *Route) bool { return r.Namespace == c.Namespace && r.Name == c.Name })
			if at < 0 {
				at = len(all)
				r := &Route{Route: *c}
				r.Requests, r.Left = map[string]int64{}, nil
				all = append(all, r)
			}
			all[at].count(c)
		}
	}
	return all
}

// names reports whether a rule of the route names one of some pools, or all count because there are none.
func (r *Route) names(pools []string) bool {
	return len(pools) == 0 || slices.ContainsFunc(r.Rules, func(rule api.RouteRule) bool {
		return slices.ContainsFunc(slices.Concat(rule.Backends, rule.Fallbacks), func(b api.RouteBackend) bool {
			_, name, _ := strings.Cut(b.Pool, "/")
			return slices.Contains(pools, name)
		})
	})
}

// lines are the route as people read it.
func (r *Route) lines(c *console.Console) []string {
	title := c.Paint(console.Strong, "ModelRoute "+r.Namespace+"/"+r.Name) + ", for " + strings.Join(r.Models, ", ")
	if r.Accepted != "" {
		title += ": " + strings.TrimSuffix(r.Accepted+", "+r.Resolved, ", ")
	}
	g := console.Grid{Header: []string{"RULE", "WHEN", "POOL", "MODEL", "WEIGHT"}}
	pool := func(b *api.RouteBackend) string { return strings.TrimPrefix(b.Pool, r.Namespace+"/") }
	for i := range r.Rules {
		rule := &r.Rules[i]
		number, when := fmt.Sprint(i+1), dash(strings.Join(rule.When, ", or "))
		sum := 0
		for _, b := range rule.Backends {
			sum += b.Weight
		}
		for j := range rule.Backends {
			b := &rule.Backends[j]
			g.Add(console.Text(number), console.Text(when), console.Text(pool(b)), console.Text(dash(b.Model)),
				console.Number("%d of %d", b.Weight, sum))
			number, when = "", ""
		}
		for j := range rule.Fallbacks {
			b := &rule.Fallbacks[j]
			g.Add(console.Text(""), console.Text(""), console.Text(pool(b)), console.Text(dash(b.Model)), console.Number("fallback %d", j+1))
		}
	}
	lines := append([]string{title}, indent(g.Lines(c))...)
	var counts []string
	for _, p := range slices.Sorted(maps.Keys(r.Requests)) {
		text := fmt.Sprintf("%s %d", strings.TrimPrefix(p, r.Namespace+"/"), r.Requests[p])
		var left []string
		for _, cause := range slices.Sorted(maps.Keys(r.Left[p])) {
			left = append(left, fmt.Sprintf("%d %s", r.Left[p][cause], cause))
		}
		if len(left) > 0 {
			text += " (left: " + strings.Join(left, ", ") + ")"
		}
		counts = append(counts, text)
	}
	if len(counts) > 0 {
		lines = append(lines, "  requests: "+strings.Join(counts, ", "))
	}
	for _, b := range r.Problems {
		lines = append(lines, "  "+c.Paint(console.Warn, "! ")+b.Line())
	}
	return lines
}

// sortRoutes sorts routes by namespace and name.
func sortRoutes(all []*Route) {
	slices.SortFunc(all, func(a, b *Route) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

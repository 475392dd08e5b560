package dashboard

import (
	"cmp"
	"slices"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Routes converts the counters of routes to the form of the API, by namespace and name.
func Routes(all []picker.RouteStats) []api.Route {
	var routes []api.Route
	for i := range all {
		s := &all[i]
		r := api.Route{Namespace: s.Namespace, Name: s.Name, Models: s.Route.Models, Requests: s.Requests}
		for j := range s.Route.Rules {
			r.Rules = append(r.Rules, ruleOf(&s.Route.Rules[j]))
		}
		for pool, causes := range s.Fallbacks {
			for cause, n := range causes {
				if n == 0 {
					continue
				}
				if r.Left == nil {
					r.Left = map[string]map[string]int64{}
				}
				if r.Left[pool] == nil {
					r.Left[pool] = map[string]int64{}
				}
				r.Left[pool][modelroute.Cause(cause).String()] = n
			}
		}
		routes = append(routes, r)
	}
	slices.SortFunc(routes, func(a, b api.Route) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return routes
}

func ruleOf(rule *modelroute.Rule) api.RouteRule {
	r := api.RouteRule{Sticky: rule.Sticky, Backends: backendsOf(rule.Backends), Fallbacks: backendsOf(rule.Fallbacks)}
	for i := range rule.Matches {
		headers := make([]string, len(rule.Matches[i].Headers))
		for j, h := range rule.Matches[i].Headers {
			headers[j] = h.Name
		}
		r.When = append(r.When, Condition(rule.Matches[i].Tenant, headers))
	}
	return r
}

// Condition describes what a request must have: a tenant, and headers by their names. Their values can be secrets, and are left out.
func Condition(tenant string, headers []string) string {
	var parts []string
	if tenant != "" {
		parts = append(parts, "a tenant")
	}
	if len(headers) > 0 {
		parts = append(parts, "header "+strings.Join(headers, ", "))
	}
	return strings.Join(parts, " and ")
}

func backendsOf(all []modelroute.Backend) []api.RouteBackend {
	var out []api.RouteBackend
	for i := range all {
		out = append(out, api.RouteBackend{Pool: all[i].Pool, Model: all[i].Model, Weight: all[i].Weight})
	}
	return out
}

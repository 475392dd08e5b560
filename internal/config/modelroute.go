package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/status"
)

const (
	// MaxRoutes is how many routes are applied: of a namespace in a cluster, of a directory without one.
	MaxRoutes = 1000
	// maxRouteProblems is how many problems with pools a route shows, and maxSuggestions for how many missing pools of a state the one
	// that was probably meant is looked for, which takes a time that grows with the number of pools.
	maxRouteProblems, maxSuggestions = 8, 32
	// maxRefusals is how many reasons of refused routes are among the problems of a state. The status of each route has its own.
	maxRefusals = 1000
)

// causes by their names.
var causes = map[v1alpha1.FallbackCause]modelroute.Cause{
	v1alpha1.FallbackFull: modelroute.Full, v1alpha1.FallbackCold: modelroute.Cold, v1alpha1.FallbackDown: modelroute.Down,
}

// RouteState is what became of a route.
type RouteState struct {
	Object *v1alpha1.ModelRoute
	// Served reports whether requests go by the route; Problems are what is wrong with it.
	Served   bool
	Problems []Problem
}

// route is the status of a route: whether it is applied, and whether its pools are there.
func (b *Board) route(next *Board, now time.Time, s *RouteState) *v1alpha1.ModelRoute {
	r := *s.Object
	conditions := []metav1.Condition{status.Accepted.True(status.ReasonAccepted, "")}
	switch {
	case !s.Served:
		conditions[0] = status.Accepted.False(s.Problems[0].reason, "%s", texts(s.Problems))
	case len(s.Problems) > 0:
		conditions = append(conditions, status.ResolvedRefs.False(s.Problems[0].reason, "%s", texts(s.Problems)))
	default:
		conditions = append(conditions, status.ResolvedRefs.True(status.ReasonResolvedRefs, ""))
	}
	r.Status = v1alpha1.ModelRouteStatus{Conditions: b.set(next, now, "route "+nameOf(&r).String(), r.Generation, conditions)}
	return &r
}

// RefusedRoutes finds the routes that are not applied, and why: a route that was accepted before it has one of its names, or there are
// more than MaxRoutes. The oldest route comes first. Of routes without an age, which were read from files, those come first that have
// all of their names by held, the route of each name before. Otherwise the first by namespace and name does. So the order of routes
// does not matter, and in a cluster neither does what was before: all pickers find the same, and the operator writes it into status.
func RefusedRoutes(routes []*v1alpha1.ModelRoute,
	held map[v1alpha1.ModelName]types.NamespacedName) map[*v1alpha1.ModelRoute]field.ErrorList {
	keeps := func(r *v1alpha1.ModelRoute) int {
		if !r.CreationTimestamp.IsZero() ||
			slices.ContainsFunc(r.Spec.Models, func(name v1alpha1.ModelName) bool { return held[name] != nameOf(r) }) {
			return 1
		}
		return 0
	}
	routes = byName(routes)
	slices.SortStableFunc(routes, func(a, b *v1alpha1.ModelRoute) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(keeps(a), keeps(b)))
	})
	owners, refused := map[v1alpha1.ModelName]*v1alpha1.ModelRoute{}, map[*v1alpha1.ModelRoute]field.ErrorList{}
	accepted := 0
	for _, r := range routes {
		var errs field.ErrorList
		for i, name := range r.Spec.Models {
			if owner := owners[name]; owner != nil {
				errs = append(errs, field.Duplicate(field.NewPath("spec", "models").Index(i),
					string(name)+", a name of ModelRoute "+nameOf(owner).String()))
			}
		}
		if len(errs) == 0 && accepted == MaxRoutes {
			errs = append(errs, field.Forbidden(field.NewPath("spec"), fmt.Sprintf("at most %d routes are applied, the oldest", MaxRoutes)))
		}
		if len(errs) > 0 {
			refused[r] = errs
			continue
		}
		accepted++
		for _, name := range r.Spec.Models {
			owners[name] = r
		}
	}
	return refused
}

// RoutePool is a pool that a route names, and where it first does.
type RoutePool struct {
	Name string
	Path *field.Path // of the backend
	// Model is the name that its engines get; empty for that of the pool's model.
	Model string
}

// RoutePools are the pools that a route names with a name of a model, each once, in the order of the spec.
func RoutePools(r *v1alpha1.ModelRoute) (all []RoutePool) {
	known := map[RoutePool]bool{}
	add := func(path *field.Path, pool v1alpha1.PoolName, model v1alpha1.ModelName) {
		one := RoutePool{Name: string(pool), Model: string(model)}
		if !known[one] {
			known[one] = true
			one.Path = path
			all = append(all, one)
		}
	}
	for i := range r.Spec.Rules {
		path := field.NewPath("spec", "rules").Index(i)
		for j, b := range r.Spec.Rules[i].Backends {
			add(path.Child("backends").Index(j), b.Pool, b.ModelName)
		}
		for j, f := range r.Spec.Rules[i].Fallback {
			add(path.Child("fallback").Index(j), f.Pool, f.ModelName)
		}
		for j, m := range r.Spec.Rules[i].Mirrors {
			add(path.Child("mirrors").Index(j), m.Pool, m.ModelName)
		}
	}
	return all
}

// translateRoutes makes the routes.
func (n *translation) translateRoutes(o *Objects, drafts []*draft) {
	specs := map[types.NamespacedName]*draft{}
	for _, d := range drafts {
		specs[d.name] = d
	}
	refused, refusals := RefusedRoutes(o.Routes, n.last.routes), 0
	for _, r := range byName(o.Routes) {
		errs := refused[r]
		if len(errs) == 0 && n.ofOthers(r, o.Elsewhere) {
			continue
		}
		s := RouteState{Object: r, Served: len(errs) == 0}
		for _, err := range errs {
			s.Problems = append(s.Problems, n.problem(v1alpha1.KindModelRoute, r, err, false))
			if refusals++; refusals > maxRefusals {
				n.state.Problems = n.state.Problems[:len(n.state.Problems)-1]
			}
		}
		if s.Served || errs[0].Type == field.ErrorTypeDuplicate && refusals <= maxRefusals {
			s.Problems = append(s.Problems, n.checkBackends(r, specs, o.Elsewhere)...)
		}
		if s.Served {
			n.state.RouteSpecs = append(n.state.RouteSpecs, route(r))
			for _, model := range r.Spec.Models {
				n.next.routes[model] = nameOf(r)
			}
		}
		n.state.Routes = append(n.state.Routes, s)
	}
}

// ofOthers reports whether a route is for other pickers: some of its pools are elsewhere, and none is here.
func (n *translation) ofOthers(r *v1alpha1.ModelRoute, elsewhere map[types.NamespacedName]string) bool {
	others := false
	for _, p := range RoutePools(r) {
		name := types.NamespacedName{Namespace: r.Namespace, Name: p.Name}
		if n.pools[name] != nil {
			return false
		}
		others = others || elsewhere[name] != ""
	}
	return others
}

// checkBackends finds backends that do not exist, or are elsewhere. The route is applied all the same: requests for them are refused, those
// for others are not.
func (n *translation) checkBackends(r *v1alpha1.ModelRoute, pools map[types.NamespacedName]*draft,
	elsewhere map[types.NamespacedName]string) (problems []Problem) {
	for _, p := range RoutePools(r) {
		if len(problems) == maxRouteProblems {
			break
		}
		target := types.NamespacedName{Namespace: r.Namespace, Name: p.Name}
		d := pools[target]
		switch {
		case d == nil && elsewhere[target] != "":
			problems = append(problems, n.problem(v1alpha1.KindModelRoute, r, field.Invalid(p.Path.Child("pool"), p.Name, elsewhere[target]), false))
		case d == nil:
			n.missingPool(v1alpha1.KindModelRoute, r, p.Path.Child("pool"), target)
			problems = append(problems, n.state.Problems[len(n.state.Problems)-1])
		case d.served && p.Model != "" && !d.spec.DiscoverAdapters &&
			!slices.ContainsFunc(modelNames(&d.spec), func(one named) bool { return one.name == p.Model }):
			problems = append(problems, n.problem(v1alpha1.KindModelRoute, r, field.NotFound(p.Path.Child("modelName"),
				p.Model+" among the names of InferencePool "+target.String()), false))
		}
	}
	return problems
}

// route puts a ModelRoute into the picker's words.
func route(r *v1alpha1.ModelRoute) modelroute.Route {
	out := modelroute.Route{
		Namespace: r.Namespace, Name: r.Name, Models: names(r.Spec.Models),
		Timeout: time.Duration(r.Spec.Timeouts.RequestSeconds) * time.Second,
		Limits: modelroute.Limits{
			RequestsPerMinute: int(r.Spec.Limits.RequestsPerMinute), MaxConcurrent: int(r.Spec.Limits.MaxConcurrent),
		},
	}
	backend := func(pool v1alpha1.PoolName, model v1alpha1.ModelName, weight *int32) modelroute.Backend {
		return modelroute.Backend{Pool: r.Namespace + "/" + string(pool), Model: string(model), Weight: int(ptr.Deref(weight, 1))}
	}
	for i := range r.Spec.Rules {
		from := &r.Spec.Rules[i]
		rule := modelroute.Rule{
			Sticky: from.Sticky != v1alpha1.StickyNone, On: modelroute.Of(slices.Collect(maps.Values(causes))...),
			Within: milliseconds(cmp.Or(from.FallbackWithinMilliseconds, v1alpha1.DefaultFallbackWithinMilliseconds)),
		}
		if len(from.FallbackOn) > 0 {
			rule.On = 0
			for _, cause := range from.FallbackOn {
				rule.On |= modelroute.Of(causes[cause])
			}
		}
		for _, m := range from.Matches {
			match := modelroute.Match{Tenant: m.Tenant}
			for _, h := range m.Headers {
				match.Headers = append(match.Headers, modelroute.Header{Name: strings.ToLower(h.Name), Value: h.Value})
			}
			rule.Matches = append(rule.Matches, match)
		}
		for _, b := range from.Backends {
			rule.Backends = append(rule.Backends, backend(b.Pool, b.ModelName, b.Weight))
		}
		for _, f := range from.Fallback {
			rule.Fallbacks = append(rule.Fallbacks, backend(f.Pool, f.ModelName, nil))
		}
		for _, m := range from.Mirrors {
			rule.Mirrors = append(rule.Mirrors, modelroute.Mirror{
				Backend: backend(m.Pool, m.ModelName, nil), Percent: int(ptr.Deref(m.Percent, 100)),
			})
		}
		out.Rules = append(out.Rules, rule)
	}
	return out
}

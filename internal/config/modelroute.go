package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/net/http/httpguts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// kindModelRoute is read from files only: API servers have no definition of it yet.
const kindModelRoute = "ModelRoute"

// ModelRoute says to which pools requests for some models go. It is experimental: its fields can change in any release.
type ModelRoute struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              ModelRouteSpec   `json:"spec"`
	Status            ModelRouteStatus `json:"status,omitzero"`
}

// ModelRouteSpec is what a user writes.
type ModelRouteSpec struct {
	// Models are the names that clients use, 1 to 16. No other route has them.
	Models []string `json:"models"`
	// Rules are tried in order, 1 to 16. A request that matches none is answered as one for a model that does not exist.
	Rules    []ModelRouteRule   `json:"rules"`
	Timeouts ModelRouteTimeouts `json:"timeouts,omitzero"`
}

// ModelRouteRule says where the requests go that it matches.
type ModelRouteRule struct {
	// Matches are alternatives, up to 8; without any, the rule matches every request.
	Matches []ModelRouteMatch `json:"matches,omitempty"`
	// Backends share the requests by weight, 1 to 8.
	Backends []ModelRouteBackend `json:"backends"`
	// Fallback lists up to 4 pools that are tried in order when a backend does not serve a request.
	Fallback []ModelRouteFallback `json:"fallback,omitempty"`
	// FallbackOn lists the causes: Full, Cold, Down; all by default.
	FallbackOn []string `json:"fallbackOn,omitempty"`
	// FallbackWithinMilliseconds is how long after its arrival a request can go to a fallback, and how long it waits in the queue of its
	// pool before it does, 1 to 600,000; 10,000 by default.
	FallbackWithinMilliseconds int32 `json:"fallbackWithinMilliseconds,omitempty"`
	// Sticky is Session, the default, or None: whether the requests of a session stay with one backend.
	Sticky string `json:"sticky,omitempty"`
}

// ModelRouteMatch is a condition: all of its parts must hold.
type ModelRouteMatch struct {
	// Tenant as the policy of the rule's first pool identifies it.
	Tenant string `json:"tenant,omitempty"`
	// Headers that a request must have, up to 8.
	Headers []ModelRouteHeader `json:"headers,omitempty"`
}

// ModelRouteHeader is a header with exactly this value. Case counts in the value only.
type ModelRouteHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// ModelRouteBackend is a pool of the route's namespace.
type ModelRouteBackend struct {
	// Pool is the name of an InferencePool.
	Pool string `json:"pool"`
	// Weight in relation to those of the rule's other backends, 0 to 1,000,000; 1 by default.
	Weight *int32 `json:"weight,omitempty"`
	// ModelName that the engines get, one of the pool's names; by default that of the pool's model.
	ModelName string `json:"modelName,omitempty"`
}

// ModelRouteFallback is a pool of the route's namespace.
type ModelRouteFallback struct {
	// Pool is the name of an InferencePool.
	Pool string `json:"pool"`
	// ModelName that the engines get, as in ModelRouteBackend.
	ModelName string `json:"modelName,omitempty"`
}

// backend is a fallback as a backend.
func (f *ModelRouteFallback) backend() *ModelRouteBackend {
	return &ModelRouteBackend{Pool: f.Pool, ModelName: f.ModelName}
}

// causes by their names.
var causes = map[string]modelroute.Cause{"Full": modelroute.Full, "Cold": modelroute.Cold, "Down": modelroute.Down}

// ModelRouteTimeouts bound a request.
type ModelRouteTimeouts struct {
	// RequestSeconds from a request's arrival to the end of its answer, 1 to 86,400; 0 for no limit.
	RequestSeconds int32 `json:"requestSeconds,omitempty"`
}

// ModelRouteStatus is what a picker has made of the route.
type ModelRouteStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

const (
	stickySession, stickyNone = "Session", "None"
	maxRouteModels            = 16
	maxRouteRules             = 16
	maxRouteMatches           = 8
	maxRouteHeaders           = 8
	maxRouteBackends          = 8
	maxRouteFallbacks         = 4
	maxRouteSeconds           = 86_400
	maxFallbackWithin         = 600_000
	defaultFallbackWithin     = 10_000
	maxRouteWeight            = 1_000_000
	maxModelName              = 256
	maxHeaderName             = 128
	maxHeaderValue            = 256
	maxTenantName             = 253
)

// decodeRoute reads a ModelRoute.
func decodeRoute(raw []byte) (*ModelRoute, []fault) {
	var r ModelRoute
	if faults := decodeStrict(raw, &r); len(faults) > 0 {
		return nil, faults
	}
	defaultNamespace(&r.ObjectMeta)
	errs := validateMeta(&r.ObjectMeta)
	spec := field.NewPath("spec")
	errs = append(errs, validateLength(spec.Child("models"), len(r.Spec.Models), 1, maxRouteModels)...)
	for i, name := range r.Spec.Models {
		path := spec.Child("models").Index(i)
		errs = append(errs, validateModelName(path, name)...)
		if slices.Contains(r.Spec.Models[:i], name) {
			errs = append(errs, field.Duplicate(path, name))
		}
	}
	errs = append(errs, validateLength(spec.Child("rules"), len(r.Spec.Rules), 1, maxRouteRules)...)
	for i := range r.Spec.Rules {
		errs = append(errs, validateRule(spec.Child("rules").Index(i), &r.Spec.Rules[i])...)
	}
	errs = append(errs, validateRange(spec.Child("timeouts", "requestSeconds"), r.Spec.Timeouts.RequestSeconds, 0, maxRouteSeconds)...)
	return &r, faultsOf(errs)
}

// validateFallback checks the chain of a rule.
func validateFallback(path *field.Path, rule *ModelRouteRule) field.ErrorList {
	errs := validateLength(path.Child("fallback"), len(rule.Fallback), 0, maxRouteFallbacks)
	for i := range rule.Fallback {
		at := path.Child("fallback").Index(i)
		errs = append(errs, validateBackend(at, rule.Fallback[i].backend())...)
		if slices.Contains(rule.Fallback[:i], rule.Fallback[i]) {
			errs = append(errs, field.Duplicate(at, shorten(rule.Fallback[i].Pool)))
		}
	}
	for i, cause := range rule.FallbackOn {
		at := path.Child("fallbackOn").Index(i)
		if _, known := causes[cause]; !known {
			errs = append(errs, field.NotSupported(at, shorten(cause), sortedKeys(causes)))
		} else if slices.Contains(rule.FallbackOn[:i], cause) {
			errs = append(errs, field.Duplicate(at, cause))
		}
	}
	if len(rule.Fallback) == 0 && (len(rule.FallbackOn) > 0 || rule.FallbackWithinMilliseconds != 0) {
		errs = append(errs, field.Required(path.Child("fallback"), "the pools that fallbackOn and fallbackWithinMilliseconds are about"))
	}
	return append(errs, validateRange(path.Child("fallbackWithinMilliseconds"), rule.FallbackWithinMilliseconds, 0, maxFallbackWithin)...)
}

func validateRule(path *field.Path, rule *ModelRouteRule) field.ErrorList {
	errs := validateLength(path.Child("matches"), len(rule.Matches), 0, maxRouteMatches)
	for i := range rule.Matches {
		errs = append(errs, validateMatch(path.Child("matches").Index(i), &rule.Matches[i])...)
	}
	errs = append(errs, validateLength(path.Child("backends"), len(rule.Backends), 1, maxRouteBackends)...)
	most := int32(0)
	for i := range rule.Backends {
		at, b := path.Child("backends").Index(i), &rule.Backends[i]
		errs = append(errs, validateBackend(at, b)...)
		if slices.ContainsFunc(rule.Backends[:i], func(o ModelRouteBackend) bool { return o.Pool == b.Pool && o.ModelName == b.ModelName }) {
			errs = append(errs, field.Duplicate(at, b.Pool))
		}
		most = max(most, weightOf(b))
	}
	if len(rule.Backends) > 0 && most == 0 {
		errs = append(errs, field.Forbidden(path.Child("backends"), "all weights are 0, so that no backend gets a request"))
	}
	errs = append(errs, validateFallback(path, rule)...)
	if rule.Sticky != "" && rule.Sticky != stickySession && rule.Sticky != stickyNone {
		errs = append(errs, field.NotSupported(path.Child("sticky"), rule.Sticky, []string{stickySession, stickyNone}))
	}
	return errs
}

func validateMatch(path *field.Path, m *ModelRouteMatch) field.ErrorList {
	errs := validateLength(path.Child("headers"), len(m.Headers), 0, maxRouteHeaders)
	if m.Tenant == "" && len(m.Headers) == 0 {
		errs = append(errs, field.Required(path, "a tenant or headers; without matches, a rule is for every request"))
	}
	if len(m.Tenant) > maxTenantName {
		errs = append(errs, field.TooLong(path.Child("tenant"), "", maxTenantName))
	}
	for i, h := range m.Headers {
		at := path.Child("headers").Index(i)
		errs = append(errs, validateText(at.Child("name"), h.Name, maxHeaderName,
			httpguts.ValidHeaderFieldName, "must be the name of a header")...)
		errs = append(errs, validateText(at.Child("value"), h.Value, maxHeaderValue,
			httpguts.ValidHeaderFieldValue, "must be the value of a header")...)
		if slices.ContainsFunc(m.Headers[:i], func(o ModelRouteHeader) bool { return strings.EqualFold(o.Name, h.Name) }) {
			errs = append(errs, field.Duplicate(at.Child("name"), h.Name))
		}
	}
	return errs
}

func validateBackend(path *field.Path, b *ModelRouteBackend) (errs field.ErrorList) {
	if b.Pool == "" {
		errs = append(errs, field.Required(path.Child("pool"), "the name of an InferencePool"))
	} else {
		for _, message := range validation.IsDNS1123Subdomain(b.Pool) {
			errs = append(errs, field.Invalid(path.Child("pool"), shorten(b.Pool), message))
		}
	}
	if b.ModelName != "" {
		errs = append(errs, validateModelName(path.Child("modelName"), b.ModelName)...)
	}
	return append(errs, validateRange(path.Child("weight"), weightOf(b), 0, maxRouteWeight)...)
}

func validateModelName(path *field.Path, name string) field.ErrorList {
	unbroken := func(s string) bool { return !strings.ContainsFunc(s, unicode.IsSpace) }
	return validateText(path, name, maxModelName, unbroken, "must have no blanks")
}

// validateText checks a text of one byte or more, and at most most bytes.
func validateText(path *field.Path, text string, most int, valid func(string) bool, message string) field.ErrorList {
	switch {
	case text == "":
		return field.ErrorList{field.Required(path, "")}
	case len(text) > most:
		return field.ErrorList{field.TooLong(path, "", most)}
	case !valid(text):
		return field.ErrorList{field.Invalid(path, text, message)}
	}
	return nil
}

func validateLength(path *field.Path, n, least, most int) field.ErrorList {
	switch {
	case n < least:
		return field.ErrorList{field.Required(path, "")}
	case n > most:
		return field.ErrorList{field.TooMany(path, n, most)}
	}
	return nil
}

func validateRange(path *field.Path, n, least, most int32) field.ErrorList {
	if n < least || n > most {
		return field.ErrorList{field.Invalid(path, n, fmt.Sprintf("must be %d to %d", least, most))}
	}
	return nil
}

// shorten is the beginning of a text that can be long.
func shorten(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxModelName)], "") }

// weightOf a backend.
func weightOf(b *ModelRouteBackend) int32 {
	if b.Weight == nil {
		return 1
	}
	return *b.Weight
}

// RouteState is what became of a route.
type RouteState struct {
	Object *ModelRoute
	// Served reports whether requests go by the route; Problems are what is wrong with it.
	Served   bool
	Problems []Problem
}

// route is the status of a route.
func (b *Board) route(next *Board, now time.Time, s *RouteState) *ModelRoute {
	r := *s.Object
	accepted := status.Accepted.True(status.ReasonAccepted, "")
	if len(s.Problems) > 0 {
		accepted = status.Accepted.False(s.Problems[0].reason, "%s", texts(s.Problems))
	}
	r.Status = ModelRouteStatus{b.set(next, now, "route "+nameOf(&r).String(), r.Generation, []metav1.Condition{accepted})}
	return &r
}

// translateRoutes makes the routes. Two routes cannot have a name in common: the oldest has it, as for pools (settleNames), and the other
// one is not applied.
func (n *translation) translateRoutes(routes []*ModelRoute, drafts []*draft) {
	specs := map[types.NamespacedName]*draft{}
	for _, d := range drafts {
		specs[d.name] = d
	}
	owners := map[string]*ModelRoute{}
	routes = byName(routes)
	for _, r := range routes {
		for _, model := range r.Spec.Models {
			if owner := owners[model]; owner == nil || precedes(r, owner, n.last.routes[model]) {
				owners[model] = r
			}
		}
	}
	for _, r := range routes {
		s := RouteState{Object: r, Served: true}
		for i, model := range r.Spec.Models {
			if owner := owners[model]; owner != r {
				s.Served = false
				path := field.NewPath("spec", "models").Index(i)
				s.Problems = append(s.Problems, n.problem(kindModelRoute, r,
					field.Duplicate(path, model+", a name of ModelRoute "+nameOf(owner).String()), false))
			}
		}
		s.Problems = append(s.Problems, n.checkBackends(r, specs)...)
		if s.Served {
			n.state.RouteSpecs = append(n.state.RouteSpecs, route(r))
			for _, model := range r.Spec.Models {
				n.next.routes[model] = nameOf(r)
			}
		}
		n.state.Routes = append(n.state.Routes, s)
	}
}

// checkBackends finds backends that do not exist. The route is applied all the same: requests for them are refused, those for others are
// not.
func (n *translation) checkBackends(r *ModelRoute, pools map[types.NamespacedName]*draft) (problems []Problem) {
	check := func(path *field.Path, b *ModelRouteBackend) {
		target := types.NamespacedName{Namespace: r.Namespace, Name: b.Pool}
		d := pools[target]
		switch {
		case d == nil:
			n.missingPool(kindModelRoute, r, path.Child("pool"), target)
			problems = append(problems, n.state.Problems[len(n.state.Problems)-1])
		case d.served && b.ModelName != "" && !d.spec.DiscoverAdapters &&
			!slices.ContainsFunc(modelNames(&d.spec), func(one named) bool { return one.name == b.ModelName }):
			problems = append(problems, n.problem(kindModelRoute, r, field.NotFound(path.Child("modelName"),
				b.ModelName+" among the names of InferencePool "+target.String()), false))
		}
	}
	for i := range r.Spec.Rules {
		path := field.NewPath("spec", "rules").Index(i)
		for j := range r.Spec.Rules[i].Backends {
			check(path.Child("backends").Index(j), &r.Spec.Rules[i].Backends[j])
		}
		for j := range r.Spec.Rules[i].Fallback {
			check(path.Child("fallback").Index(j), r.Spec.Rules[i].Fallback[j].backend())
		}
	}
	return problems
}

// route puts a ModelRoute into the picker's words.
func route(r *ModelRoute) modelroute.Route {
	out := modelroute.Route{
		Namespace: r.Namespace, Name: r.Name, Models: r.Spec.Models,
		Timeout: time.Duration(r.Spec.Timeouts.RequestSeconds) * time.Second,
	}
	backend := func(b *ModelRouteBackend) modelroute.Backend {
		return modelroute.Backend{Pool: r.Namespace + "/" + b.Pool, Model: b.ModelName, Weight: int(weightOf(b))}
	}
	for i := range r.Spec.Rules {
		from := &r.Spec.Rules[i]
		rule := modelroute.Rule{
			Sticky: from.Sticky != stickyNone, On: modelroute.Of(modelroute.Full, modelroute.Cold, modelroute.Down),
			Within: time.Duration(cmp.Or(from.FallbackWithinMilliseconds, defaultFallbackWithin)) * time.Millisecond,
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
		for j := range from.Backends {
			rule.Backends = append(rule.Backends, backend(&from.Backends[j]))
		}
		for j := range from.Fallback {
			rule.Fallbacks = append(rule.Fallbacks, backend(from.Fallback[j].backend()))
		}
		out.Rules = append(out.Rules, rule)
	}
	return out
}

package picker

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// Routing is where a request goes by its ModelRoute. It belongs to the request, and changes when the request goes to a fallback.
type Routing struct {
	*compiledRoute
	rule  *modelroute.Rule
	index int // of the rule
	// model is the name that the client has used.
	model   string
	arrived time.Time
	// chosen is the index of the backend, step 0 for it and i for the fallback before i. steady: a session has decided.
	chosen, step int
	steady       bool
	// cause is why the step before did not serve the request.
	cause modelroute.Cause
	// draw is the number that has chosen the backend. mirror is the copy that this is the routing of; nil of requests.
	draw   uint64
	mirror *Mirror
	// pass is from the limits of the route; nil without any, and before the request was let through.
	pass *tenant.Pass
}

// compiledRoute is a route in a snapshot.
type compiledRoute struct {
	*modelroute.Route
	counters *routeCounters // kept across changes of the route
	limits   *tenant.Class  // nil without any
	metered  string         // under which replicas exchange what counts for the limits
}

// Route describes the route of a decision's request to people and their tools.
type Route struct {
	// Namespace and Name of the ModelRoute, and the number of the rule from 0.
	Namespace, Name string
	Rule            int
	// Asked is the name of the model that the client has used, Model the one that the engine gets.
	Asked, Model string

	at Routing // when the backend was chosen
}

// compile resolves the routes of a snapshot: of several that want a name, the first one has it.
func (s *snapshot) compile(routes []modelroute.Route, before *snapshot) {
	s.named = make(map[string]*view, len(s.pools))
	for _, v := range s.pools {
		s.named[v.name] = v
	}
	counters := make(map[[2]string]*routeCounters, len(before.routeList))
	for _, old := range before.routeList {
		counters[[2]string{old.Namespace, old.Name}] = old.counters
	}
	for i := range routes {
		r := &compiledRoute{Route: routes[i].Prepared(), counters: newRouteCounters(), limits: limitsOf(routes[i].Limits),
			metered: routeMeters + routes[i].Namespace + "/" + routes[i].Name}
		if old := counters[[2]string{r.Namespace, r.Name}]; old != nil {
			r.counters = old
		}
		r.counters.keep(r.Route)
		s.routeList = append(s.routeList, r)
		for _, model := range r.Models {
			if s.routes == nil {
				s.routes = map[string]*compiledRoute{}
			}
			if s.routes[model] == nil {
				s.routes[model] = r
			}
		}
	}
}

// routed finds the pool of a request that was parsed, by its route if there is one for its model. Without a route the pool is nil, and so
// is the error.
func (p *Picker) routed(s *snapshot, in *Request, r *openai.Request) (*view, error) {
	if in.Routing == nil {
		route := s.routes[r.Model]
		if route == nil || in.Rename == nil || in.Pool != "" || r.ModelEnd == 0 {
			return nil, nil
		}
		if in.Routing = p.route(s, route, in, r); in.Routing == nil {
			return nil, UnknownModel(r.Model)
		}
	}
	target := in.Routing.target()
	v := s.named[target.Pool]
	if v == nil {
		return nil, noBackend(target.Pool)
	}
	if err := in.Routing.passesOver(v, p.now()); err != nil {
		return nil, err
	}
	model := cmp.Or(target.Model, v.spec.Model)
	if r.Model == model {
		return v, nil
	}
	body, ok := in.Rename(r, model)
	if !ok {
		return nil, noMemory()
	}
	in.Body = body
	if err := openai.Parse(in.Route, in.Body, r); err != nil {
		return nil, badRequest(err)
	}
	return v, nil
}

// passesOver is the refusal with which a request leaves a pool that cannot serve it now, for a fallback; nil if it stays. It does not wait
// there, but it has arrived: without that, a pool at zero whose requests a fallback serves would never get a pod.
func (t *Routing) passesOver(v *view, now time.Time) error {
	cause, unserved := v.unserved(now)
	if !unserved || !t.can(cause, now) {
		return nil
	}
	v.tally.recordArrival(now)
	return noEndpoint(v.spec.Name)
}

// routedKeyed is routed for a request without a body: the name that the engine gets is in r.
func (p *Picker) routedKeyed(s *snapshot, in *Keyed, r *openai.Request) (*view, error) {
	if in.Routing == nil {
		if in.Routing = p.route(s, s.routes[in.Model], &Request{Header: in.Header}, r); in.Routing == nil {
			return nil, UnknownModel(in.Model)
		}
	}
	target := in.Routing.target()
	v := s.named[target.Pool]
	if v == nil {
		return nil, noBackend(target.Pool)
	}
	r.Model = cmp.Or(target.Model, v.spec.Model)
	return v, in.Routing.passesOver(v, p.now())
}

// route chooses the rule and the backend for a request; nil if no rule matches it.
func (p *Picker) route(s *snapshot, route *compiledRoute, in *Request, r *openai.Request) *Routing {
	known := identities{header: in.Header}
	for i := range route.Rules {
		rule := &route.Rules[i]
		if !s.matches(rule, in, &known) {
			continue
		}
		t := &Routing{compiledRoute: route, rule: rule, index: i, model: r.Model, arrived: p.now()}
		draw := uint64(0)
		if rule.Sticky {
			if v := s.firstPool(rule); v != nil {
				draw = session(v.sessionKeys, in.Header, in.Body, r)
			}
		}
		t.steady = draw != 0
		if !t.steady {
			draw = p.options.Draw()
		}
		t.draw = draw
		if t.chosen = rule.Choose(draw); t.chosen < 0 {
			return nil
		}
		return t
	}
	return nil
}

// firstPool is the pool of the rule's first backend that exists: its policy names the tenants and the sessions.
func (s *snapshot) firstPool(rule *modelroute.Rule) *view {
	for i := range rule.Backends {
		if v := s.named[rule.Backends[i].Pool]; v != nil {
			return v
		}
	}
	return nil
}

// matches reports whether a rule applies to a request.
func (s *snapshot) matches(rule *modelroute.Rule, in *Request, known *identities) bool {
	return len(rule.Matches) == 0 || slices.ContainsFunc(rule.Matches, func(m modelroute.Match) bool {
		tenant := ""
		if m.Tenant != "" {
			tenant = known.of(s.firstPool(rule))
		}
		return m.Holds(tenant, func(name string) string { return HeaderOf(in.Header, name) })
	})
}

// identities identifies the client of a request as a tenant of pools. A pool that is asked for again is not computed again: a route
// can have a hundred conditions, and each would hash the client's key.
type identities struct {
	header func(string) string
	pool   *view
	name   string
}

// of is the client's tenant in a pool; empty without a pool, and for a client that is none of its tenants.
func (t *identities) of(v *view) string {
	if v == nil {
		return ""
	}
	if v != t.pool {
		name, _, err := v.spec.Policy.Admission.Tenants.identify(t.header)
		if err != nil {
			name = ""
		}
		t.pool, t.name = v, name
	}
	return t.name
}

// target is the backend that the request is for now.
func (t *Routing) target() *modelroute.Backend {
	if t.mirror != nil {
		return &t.mirror.to.Backend
	}
	return t.rule.Target(t.chosen, t.step)
}

// asked is the model that the client has named; empty without a route.
func (t *Routing) asked() string {
	if t == nil {
		return ""
	}
	return t.model
}

// why is why the present backend was chosen.
func (t *Routing) why() string {
	if t.mirror != nil {
		return t.mirror.why(t.steady)
	}
	if t.step > 0 {
		return fmt.Sprintf("fallback %d of %d, %s before", t.step, len(t.rule.Fallbacks), t.cause)
	}
	sum := 0
	for i := range t.rule.Backends {
		sum += t.rule.Backends[i].Weight
	}
	by := "by chance"
	if t.steady {
		by = "by session"
	}
	return fmt.Sprintf("weight %d of %d, %s", t.target().Weight, sum, by)
}

// Routed describes the route that has led to the decision; nil if there was none.
func (d *Decision) Routed() *Route { return d.routed }

// describe is the route of a decision.
func (t *Routing) describe(model string) *Route {
	if t == nil {
		return nil
	}
	return &Route{Namespace: t.Namespace, Name: t.Name, Rule: t.index, Asked: t.model, Model: model, at: *t}
}

// String names the rule: namespace/name rule=N.
func (r *Route) String() string { return r.Namespace + "/" + r.Name + " rule=" + strconv.Itoa(r.Rule) }

// reason is the rule and why the backend was chosen; empty without a route.
func (r *Route) reason() string {
	if r == nil {
		return ""
	}
	return r.String() + "; " + r.Why()
}

// Why the backend was chosen, in words of the objects only.
func (r *Route) Why() string { return r.at.why() }

func noBackend(pool string) *Error {
	return &Error{Status: 503, Type: "service_unavailable", Code: codeNoPool,
		Message: fmt.Sprintf("Pool %s, to which the model's route sends the request, does not exist.", pool)}
}

func noMemory() *Error {
	return &Error{Status: 503, Type: "service_unavailable", Code: CodeOverloaded, Message: "Too many large requests are under way."}
}

// routeModels are the names of routes that a client can use: a rule with a backend that serves, and that the client is allowed to use
// under both names.
func (s *snapshot) routeModels(header func(string) string) (models []Model) {
	for name, route := range s.routes {
		if slices.ContainsFunc(route.Rules, func(rule modelroute.Rule) bool { return s.usable(&rule, name, header) }) {
			models = append(models, Model{ListedModel: ListedModel{Name: name}, Namespace: route.Namespace})
		}
	}
	slices.SortFunc(models, func(a, b Model) int { return cmp.Compare(a.Name, b.Name) })
	return models
}

// usable reports whether a client can use a model by a rule. Headers of other requests are not known, so only the tenant counts.
func (s *snapshot) usable(rule *modelroute.Rule, model string, header func(string) string) bool {
	known := identities{header: header}
	if len(rule.Matches) > 0 && !slices.ContainsFunc(rule.Matches, func(m modelroute.Match) bool {
		return m.Tenant == "" || m.Tenant == known.of(s.firstPool(rule))
	}) {
		return false
	}
	return slices.ContainsFunc(rule.Backends, func(b modelroute.Backend) bool {
		v := s.named[b.Pool]
		if v == nil || b.Weight == 0 || !v.servable() {
			return false
		}
		_, class, err := v.spec.Policy.Admission.Tenants.identify(header)
		return err == nil && v.spec.checkKey(header) == nil && class.Allows(model) && class.Allows(cmp.Or(b.Model, v.spec.Model))
	})
}

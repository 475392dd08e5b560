package picker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/hooks"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// poolHooks are the compiled steps of a pool's policy, and how often each had which outcome.
type poolHooks struct {
	*hooks.Hooks
	counts []*hookCounts // of each step, kept across changes of the policy by the step's name
}

type hookCounts [hooks.NumOutcomes]atomic.Int64

// compileHooks makes the hooks of a view; nil without steps.
func compileHooks(spec *Spec, old *view, services hooks.Caller) (*poolHooks, error) {
	list := &spec.Policy.Hooks
	if len(list.Steps) == 0 {
		return nil, nil
	}
	var before *poolHooks
	if old != nil {
		before = old.hooks
	}
	if before != nil && reflect.DeepEqual(old.spec.Policy.Hooks, *list) {
		return before, nil
	}
	compiled, faults := hooks.Compile(*list, services)
	if len(faults) > 0 {
		return nil, fmt.Errorf("pool %s: compiling hooks: %s", spec.Name, faults[0].Detail)
	}
	h := &poolHooks{Hooks: compiled}
	for i := range list.Steps {
		counts := new(hookCounts)
		if before != nil {
			if at := slices.IndexFunc(before.Steps(), func(s hooks.Step) bool { return s.Name == list.Steps[i].Name }); at >= 0 {
				counts = before.counts[at]
			}
		}
		h.counts = append(h.counts, counts)
	}
	return h, nil
}

// keepServices forgets services that no policy calls any more.
func (s *snapshot) keepServices(services hooks.Caller) {
	if services == nil {
		return
	}
	called := map[string]bool{}
	for _, v := range s.pools {
		for i := range v.spec.Policy.Hooks.Steps {
			called[v.spec.Policy.Hooks.Steps[i].Call.URL] = true
		}
		called[v.spec.Policy.Responses.Similar.Embeddings.URL] = true
	}
	services.Keep(called)
}

// hooked is what steps have made of a request. The nil hooked is that of a request whose pools have no steps.
type hooked struct {
	asked    string // the name of the model that the client has used
	priority string // empty if no step has set it
	session  uint64 // 0 if no step has set it
	passed   []passedSteps
	failure  error // of the last step that failed
}

// passedSteps are the outcomes of the steps of a pool's policy.
type passedSteps struct {
	v        *view
	outcomes []hooks.Outcome // nil: the steps were not taken, because the pool refuses the request in any case
}

// hook takes the steps of a pool's policy. If they change the model, the request goes where the new name leads, and the steps of the
// pool there are taken, too: no pool serves a request that its own steps have not passed. A request that comes back to a pool is
// refused. It fails with an *Error.
func (p *Picker) hook(ctx context.Context, s *snapshot, v *view, in *Request, r *openai.Request) (*view, *hooked, error) {
	if v.hooks == nil {
		return v, nil, nil
	}
	h := &hooked{}
	for v.hooks != nil {
		if slices.ContainsFunc(h.passed, func(passed passedSteps) bool { return passed.v == v }) {
			h.failure = fmt.Errorf("steps have sent the request back to pool %s", v.name)
			return v, h, hookFailed()
		}
		next, err := p.takeSteps(ctx, s, v, in, r, h)
		if err != nil || next == v {
			return next, h, err
		}
		v = next
	}
	return v, h, nil
}

// takeSteps takes the steps of one pool's policy. A client that the pool refuses in any case costs nothing.
func (p *Picker) takeSteps(ctx context.Context, s *snapshot, v *view, in *Request, r *openai.Request, h *hooked) (*view, error) {
	request := hooks.Request{Model: r.Model, PromptTokens: -1, Ranks: v.ranks}
	request.Serves = func(model string) bool { return s.leads(in, r, model) }
	if in.Unparsed {
		request.Model = in.bodyModel()
	} else {
		request.Field, request.PromptTokens = r.Raw, roughTokens(in, r)
	}
	if in.Header != nil {
		request.Header = func(name string) string { return HeaderOf(in.Header, name) }
	}
	routed := in.Routing.asked()
	h.asked = cmp.Or(h.asked, routed, request.Model)
	name, class, err := v.spec.Policy.Admission.Tenants.identify(in.Header)
	if in.Routing.mirrors() { // the client need not be a tenant of this pool, and its steps hold all the same
		name, class, err, routed = in.Routing.mirror.caller.name, everybody, nil, ""
	}
	if err != nil || !class.Allows(request.Model) || routed != "" && !class.Allows(routed) {
		h.passed = append(h.passed, passedSteps{v: v})
		return v, nil //nolint:nilerr // the client is refused, and counted, when it enters the pool
	}
	request.Asked, request.Tenant = h.asked, name

	result := v.hooks.Run(ctx, &request)
	h.passed = append(h.passed, passedSteps{v, result.Outcomes})
	h.priority = cmp.Or(result.Priority, h.priority)
	if result.Session != "" {
		h.session = endpoint.Hash(result.Session)
	}
	if result.Failure != nil {
		h.failure = result.Failure
	}
	switch {
	case result.Refusal.Status != 0:
		return v, hookRefused(result.Refusal)
	case result.Refused():
		return v, hookFailed()
	case result.Model == request.Model:
		return v, nil
	}
	body, ok := in.Rename(r, result.Model)
	if !ok {
		return v, noMemory()
	}
	in.Body, in.Routing = body, nil
	next, err := p.read(s, in, r)
	if err != nil {
		return v, err
	}
	return next, nil
}

// ranks reports whether the pool's policy has a priority of this name.
func (v *view) ranks(priority string) bool {
	_, known := v.spec.Policy.Admission.Priorities[priority]
	return known
}

// leads reports whether a request can be sent to another model. Requests that cannot be changed stay with theirs, and so do those that
// are with a fallback of their ModelRoute, or copies for a mirror.
func (s *snapshot) leads(in *Request, r *openai.Request, model string) bool {
	if in.Unparsed || in.Rename == nil || r.ModelEnd == 0 || in.Routing != nil && (in.Routing.step > 0 || in.Routing.mirrors()) {
		return false
	}
	if in.Pool == "" && s.routes[model] != nil {
		return true
	}
	v := s.pool(model)
	return v != nil && (in.Pool == "" || in.Pool == v.name)
}

// roughTokens is about how many tokens the prompts of a request have: exact if they are all given as ids.
func roughTokens(in *Request, r *openai.Request) (n int) {
	for i := range r.Prompts {
		if !r.Prompts[i].IsTokens {
			return len(in.Body) / bytesPerToken
		}
		n += len(r.Prompts[i].Tokens)
	}
	if len(r.Prompts) == 0 || r.Embeds {
		return len(in.Body) / bytesPerToken
	}
	return n
}

// count enters the outcomes into the counters of the pools.
func (h *hooked) count() {
	if h == nil {
		return
	}
	for _, passed := range h.passed {
		for i, outcome := range passed.outcomes {
			passed.v.hooks.counts[i][outcome].Add(1)
		}
	}
}

// objective is the name of the request's priority: that of a step, or the one in the request's header.
func (h *hooked) objective(header func(string) string) string {
	if h != nil && h.priority != "" {
		return h.priority
	}
	return HeaderOf(header, ObjectiveHeader)
}

// sessionHash is the session that a step has set; 0 if none has.
func (h *hooked) sessionHash() uint64 {
	if h == nil {
		return 0
	}
	return h.session
}

// String names the outcome of each step by pool, "namespace/pool step=applied other=skipped", pools separated by semicolons. It has no
// content of a request, and is empty without steps.
func (h *hooked) String() string {
	if h == nil {
		return ""
	}
	var b strings.Builder
	for i, passed := range h.passed {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(passed.v.name)
		if passed.outcomes == nil {
			b.WriteString(" not taken")
		}
		for i, outcome := range passed.outcomes {
			b.WriteString(" " + passed.v.hooks.Steps()[i].Name + "=" + outcome.String())
		}
	}
	return b.String()
}

// explain is String with the reason of a failure, for the person that has sent the request.
func (h *hooked) explain() string {
	if h == nil || h.failure == nil {
		return h.String()
	}
	return h.String() + " (" + h.failure.Error() + ")"
}

// explained adds the outcomes to the error of a request that steps have refused.
func (h *hooked) explained(err error) error {
	refusal := (*Error)(nil)
	if h == nil || !errors.As(err, &refusal) {
		return err
	}
	with := *refusal
	with.Message += " Hooks: " + h.explain() + "."
	return &with
}

// HookStats count what the steps of a pool's policy have done.
type HookStats struct {
	Namespace, Pool, Step string
	Outcomes              [hooks.NumOutcomes]int64
}

// HookStats reads the counters of the steps that are in force.
func (p *Picker) HookStats() (all []HookStats) {
	for _, v := range p.current.Load().pools {
		if v.hooks == nil {
			continue
		}
		for i, counts := range v.hooks.counts {
			s := HookStats{Namespace: v.spec.Namespace, Pool: v.spec.Name, Step: v.hooks.Steps()[i].Name}
			for o := range counts {
				s.Outcomes[o] = counts[o].Load()
			}
			all = append(all, s)
		}
	}
	return all
}

// refusedByHooks records a request that the steps of a pool have refused. No engine would have served it, so the record has no prompt.
func (p *Picker) refusedByHooks(v *view, s *scratch, in *Request, h *hooked, start time.Time, refusal *Error) {
	log := p.options.Decisions
	if log == nil || !v.logged.takes(v.spec.Policy.LogPercent) {
		return
	}
	state := &pickState{id: in.ID, start: start, routing: in.Routing, hooked: h}
	record := v.recordOf(log.Salt(), s, &policy.Request{}, state)
	record.Outcome, record.Reason = "refused", refusal.Code
	record.Duration = milliseconds(p.now().Sub(start))
	log.Write(&record)
}

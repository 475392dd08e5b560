package picker

import (
	"strings"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// Facts are what a pick learns of a request for the record of its use, whether it finds an endpoint or not. Nothing in them is
// text of a client: names that the pool does not know are left out.
type Facts struct {
	Namespace, Pool string
	// Tenant is otherLabel for a name that is not listed, unless the policy lists none; empty where tenants are not
	// distinguished. Class is that of the tenant.
	Tenant, Class string
	// Model that the request asks for, Base the pool's model, and Adapter the adapter if the request is for one.
	Model, Base, Adapter string
	Stream               bool
}

// placed enters the pool of a request, if there is one; it has no effect on nil.
func (f *Facts) placed(v *view, in *Request, r *openai.Request) {
	if f == nil || v == nil {
		return
	}
	f.Namespace, f.Pool, f.Base, f.Stream = v.spec.Namespace, v.spec.Name, v.spec.Model, r.Stream
	model := r.Model
	if in.Unparsed {
		model = in.askedModel()
	}
	asked := model
	if in.Routing != nil { // by a name that a ModelRoute has
		asked = in.Routing.model
	}
	f.Model, f.Adapter = "", ""
	switch {
	case model == "":
	case v.identity(model) == v.spec.Model:
		f.Model = asked
	case v.adapts(model):
		f.Model, f.Adapter = asked, model
	}
}

// kept is a copy for the decision, because another pick of the request can change the original; nil of nil.
func (f *Facts) kept() *Facts {
	if f == nil {
		return nil
	}
	own := *f
	return &own
}

// entered enters the tenant of a request; it has no effect on nil.
func (f *Facts) entered(v *view, c *caller) {
	if f == nil {
		return
	}
	f.Tenant, f.Class = v.spec.Policy.Admission.Tenants.shown(c.name), ""
	if c.class != nil {
		f.Class = c.class.Name
	}
}

// shown is the name of a tenant as records of use have it: a name that no Secret lists is text of a client, unless the policy
// leaves all names to the gateway, or to the issuer of tokens.
func (t *TenantsSpec) shown(name string) string {
	if t == nil || name == "" {
		return ""
	}
	_, listed := t.Known.ByName(name)
	if listed || (t.Header != "" || t.byToken()) && t.Known.Len() == 0 && len(name) <= tenant.MaxName && isVisible(name) {
		return name
	}
	return otherLabel
}

// isVisible reports whether a text has visible ASCII characters only.
func isVisible(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// ShownTenant is the name of a tenant, as Whose returns it, in records of use.
func (p *Picker) ShownTenant(name string) string {
	shown := ""
	for _, v := range p.current.Load().pools {
		if one := v.spec.Policy.Admission.Tenants.shown(name); one != "" && (shown == "" || shown == otherLabel) {
			shown = one
		}
	}
	return shown
}

// Used is what a request has used, for the record of it.
type Used struct {
	// Endpoint is pod/rank; empty if the gateway has sent the request elsewhere.
	Endpoint string
	// Prompt tokens, by the engine's count if PromptCounted; else by the picker's, an estimate where Tokens are not exact.
	Prompt        int
	PromptCounted bool
	// Cached of them, -1 while that is not known.
	Cached int
	// Generated tokens, by the engine's count if GeneratedCounted; else about as many as have arrived.
	Generated        int
	GeneratedCounted bool
	// Charged to the tenant, for the prompt and the answer; 0 where tenants are not distinguished.
	Charged int64
	// Facts are those of the pick; nil when it had none to fill in.
	Facts *Facts
}

// Used is what the request has used, once the decision has ended.
func (d *Decision) Used() Used {
	d.mu.Lock()
	defer d.mu.Unlock()
	u := Used{Prompt: d.PromptTokens, Cached: d.found, Generated: d.output.Tokens, Charged: d.caller.pass.Charged(), Facts: d.facts}
	if d.reported.Prompt >= 0 {
		u.Prompt, u.PromptCounted = d.reported.Prompt, true
	}
	u.GeneratedCounted = d.reported.Generated >= 0
	if !d.elsewhere {
		u.Endpoint = nameOf(d.Targets[d.target].Endpoint)
	}
	return u
}

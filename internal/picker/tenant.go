package picker

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/overload"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// AdmissionSpec defines what happens to requests when the pool is full.
type AdmissionSpec struct {
	// Queue keeps requests in the picker while the pool is full; otherwise they are sent on at once.
	Queue bool
	// WaitBudget is the predicted wait at an endpoint above which requests for it stay in the picker.
	WaitBudget time.Duration
	// Slowdown is the target for first tokens, as a multiple of the time that the prefill of the entire prompt takes on an
	// idle endpoint that holds nothing of it; 0 is none.
	Slowdown float64
	Limits   admission.Limits
	// GatewayLag is how much later than the picker gateways learn that an endpoint serves. Their requests go to other endpoints
	// for so long, or wait where there is none. Only for pools that hold requests.
	GatewayLag time.Duration
	// Priorities that a request is allowed to name; Default is that of requests that name none.
	Priorities map[string]Priority
	Default    Priority
	// Tenants describes how to identify a request's tenant; nil: there is one tenant, without limits.
	Tenants *TenantsSpec
	// SetsPriority and SetsTransfer: any request is allowed to bring the fields that control the engine's scheduler and KV transfers.
	SetsPriority, SetsTransfer bool
	// AllowedOrigins are the origins of web pages that are allowed to send requests from browsers; * is any.
	AllowedOrigins []string
}

// Priority is a class of requests.
type Priority struct {
	Level int
	// TTL in the queue; 0 for the queue's.
	TTL time.Duration
}

// TenantsSpec defines how tenants are identified and what each can use.
type TenantsSpec struct {
	// Header that an authenticating gateway names the tenant in, lower case; empty: tenants show an API key.
	Header string
	// Certificate: the client's certificate names the tenant, and neither a header nor a key does.
	Certificate bool
	// Issuer signs the tokens that name tenants, and Tokens checks them; a nil Issuer for no tokens. Without Tokens no token is known.
	Issuer *tenant.Issuer
	Tokens tenant.TokenChecker
	// Known tenants. With a header or tokens, and without any, every name is known.
	Known *tenant.Directory
	// Reject requests of no known tenant; otherwise they are of the default class.
	Reject bool
	// Salts: the engines' caches of tenants are kept apart, by a cache salt for each.
	Salts   bool
	Classes map[string]*tenant.Class
	Default *tenant.Class
}

var everybody = &tenant.Class{Weight: 1}

// caller describes the tenant of a request, and its rights.
type caller struct {
	name  string
	label string // under which it is counted
	class *tenant.Class
	level int
	ttl   time.Duration
	pass  *tenant.Pass
}

// identify returns the tenant of a request. It fails with an *Error for an unknown tenant.
func (t *TenantsSpec) identify(header func(string) string) (name string, class *tenant.Class, err error) {
	if t == nil {
		return "", everybody, nil
	}
	var entry *tenant.Entry
	var known bool
	switch {
	case t.Certificate:
		entry, known = t.Known.ByCertificate(HeaderOf(header, CertificateHeader))
	case t.byKey():
		entry, known = t.Known.ByKey(keyOf(header))
	default:
		name = t.named(header)
		entry, known = t.Known.ByName(name)
		if !known && name != "" && t.Known.Len() == 0 {
			return name, t.Default, nil
		}
	}
	if !known {
		if t.Reject {
			return "", nil, t.unknown()
		}
		return name, t.Default, nil
	}
	return entry.Name, t.classOf(entry.Name), nil
}

// CertificateHeader is the name under which a server passes the name of the client's certificate, as certs.NameOf makes it. No message
// can have a header of this name, so that clients cannot set it.
const CertificateHeader = ":client-certificate"

// APIKeyHeader is where clients of the Anthropic API show their key, in lower case.
const APIKeyHeader = "x-api-key"

// byKey reports whether tenants show keys of Kvasir.
func (t *TenantsSpec) byKey() bool {
	return t != nil && t.Header == "" && !t.Certificate && t.Issuer == nil
}

// byToken reports whether tenants show tokens.
func (t *TenantsSpec) byToken() bool { return t != nil && t.Issuer != nil }

// named is the tenant that a token or a header names; empty for none.
func (t *TenantsSpec) named(header func(string) string) (name string) {
	if t.Issuer == nil {
		if name = HeaderOf(header, t.Header); len(name) > tenant.MaxName {
			return ""
		}
		return name
	}
	if t.Tokens != nil {
		name, _ = t.Tokens.Tenant(tenant.Bearer(HeaderOf(header, "authorization")))
	}
	return name
}

// keyOf is the key that a client shows: as clients of the OpenAI API do, or else as those of the Anthropic API.
func keyOf(header func(string) string) string {
	if key := tenant.Bearer(HeaderOf(header, "authorization")); key != "" {
		return key
	}
	return HeaderOf(header, APIKeyHeader)
}

// classOf is the class of a tenant by its name.
func (t *TenantsSpec) classOf(name string) *tenant.Class {
	if entry, known := t.Known.ByName(name); known {
		if c := t.Classes[entry.Class]; c != nil {
			return c
		}
	}
	return t.Default
}

// arrive lets a request into its pool: its caller has a share of the tenant's limits. It returns when the request has arrived, too, and
// fails with an *Error.
func (p *Picker) arrive(v *view, in *Request, r *openai.Request, h *hooked, start time.Time) (c caller, arrived time.Time, err error) {
	if in.Again != nil {
		before := in.Again.arrived
		return in.Again.passOn(in.HandedOver), before, nil
	}
	if in.Routing.mirrors() {
		return in.Routing.mirror.caller, start, nil
	}
	v.tally.recordArrival(start)
	v.retries.recordArrival()
	c, err = v.enter(p.options.Overload, start, in.Header, v.named(in, r), in.Routing, h)
	in.Facts.entered(v, &c)
	return c, start, err
}

// enter identifies the request's tenant and takes its share; the pass must be released. It fails with an *Error, also where
// resources are short and the request's priority is low. routing is where the request goes by its route, whose limits it enters, too; nil
// without a route. steps are what hooks have made of the request.
func (v *view) enter(short *overload.Manager, now time.Time, header func(string) string, model string, routing *Routing,
	steps *hooked) (c caller, err error) {
	spec, asked := &v.spec.Policy.Admission, routing.asked()
	c.name, c.class, err = spec.Tenants.identify(header)
	if err == nil {
		c.level, c.ttl = spec.priority(steps.objective(header), c.class)
		if c.level < 0 && short.Refuses(overload.LowPriority) {
			err = lowPriority()
		}
	}
	if spec.Tenants == nil {
		if err == nil {
			err = routing.enter(now, v.peers, nil)
		}
		return c, err
	}
	if err == nil && (!c.class.Allows(model) || asked != "" && !c.class.Allows(asked)) {
		err = modelForbidden(cmp.Or(asked, model))
	}
	c.label = spec.Tenants.label(c.name, err)
	if err != nil {
		v.tenants.refuse(c.label, err)
		return c, err
	}
	var reason tenant.Reason
	var after time.Duration
	if err := routing.enter(now, v.peers, func() bool {
		c.pass, reason, after = v.meters.Take(now, c.name, c.class)
		return reason == tenant.Admitted
	}); err != nil {
		return c, err
	}
	if reason != tenant.Admitted {
		err := overLimit(reason, after, v.meters.Rates(now, c.name, c.class))
		v.tenants.refuse(c.label, err)
		return c, err
	}
	v.tenants.add(c.label, 1, 0)
	v.peers.Changed()
	return c, nil
}

// priority is the level of a name, or that of requests which name none, as far as a class allows.
func (a *AdmissionSpec) priority(name string, c *tenant.Class) (level int, ttl time.Duration) {
	p := a.Default
	if named, ok := a.Priorities[name]; ok {
		p = named
	}
	if c.Capped && p.Level > c.MaxLevel {
		p.Level = c.MaxLevel
	}
	return p.Level, p.TTL
}

// has reports whether requests of a class can have a level.
func (a *AdmissionSpec) has(level int, c *tenant.Class) bool {
	if c.Capped && level >= c.MaxLevel {
		return level == c.MaxLevel
	}
	if level == a.Default.Level {
		return true
	}
	for _, p := range a.Priorities {
		if level == p.Level {
			return true
		}
	}
	return false
}

// Authorization returns the header that a request gets on its way to an engine: the engine's key, or none where tenants use
// keys of Kvasir. own means that the client's header stays; otherwise its APIKeyHeader must be removed too. Tenants were
// checked here, so their requests get the engine's key even where other clients must send it themselves.
func (s *Spec) Authorization() (value string, own bool) {
	switch {
	case s.PassClientAuth && s.Policy.Admission.Tenants == nil:
		return "", true
	case s.EngineAPIKey != "":
		return "Bearer " + s.EngineAPIKey, false
	case s.Policy.Admission.Tenants.byKey(), s.Policy.Admission.Tenants.byToken():
		return "", false
	}
	return "", true
}

// checkKey fails with an *Error where an engine would refuse the client's own key. It is for what the picker answers itself.
// Engines read no APIKeyHeader. Known limit: an engine can accept more keys than the pool's.
func (s *Spec) checkKey(header func(string) string) error {
	if _, own := s.Authorization(); !own || s.EngineAPIKey == "" {
		return nil
	}
	shown := sha256.Sum256([]byte(tenant.Bearer(HeaderOf(header, "authorization"))))
	if want := sha256.Sum256([]byte(s.EngineAPIKey)); subtle.ConstantTimeCompare(shown[:], want[:]) == 0 {
		return unknownTenant("The API key is missing or not known.")
	}
	return nil
}

// Known fails with an *Error for a client that is a tenant of no pool. The error reveals nothing else to it.
func (p *Picker) Known(header func(string) string) error {
	_, err := p.Whose(header)
	return err
}

// Whose returns the tenant of a client, by the first pool that knows it; empty where tenants are not distinguished. It
// fails as Known does.
func (p *Picker) Whose(header func(string) string) (tenant string, err error) {
	var refused error
	for _, v := range p.current.Load().pools {
		name, _, err := v.spec.Policy.Admission.Tenants.identify(header)
		if err == nil {
			return name, nil
		}
		refused = err
	}
	return "", refused
}

// refusal is the answer to a client in place of an error: an unknown client gets no details.
func (p *Picker) refusal(in *Request, err error) error {
	if stranger := p.Known(in.Header); stranger != nil {
		return stranger
	}
	return p.withModels(in, err)
}

// maxSuggested is how many models an error lists.
const maxSuggested = 10

// Unknown is the error for a model that does not exist for a client, with the models that it can use.
func (p *Picker) Unknown(header func(string) string, model string) error {
	return p.withModels(&Request{Header: header}, UnknownModel(model))
}

// withModels adds to an error about a model the models that the client can use instead.
func (p *Picker) withModels(in *Request, err error) error {
	var wrong *Error
	if !errors.As(err, &wrong) || wrong.Code != codeModelUnknown && wrong.Code != codeModelForbidden {
		return err
	}
	models, _ := p.current.Load().offered(in.Header, func(v *view) bool { return in.Pool == "" || v.name == in.Pool })
	if len(models) == 0 {
		return err
	}
	names := make([]string, 0, maxSuggested)
	for _, m := range models[:min(len(models), maxSuggested)] {
		names = append(names, strconv.Quote(m.Name))
	}
	more := ""
	if n := len(models) - len(names); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	with := *wrong
	with.Message += " Available: " + strings.Join(names, ", ") + more + "."
	return &with
}

// Labels for tenants that the counters do not distinguish: requests refused before their tenant was known, tenants that
// only a header names, and tenants beyond maxTenants.
const (
	unknownLabel = "unknown"
	otherLabel   = "other"
	maxTenants   = 1000
)

// label is what a tenant is counted under.
func (t *TenantsSpec) label(name string, err error) string {
	if _, listed := t.Known.ByName(name); listed {
		return name
	}
	if err != nil && name == "" {
		return unknownLabel
	}
	return otherLabel
}

// tenantCounters count what the tenants of a pool ask for.
type tenantCounters struct {
	mu  sync.Mutex
	all map[string]*TenantStats
}

// TenantRefusals are the reasons for refusing requests of tenants, by the codes that clients receive.
var TenantRefusals = [...]string{
	codeUnknownTenant, codeModelForbidden, codeUnsalted,
	tenant.TooManyRequests.String(), tenant.TooManyTokens.String(), tenant.TooManyAtOnce.String(),
}

// TenantStats are the counters of a tenant. Tokens are those of prompts and answers.
type TenantStats struct {
	Requests, Tokens int64
	// Refused requests by reason, in the order of TenantRefusals.
	Refused [len(TenantRefusals)]int64
}

// add counts requests and tokens.
func (c *tenantCounters) add(name string, requests, tokens int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.of(name)
	s.Requests += requests
	s.Tokens += tokens
}

// refuse counts a request that is refused with one of TenantRefusals.
func (c *tenantCounters) refuse(name string, err error) {
	var refusal *Error
	if !errors.As(err, &refusal) {
		return
	}
	if i := slices.Index(TenantRefusals[:], refusal.Code); i >= 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.of(name).Refused[i]++
	}
}

// of is a tenant's counters. The caller holds the lock.
func (c *tenantCounters) of(name string) *TenantStats {
	s := c.all[name]
	if s == nil {
		if c.all == nil {
			c.all = map[string]*TenantStats{}
		}
		if len(c.all) >= maxTenants {
			name = otherLabel
		}
		if s = c.all[name]; s == nil {
			s = &TenantStats{}
			c.all[name] = s
		}
	}
	return s
}

// read copies the counters.
func (c *tenantCounters) read() map[string]TenantStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[string]TenantStats, len(c.all))
	for name, s := range c.all {
		all[name] = *s
	}
	return all
}

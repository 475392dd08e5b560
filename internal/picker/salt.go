package picker

import (
	"fmt"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// Releases are the engines' releases of vLLM, as the minor number, by the epochs of the endpoints that have reported theirs; 0 for one
// that is not known.
type Releases map[string]int

// salt gives a request the cache salt of its tenant, if the policy separates the tenants' caches: the engines' answers report
// how much of a prompt was cached, and therefore whether another tenant has sent it. It returns the salt that the body must get,
// empty to leave the body as it is, and sets it in r, so that keys, chunks and caches of texts are the salt's. It fails with
// an *Error.
//
// The salt is made from the key root of the pool: all replicas have it, clients do not. A request that cannot carry a
// salt is refused, because engines would look up its prompt in blocks that all tenants share.
func (v *view) salt(in *Request, r *openai.Request, c *caller) (string, error) {
	t := v.spec.Policy.Admission.Tenants
	switch {
	case in.Again != nil:
		return in.Again.salt, nil // it has it already
	case t == nil || !t.Salts || in.Uncached || in.Light || in.Observed:
		return "", nil
	}
	own, err := ownSalt(in, r)
	if err != nil {
		return "", err
	}
	r.CacheSalt = v.spec.Seed.TenantSalt(c.name, own)
	return r.CacheSalt, nil
}

// salted gives a request the salt of its tenant, and returns the endpoints that it can go to with it; nil for all. It fails as salt and
// saltTakers do, and counts that.
func (v *view) salted(in *Request, r *openai.Request, c *caller) (salt string, allow func(*endpoint.Endpoint) bool, err error) {
	if salt, err = v.salt(in, r, c); err == nil {
		allow, err = v.saltTakers(in, r, salt)
	}
	if err != nil && !in.Routing.mirrors() {
		v.tenants.refuse(c.label, err)
	}
	return salt, allow, err
}

// ownSalt is the cache salt that a client has set, empty if it has set none. It fails with an *Error if the request cannot get
// another, or if engines refuse the client's: that must not be replaced by a valid one.
func ownSalt(in *Request, r *openai.Request) (string, error) {
	if in.Hidden || in.Guessed {
		return "", unsalted("the gateway does not show its path and its entire body.")
	}
	if in.Unparsed {
		if !in.Saltable {
			return "", unsalted("engines take no cache_salt in it.")
		}
		own, err := openai.SaltOf(in.Body)
		if err != nil {
			return "", badRequest(err)
		}
		return own, nil
	}
	if _, ok := r.Route.SaltSince(); !ok {
		return "", unsalted("engines take no cache_salt in it.")
	}
	if raw, _ := r.Raw("cache_salt"); raw != nil && r.CacheSalt == "" {
		return "", badRequest(openai.ErrSalt)
	}
	return r.CacheSalt, nil
}

// saltTakers returns which endpoints a request with a tenant's salt can go to, nil for all: those in the subset of in whose
// engine's release is known to take a salt on its route. It fails with an *Error if all releases are known, and none does.
func (v *view) saltTakers(in *Request, r *openai.Request, salt string) (allow func(*endpoint.Endpoint) bool, err error) {
	since, _ := r.Route.SaltSince()
	if salt == "" || in.Unparsed || since == 0 {
		return in.Allow, nil
	}
	releases := func() Releases {
		if exact := v.exact.Load(); exact != nil && exact.Releases != nil {
			return *exact.Releases
		}
		return nil
	}
	known, some := releases(), false
	for i := range v.spec.Endpoints {
		if ep := &v.spec.Endpoints[i]; ep.Pickable() {
			minor, ok := known[ep.Epoch()]
			some = some || !ok || minor >= since
		}
	}
	if !some && len(v.spec.Endpoints) > 0 {
		return nil, unsalted(fmt.Sprintf("no engine of the pool is known as vLLM 0.%d or newer, which takes a cache_salt in it.", since))
	}
	return func(ep *endpoint.Endpoint) bool {
		return releases()[ep.Epoch()] >= since && (in.Allow == nil || in.Allow(ep))
	}, nil
}

// CacheSalt returns the cache salt that the request's body must get before it is sent, by openai.PutSalt; empty if the body
// stays as it is.
func (d *Decision) CacheSalt() string { return d.salt }

package picker

import "github.com/kvasir-dev/kvasir/internal/openai"

// salt gives a request the cache salt of its tenant, if the policy separates the tenants' caches: the engines' answers report
// how much of a prompt was cached, and thus whether another tenant has sent it. It returns the salt that the body must get,
// empty to leave the body as it is, and sets it in r, so that keys, chunks and caches of texts are the salt's. It fails with
// an *Error.
//
// The salt is made from the key root of the pool: all replicas have it, clients do not. A request that cannot carry a
// salt is refused, because engines would look up its prompt in blocks that all tenants share.
func (v *view) salt(in *Request, r *openai.Request, w *who) (string, error) {
	t := v.spec.Policy.Admission.Tenants
	switch {
	case in.Again != nil:
		return in.Again.salt, nil // it has it already
	case t == nil || !t.Salts || in.Uncached || in.Light || in.Observed:
		return "", nil
	}
	if err := saltable(in, r); err != nil {
		return "", err
	}
	r.CacheSalt = v.spec.Seed.TenantSalt(w.name, r.CacheSalt)
	return r.CacheSalt, nil
}

// saltable fails with an *Error if a request cannot get another cache salt.
func saltable(in *Request, r *openai.Request) error {
	switch {
	case in.Hidden || in.Guessed:
		return unsalted("the gateway does not show its path and its entire body.")
	case in.Unparsed || !r.Route.TakesSalt():
		return unsalted("engines take no cache_salt in it.")
	}
	// Engines refuse a salt that is empty or no string. It must not be replaced by a valid one.
	if raw, _ := r.Raw("cache_salt"); raw != nil && r.CacheSalt == "" {
		return badRequest(&openai.FieldError{Field: "cache_salt", Msg: "must be a string that is not empty"})
	}
	return nil
}

// CacheSalt returns the cache salt that the request's body must get before it is sent, by openai.PutSalt; empty if the body
// stays as it is.
func (d *Decision) CacheSalt() string { return d.salt }

package picker

import "slices"

// IsPreflight reports whether a request is a browser's question what it is allowed to send across origins (CORS): one that by its
// specification has no credentials.
func IsPreflight(method string, header func(name string) string) bool {
	return method == "OPTIONS" && header("origin") != "" && header("access-control-request-method") != ""
}

// AllowedOrigin is the value of Access-Control-Allow-Origin for a request from a page of the given origin, by the policies of
// all pools, or of the one with the namespace/name pool if that is not empty; empty if no policy allows the origin. A
// preflight names no model, so that its pool is not known.
func (p *Picker) AllowedOrigin(origin, pool string) string {
	if origin == "" {
		return ""
	}
	for _, v := range p.current.Load().pools {
		if pool != "" && v.name != pool {
			continue
		}
		switch allowed := v.spec.Policy.Admission.AllowedOrigins; {
		case slices.Contains(allowed, "*"):
			return "*"
		case slices.Contains(allowed, origin):
			return origin
		}
	}
	return ""
}

// Preflight answers a preflight in place of an engine, which no request without a key reaches: with the headers of a 204, by
// name in lower case and value. It fails with an *Error if no policy allows the origin. Credentials are never allowed: keys
// are sent in a header that the page sets, not by the browser.
func (p *Picker) Preflight(header func(name string) string, pool string) (answer [][2]string, err error) {
	origin := p.AllowedOrigin(header("origin"), pool)
	if origin == "" {
		return nil, originForbidden()
	}
	answer = [][2]string{
		{"access-control-allow-origin", origin}, {"access-control-allow-methods", "GET, HEAD, POST"}, {"access-control-max-age", "600"},
		{"vary", "Origin, Access-Control-Request-Headers"},
	}
	if asked := header("access-control-request-headers"); asked != "" {
		answer = append(answer, [2]string{"access-control-allow-headers", asked})
	}
	return answer, nil
}

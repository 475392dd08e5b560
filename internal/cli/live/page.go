package live

import (
	"net/http"
	"net/http/httputil"
	"slices"
)

// Page serves what the picker serves, its page included, to browsers of this machine, for which it shows the token. Only
// requests to the hosts that are named are served, so that no other site's name can be made to mean this address, and
// none that another site has a browser send to change or ask something.
func (p *Picker) Page(hosts ...string) http.Handler {
	transport := p.client.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1, // decisions are sent as they are made
		Transport:     transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&p.base)
			r.Out.Header.Del("Cookie")
			r.Out.Header.Del("Origin")
		},
	}
	return http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(hosts, r.Host) {
			http.Error(w, "this page is for browsers of this machine", http.StatusForbidden)
			return
		}
		r.Header.Del("Authorization")
		if p.token != nil {
			token, err := p.token(r.Context())
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
		}
		proxy.ServeHTTP(w, r)
	}))
}

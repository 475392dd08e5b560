package server

import (
	"net"
	"net/http"
	"slices"
	"strings"
)

// ownSuffixes are those of names that only a cluster or a private network resolves.
var ownSuffixes = []string{".svc", ".cluster.local", ".local", ".internal", ".localhost", ".test", ".home.arpa"}

// withoutRebinding refuses requests for a public name that is none of names. Where metrics are open a page from elsewhere could otherwise
// have its own name resolve to this address (DNS rebinding) and read them as its own origin. Addresses, names without dots
// and private names stay open. A page can choose what its browser says that it is, so that all clients are treated alike.
func withoutRebinding(h http.Handler, names []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := hostName(r.Host); !isOwnName(name) && !slices.Contains(names, name) {
			http.Error(w, "metrics are not served under that name: use an address, a private name, or --metrics-host", http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// hostName is a Host without port, in lower case.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// isOwnName reports whether a name is one that no foreign DNS server can resolve to this address.
func isOwnName(host string) bool {
	return !strings.Contains(host, ".") || net.ParseIP(host) != nil ||
		slices.ContainsFunc(ownSuffixes, func(suffix string) bool { return strings.HasSuffix(host, suffix) })
}

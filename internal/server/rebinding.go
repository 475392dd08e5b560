package server

import (
	"net"
	"net/http"
	"slices"
	"strings"
)

// ownSuffixes are those of names that only a cluster or a private network resolves.
var ownSuffixes = []string{".svc", ".cluster.local", ".local", ".internal", ".localhost", ".test", ".home.arpa"}

// withoutRebinding refuses browsers that ask for a public name. Where metrics are open a page from elsewhere could otherwise
// have its own name resolve to this address (DNS rebinding) and read them as its own origin. Addresses, names without dots
// and private names stay open, and so do clients that are no browsers.
func withoutRebinding(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.UserAgent(), "Mozilla/") && !isOwnName(r.Host) {
			http.Error(w, "this page is not served under that name: use an address or a private name", http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// isOwnName reports whether a Host is a name that no foreign DNS server can resolve to this address.
func isOwnName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	return !strings.Contains(host, ".") || net.ParseIP(host) != nil ||
		slices.ContainsFunc(ownSuffixes, func(suffix string) bool { return strings.HasSuffix(host, suffix) })
}

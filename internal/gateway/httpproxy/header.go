package httpproxy

import (
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

const (
	rankHeader    = "X-Data-Parallel-Rank"
	apiKeyHeader  = "X-Api-Key" // picker.APIKeyHeader
	explainHeader = picker.ExplainHeader
	ownPrefix     = "X-Kvasir-"
	loadReport    = "Endpoint-Load-Metrics" // picker.LoadReport
)

// headerOf reads a request's header, and the name of the certificate that its client has shown, if that is one of the authority.
func headerOf(r *http.Request) func(name string) string {
	shown := ""
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		shown, _ = certs.NameOf(r.TLS.PeerCertificates[0]) // one without a name is none
	}
	if shown == "" {
		return r.Header.Get // a header of net/http has no such name
	}
	return func(name string) string {
		if name == picker.CertificateHeader {
			return shown
		}
		return r.Header.Get(name)
	}
}

// hopByHop lists headers that concern one connection only (RFC 9110, 7.6.1, and what was common before).
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// copyHeader copies what goes from end to end: not what concerns one connection, not what Connection names, no load reports, and
// not our own headers. The values are shared, not copied. (What Connection names beside "close" does pass: net/http takes that
// list away.)
func copyHeader(dst, src http.Header) {
	for name, values := range src {
		if !hopByHop(name) && !strings.HasPrefix(name, ownPrefix) && !strings.HasPrefix(name, loadReport) {
			dst[name] = values
		}
	}
	for _, list := range src["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			if name = textproto.TrimString(name); name != "" {
				delete(dst, http.CanonicalHeaderKey(name))
			}
		}
	}
}

// requestHeader is the header of a request to ep.
func requestHeader(r *http.Request, ep *endpoint.Endpoint, id string, d *picker.Decision) http.Header {
	h := make(http.Header, len(r.Header)+4)
	copyHeader(h, r.Header)
	// All of the body is here already, and the length follows from what is sent.
	delete(h, "Expect")
	delete(h, "Content-Length")
	delete(h, rankHeader)
	if ep.RankHeader >= 0 {
		h[rankHeader] = []string{strconv.Itoa(ep.RankHeader)}
	}
	d.EachForeignHeader(func(name string) { delete(h, http.CanonicalHeaderKey(name)) })
	if model := d.InvokedModel(); model != "" {
		h[http.CanonicalHeaderKey(picker.InvokedModelHeader)] = []string{model}
	}
	if value, own := d.Spec().Authorization(); !own {
		delete(h, "Authorization")
		delete(h, apiKeyHeader)
		if value != "" {
			h["Authorization"] = []string{value}
		}
	}
	if ip, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		if before := h["X-Forwarded-For"]; len(before) > 0 {
			ip = strings.Join(before, ", ") + ", " + ip
		}
		h["X-Forwarded-For"] = []string{ip}
	}
	h["X-Request-Id"] = []string{id}
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = nil // else net/http would add its own
	}
	return h
}

package httpproxy

import (
	"math/rand/v2"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

const (
	rankHeader    = "X-Data-Parallel-Rank"
	explainHeader = picker.ExplainHeader
	ownPrefix     = "X-Kvasir-"
)

// hopByHop tells of headers that concern one connection only (RFC 9110, 7.6.1, and what was common before).
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// copyHeader copies what goes from end to end: not what concerns one connection, not what Connection names, not our
// own headers. The values are shared, not copied. (What Connection names beside "close" does pass: net/http takes that
// list away.)
func copyHeader(dst, src http.Header) {
	for name, values := range src {
		if !hopByHop(name) && !strings.HasPrefix(name, ownPrefix) {
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
func requestHeader(r *http.Request, ep *endpoint.Endpoint, id string, spec *picker.Spec) http.Header {
	h := make(http.Header, len(r.Header)+4)
	copyHeader(h, r.Header)
	// The whole body is here already, and the length is told by what is sent.
	delete(h, "Expect")
	delete(h, "Content-Length")
	delete(h, rankHeader)
	if ep.RankHeader >= 0 {
		h[rankHeader] = []string{strconv.Itoa(ep.RankHeader)}
	}
	if value, own := spec.Authorization(); value != "" {
		h["Authorization"] = []string{value}
	} else if !own {
		delete(h, "Authorization")
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
	// Allows the transport to send the request once more when the engine closes a kept connection at the same moment.
	// An empty list is not sent.
	if _, ok := h["Idempotency-Key"]; !ok {
		h["X-Idempotency-Key"] = []string{}
	}
	return h
}

// requestID is the client's name for the request, or a new one.
func requestID(h http.Header) string {
	if id := h.Get("X-Request-Id"); id != "" {
		return id
	}
	const digits = "0123456789abcdef"
	var id [32]byte
	for i := 0; i < len(id); i += 16 {
		for j, v := 0, rand.Uint64(); j < 16; j, v = j+1, v>>4 {
			id[i+j] = digits[v&15]
		}
	}
	return string(id[:])
}

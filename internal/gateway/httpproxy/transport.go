package httpproxy

import (
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/kvasir-dev/kvasir/internal/engines/transport"
)

// maxAnswerHeader is the largest header of an engine's answer, in bytes. A request under way holds one besides requestCost.
const maxAnswerHeader = 32 << 10

// newTransports keeps connections to engines, a pool per address.
func newTransports(o *Options) *transport.Transports {
	dialer := &net.Dialer{Timeout: o.DialTimeout, KeepAlive: 15 * time.Second}
	return transport.NewTransports(dialer.DialContext, func() *http.Transport {
		return &http.Transport{
			MaxIdleConns:           o.MaxIdle,
			MaxIdleConnsPerHost:    o.IdlePerEndpoint,
			DisableCompression:     true, // so that answers pass as they are
			MaxResponseHeaderBytes: maxAnswerHeader,
		}
	})
}

// upstreamURL keeps path and query of what the client asked for.
func upstreamURL(u *url.URL) *url.URL {
	return &url.URL{Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery, ForceQuery: u.ForceQuery}
}

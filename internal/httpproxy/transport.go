package httpproxy

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// transport keeps connections to engines, a pool per address.
type transport struct {
	tcp, unix *http.Transport
}

func newTransport(o *Options) *transport {
	dialer := &net.Dialer{Timeout: o.DialTimeout, KeepAlive: 15 * time.Second}
	tcp := &http.Transport{
		Proxy:                  nil, // engines are never behind the environment's proxy
		DialContext:            dialer.DialContext,
		MaxIdleConnsPerHost:    o.IdlePerEndpoint,
		IdleConnTimeout:        o.IdleTimeout,
		DisableCompression:     true, // so that answers pass as they are
		MaxResponseHeaderBytes: 256 << 10,
	}
	unix := tcp.Clone()
	unix.DialContext = func(ctx context.Context, _, address string) (net.Conn, error) {
		path, err := socketPath(address)
		if err != nil {
			return nil, err
		}
		return dialer.DialContext(ctx, "unix", path)
	}
	return &transport{tcp: tcp, unix: unix}
}

func (t *transport) close() {
	t.tcp.CloseIdleConnections()
	t.unix.CloseIdleConnections()
}

// roundTrip sends a request whose URL has path and query only to an endpoint.
func (t *transport) roundTrip(r *http.Request, ep *endpoint.Endpoint) (*http.Response, error) {
	if ep.Socket == "" {
		r.URL.Host = ep.Address
		return t.tcp.RoundTrip(r)
	}
	r.URL.Host, r.Host = socketHost(ep.Socket), "localhost"
	return t.unix.RoundTrip(r)
}

// socketHost makes a socket's path a host name, so that connections are pooled by it.
func socketHost(path string) string { return hex.EncodeToString([]byte(path)) }

func socketPath(address string) (string, error) {
	host, _, _ := strings.Cut(address, ":")
	path, err := hex.DecodeString(host)
	if err != nil {
		return "", fmt.Errorf("reading a socket's path: %w", err)
	}
	return string(path), nil
}

// upstreamURL keeps path and query of what the client asked for.
func upstreamURL(u *url.URL) *url.URL {
	return &url.URL{Scheme: "http", Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery, ForceQuery: u.ForceQuery}
}

// Package transport sends HTTP requests to engines: over TCP or unix sockets, with TLS or without, in HTTP/1.1 or HTTP/2.
package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// Dial makes connections; the network is "tcp" or "unix".
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// IdleTimeout is how long an idle connection to an engine is kept at most. vLLM and SGLang close theirs after
// 5 s by default; a request that is sent while the engine closes the connection fails.
const IdleTimeout = 4 * time.Second

const (
	// handshake bounds that of TLS.
	handshake = 5 * time.Second
	// quiet is how long an HTTP/2 connection can be silent before it is probed, and answerWithin how long it can take to
	// answer the probe.
	quiet, answerWithin = 15 * time.Second, 15 * time.Second
	// maxUnread is how much of an answer over HTTP/2 is received before the client takes it, in bytes. The default is 4 MiB for each request.
	maxUnread = 64 << 10
	// maxKept is the most transports kept. There is one for each way that any pool has had its engines spoken to since
	// the start; beyond it all are made again.
	maxKept = 64
)

// LocalFault reports whether an engine was not reached because of a local shortage: file descriptors, ports or memory. It says nothing of
// the engine.
func LocalFault(err error) bool {
	for _, fault := range [...]error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, fault) {
			return true
		}
	}
	return false
}

// Transport is base, which must not have been used, as it must be for engines of a wire. Idle connections end within
// IdleTimeout.
func Transport(base *http.Transport, w endpoint.Wire) *http.Transport {
	if base.IdleConnTimeout <= 0 || base.IdleConnTimeout > IdleTimeout {
		base.IdleConnTimeout = IdleTimeout
	}
	base.Protocols = new(http.Protocols)
	switch {
	case w.H2C:
		base.Protocols.SetUnencryptedHTTP2(true)
		base.HTTP2 = &http.HTTP2Config{SendPingTimeout: quiet, PingTimeout: answerWithin, MaxReceiveBufferPerStream: maxUnread}
	default:
		base.Protocols.SetHTTP1(true)
	}
	if w.TLS {
		base.TLSHandshakeTimeout = handshake
		base.TLSClientConfig = &tls.Config{
			MinVersion: tls.VersionTLS12, ServerName: w.ServerName,
			InsecureSkipVerify: w.Unchecked, // as the pool is configured
		}
		if w.CA != "" {
			base.TLSClientConfig.RootCAs = x509.NewCertPool()
			base.TLSClientConfig.RootCAs.AppendCertsFromPEM([]byte(w.CA)) // without a certificate no server is trusted
		}
	}
	return base
}

// RoundTripper is what Transport returns, or better where the wire allows it: it keeps connections as base would, which must have
// a DialContext.
func RoundTripper(base *http.Transport, w endpoint.Wire) http.RoundTripper {
	base = Transport(base, w)
	if w == (endpoint.Wire{}) {
		return newDirect(base)
	}
	if w.H2C {
		return base // it sends again only what an engine says it has not processed
	}
	base.DialContext = traceDial(base.DialContext)
	return rewinding{base}
}

func closeIdle(t http.RoundTripper) {
	if t, ok := t.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// Scheme of the URLs of engines of a wire.
func Scheme(w endpoint.Wire) string {
	if w.TLS {
		return "https"
	}
	return "http"
}

// Transports are transports to engines, one for each wire, each with a pool of connections per endpoint. It is safe for
// concurrent use.
type Transports struct {
	base  func() *http.Transport
	plain http.RoundTripper // of the zero wire

	mu     sync.RWMutex
	others map[endpoint.Wire]http.RoundTripper // guarded by mu
}

// NewTransports makes transports of what base returns, again at each call, except for the dialing, which is by dial.
func NewTransports(dial Dial, base func() *http.Transport) *Transports {
	t := &Transports{others: map[endpoint.Wire]http.RoundTripper{}}
	t.base = func() *http.Transport {
		one := base()
		one.Proxy = nil // engines are never behind the environment's proxy
		one.DialContext = dialer(dial)
		return one
	}
	t.plain = RoundTripper(t.base(), endpoint.Wire{})
	return t
}

// Close gives up the idle connections.
func (t *Transports) Close() {
	closeIdle(t.plain)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeOthers()
}

// closeOthers forgets all but the plain one. t.mu is held.
func (t *Transports) closeOthers() {
	for _, one := range t.others {
		closeIdle(one)
	}
	clear(t.others)
}

// RoundTrip sends a request, whose URL has path and query, to an endpoint.
func (t *Transports) RoundTrip(r *http.Request, ep *endpoint.Endpoint) (*http.Response, error) {
	r.URL.Scheme, r.URL.Host = Scheme(ep.Wire), ep.Address
	if ep.Socket != "" {
		r.URL.Host, r.Host = hex.EncodeToString([]byte(ep.Socket))+socketSuffix, "localhost"
	}
	return t.of(ep.Wire).RoundTrip(r)
}

func (t *Transports) of(w endpoint.Wire) http.RoundTripper {
	if w == (endpoint.Wire{}) {
		return t.plain
	}
	t.mu.RLock()
	one := t.others[w]
	t.mu.RUnlock()
	if one != nil {
		return one
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if one = t.others[w]; one == nil {
		if len(t.others) >= maxKept {
			t.closeOthers()
		}
		one = RoundTripper(t.base(), w)
		t.others[w] = one
	}
	return one
}

// socketSuffix marks host names that represent unix sockets: the path in hexadecimal digits. Connections are pooled by host
// name, so that each socket needs its own.
const socketSuffix = ".socket.invalid"

// dialer makes connections to what RoundTrip names.
func dialer(dial Dial) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return dial(ctx, network, address)
		}
		digits, socket := strings.CutSuffix(host, socketSuffix)
		if !socket {
			return dial(ctx, network, address)
		}
		path, err := hex.DecodeString(digits)
		if err != nil {
			return nil, fmt.Errorf("reading the path of a socket: %w", err)
		}
		return dial(ctx, "unix", string(path))
	}
}

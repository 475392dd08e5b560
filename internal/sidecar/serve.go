package sidecar

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/netutil"
)

const (
	// maxConnections is how many connections of clients can be open; others wait.
	maxConnections = 8192
	// headerTimeout bounds the arrival of a header, idleTimeout a connection between two requests. Gateways keep connections for longer than
	// engines do, and send requests again that find theirs closed.
	headerTimeout = 10 * time.Second
	idleTimeout   = 5 * time.Minute
	// maxHeader is the largest header of a request, bytes.
	maxHeader = 64 << 10
)

// How often the engine is looked for while it is there, and while it is not.
const (
	lookEvery  = 500 * time.Millisecond
	awaitEvery = 50 * time.Millisecond
)

// Serve serves the pool's port until ctx ends, and then the requests that are under way, until the engine has ended them or patience is
// over. listen opens the port; a nil config is for no TLS.
//
// The port is open while the engine takes connections:
//
//	closed --engine takes a connection--> open --engine refuses one--> closed
//
// So a gateway sees a dead engine as it would without the sidecar, and sends requests elsewhere that have not reached one.
func (s *Server) Serve(ctx context.Context, listen func() (net.Listener, error), config *tls.Config, patience time.Duration) error {
	defer s.Close()
	var ending sync.WaitGroup
	defer ending.Wait()
	for s.untilEngine(ctx, awaitEvery, true) {
		l, err := listen()
		if err != nil {
			return fmt.Errorf("opening the pool's port: %w", err)
		}
		s.options.Log.Info("Serving the pool's port", "address", l.Addr().String(), "engine", s.options.Engine)
		server, served := s.life(l, config)
		if s.untilEngine(ctx, lookEvery, false) {
			s.options.Log.Info("Engine refuses connections: the pool's port is closed until it takes them", "engine", s.options.Engine)
		}
		ending.Go(func() { end(ctx, server, patience) })
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving the pool's port: %w", err)
		}
	}
	return nil
}

// life begins to serve a listener.
func (s *Server) life(l net.Listener, config *tls.Config) (*http.Server, <-chan error) {
	if l = netutil.LimitListener(l, maxConnections); config != nil {
		l = tls.NewListener(l, config)
	}
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		DisableGeneralOptionsHandler: true, ErrorLog: stdlog.New(io.Discard, "", 0),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	return server, served
}

// end closes the port and idle connections at once, and the others when their request is over, at the latest when ctx has ended for the
// time of patience.
func end(ctx context.Context, server *http.Server, patience time.Duration) {
	wait, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-wait.Done():
		}
	})
	defer stop()
	if server.Shutdown(wait) != nil {
		_ = server.Close()
	}
}

// untilEngine waits until the engine takes connections, or refuses them. It reports false if ctx ends before.
func (s *Server) untilEngine(ctx context.Context, every time.Duration, takes bool) bool {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for ctx.Err() == nil {
		c, err := s.dialer.DialContext(ctx, "tcp", s.options.Engine)
		if err == nil {
			_ = c.Close()
		}
		if takes && err == nil || !takes && errors.Is(err, syscall.ECONNREFUSED) {
			return ctx.Err() == nil
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-s.refusing:
		}
	}
	return false
}

// noteRefusal has the engine looked for at once if an error is that it refuses connections.
func (s *Server) noteRefusal(err error) {
	if errors.Is(err, syscall.ECONNREFUSED) {
		select {
		case s.refusing <- struct{}{}:
		default:
		}
	}
}

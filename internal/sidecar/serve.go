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

// Serve serves a listener until ctx ends, and then the requests that are under way, until the engine has ended them or patience is over.
// A nil config is for no TLS.
func (s *Server) Serve(ctx context.Context, l net.Listener, config *tls.Config, patience time.Duration) error {
	if l = netutil.LimitListener(l, maxConnections); config != nil {
		l = tls.NewListener(l, config)
	}
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		DisableGeneralOptionsHandler: true, ErrorLog: stdlog.New(io.Discard, "", 0),
	}
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(over)
		wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		if server.Shutdown(wait) != nil {
			_ = server.Close()
		}
	})
	err := server.Serve(l)
	if !stop() {
		<-over
	}
	s.Close()
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the pool's port: %w", err)
	}
	return nil
}

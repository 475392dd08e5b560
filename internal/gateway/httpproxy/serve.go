package httpproxy

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// ServeOptions bound what a server takes. Zero values take the defaults.
type ServeOptions struct {
	// Grace is how long requests under way can go on after the context has ended; 30 s.
	Grace time.Duration
	// ReadHeaderTimeout bounds the reading of a request's header, IdleTimeout the time between the requests of a
	// connection; 10 s and 2 min.
	ReadHeaderTimeout, IdleTimeout time.Duration
	// MaxHeaderBytes of a request; 128 KiB.
	MaxHeaderBytes int
	// MaxConnections is the most connections at once; one address can have as many as are free; 16384. Budget is
	// what they draw on; nil for none.
	MaxConnections int
	Budget         *budget.Budget
	// MaxStreams is the most requests at once on one HTTP/2 connection; 4096.
	MaxStreams int
	// Log gets what goes wrong on connections, at V(1): it is mostly the clients' doing.
	Log logr.Logger
}

// Serve serves HTTP/1.1, and HTTP/2 without TLS, on a listener until ctx ends. Then it accepts no more, waits
// for running requests for at most the grace period, aborts the rest, and returns when all handlers have returned. It
// closes the listener. The error is nil after an orderly end.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, o ServeOptions) error {
	set(&o.Grace, 30*time.Second)
	set(&o.ReadHeaderTimeout, 10*time.Second)
	set(&o.IdleTimeout, 2*time.Minute)
	set(&o.MaxHeaderBytes, 128<<10)
	set(&o.MaxStreams, 4096)
	set(&o.MaxConnections, 16<<10)

	var running handlers
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !running.enter() {
				panic(http.ErrAbortHandler)
			}
			defer running.wait.Done()
			handler.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: o.ReadHeaderTimeout,
		IdleTimeout:       o.IdleTimeout,
		MaxHeaderBytes:    o.MaxHeaderBytes,
		Protocols:         protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: o.MaxStreams},
		ErrorLog:          log.New(logWriter{o.Log.V(1)}, "", 0),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(newListener(listener, o.MaxConnections, o.Budget)) }()

	select {
	case err := <-served:
		_ = server.Close()
		running.finish()
		return fmt.Errorf("serving on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.Grace)
	defer cancel()
	err := server.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		o.Log.Info("Requests aborted at the end of the grace period", "grace", o.Grace.String())
		err = server.Close()
	}
	if closed := <-served; err == nil && !errors.Is(closed, http.ErrServerClosed) {
		err = closed
	}
	running.finish()
	if err != nil {
		return fmt.Errorf("shutting down on %s: %w", listener.Addr(), err)
	}
	return nil
}

// handlers counts the handlers that run.
type handlers struct {
	mu     sync.Mutex // orders enter and finish
	closed bool
	wait   sync.WaitGroup
}

// enter counts one more, unless finish was called: a connection might just have read a request when it is closed.
func (h *handlers) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.wait.Add(1)
	}
	return !h.closed
}

// finish lets no more enter and waits for those that run.
func (h *handlers) finish() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.wait.Wait()
}

// logWriter makes log lines of net/http's words.
type logWriter struct{ log logr.Logger }

func (w logWriter) Write(p []byte) (int, error) {
	if w.log.Enabled() {
		w.log.Info("Connection failed", "reason", string(p))
	}
	return len(p), nil
}

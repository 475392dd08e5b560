package httpproxy

import (
	"cmp"
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
	"github.com/kvasir-dev/kvasir/internal/gateway/accept"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/overload"
)

// ServeOptions bound what a server takes. Zero values take the defaults.
type ServeOptions struct {
	// Grace is how long requests under way can continue after the context has ended; default 30 s.
	Grace time.Duration
	// ReadHeaderTimeout bounds the reading of a request's header, IdleTimeout the time between the requests of a
	// connection; 10 s and 2 min.
	ReadHeaderTimeout, IdleTimeout time.Duration
	// MaxHeaderBytes of a request; 64 KiB.
	MaxHeaderBytes int
	// MaxConnections is the most connections at once; one network can have as many as are free, and idle ones give way to those of
	// networks with fewer; 16384. Budget is what they and the headers of their requests draw on; nil for none.
	MaxConnections int
	Budget         *budget.Budget
	// Port counts the connections that are closed because there was no room; nil for no count.
	Port *overload.Port
	// Brief is for handlers whose answers take little time: connections at work give way to new ones, too, each can hold an equal part of
	// Budget, which is the server's alone, and bodies of HTTP/1 must arrive in unreadBody.
	Brief bool
	// Overload closes new connections while resources are short; nil for never.
	Overload *overload.Manager
	// MaxStreams is the most requests at once on one HTTP/2 connection; 1024.
	MaxStreams int
	// MaxRequests is the most requests at once on all connections; one address can have as many as are free. Others are
	// answered with 503. 0 for no limit.
	MaxRequests int
	// Stall is how long a client can take nothing of an answer until its connection is closed; 0 for no limit. A connection of HTTP/2
	// is also closed if nothing at all can be written for that time.
	Stall time.Duration
	// TLS makes clients speak it, with HTTP/2 if its protocols have that; nil for none.
	TLS *accept.Handshakes
	// Log gets what goes wrong on connections, at V(1): it is mostly the clients' doing.
	Log logr.Logger
}

// Serve serves HTTP/1.1 and HTTP/2, without TLS or in it, on a listener until ctx ends. Then it accepts no more, waits
// for running requests for at most the grace period, aborts the rest, and returns when all handlers have returned. It
// closes the listener. The error is nil after an orderly end.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, o ServeOptions) error {
	o.Grace = cmp.Or(o.Grace, 30*time.Second)
	o.ReadHeaderTimeout = cmp.Or(o.ReadHeaderTimeout, 10*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 2*time.Minute)
	o.MaxHeaderBytes = cmp.Or(o.MaxHeaderBytes, 64<<10)
	o.MaxStreams = cmp.Or(o.MaxStreams, 1024)
	o.MaxConnections = cmp.Or(o.MaxConnections, 16<<10)

	if o.TLS != nil {
		o.TLS.Timeout = cmp.Or(o.TLS.Timeout, o.ReadHeaderTimeout)
	}
	running := handlers{most: o.MaxRequests, brief: o.Brief, hosts: map[string]int{}}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			running.serve(w, r, handler, o.Stall)
		}),
		ConnState:         accept.Follow,
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ReadHeaderTimeout: o.ReadHeaderTimeout,
		IdleTimeout:       o.IdleTimeout,
		MaxHeaderBytes:    o.MaxHeaderBytes,
		Protocols:         protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: o.MaxStreams, WriteByteTimeout: o.Stall},
		// handlers.serve answers them: what the connection has counted of their headers must be given back.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     log.New(logWriter{o.Log.V(1)}, "", 0),
	}
	served := make(chan error, 1)
	go func() {
		limited := accept.LimitHTTP(listener, o.MaxConnections, o.Budget).During(o.Overload).Counting(o.Port).Securing(o.TLS)
		if o.Brief {
			limited.SheddingBusy().Dividing(o.Budget.Stats().Limit)
		}
		served <- server.Serve(limited)
	}()

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
		logging.Warn(o.Log, "Requests aborted at the end of the grace period", "grace", o.Grace.String())
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

// connKey is the key of a request's connection in its context.
type connKey struct{}

// handlers counts the handlers that run.
type handlers struct {
	most  int  // of all clients; 0 for no limit
	brief bool // ServeOptions.Brief

	mu     sync.Mutex // orders enter and finish, guards what follows
	closed bool
	open   int
	// hosts are the handlers by address, only with a limit: the pods and nodes of some clusters are in one network.
	hosts map[string]int
	wait  sync.WaitGroup
}

// serve calls a handler if there is room for one more.
func (h *handlers) serve(w http.ResponseWriter, r *http.Request, handler http.Handler, stall time.Duration) {
	host := budget.Host(r.RemoteAddr)
	room, closed := h.enter(host)
	if closed {
		panic(http.ErrAbortHandler)
	}
	if !room {
		busy(w, r)
		return
	}
	defer h.leave(host)
	conn, _ := r.Context().Value(connKey{}).(*accept.Conn)
	r.TLS = conn.Secured() // net/http sees the connection without its encryption
	end, room := conn.Begin(r)
	if !room {
		busy(w, r)
		return
	}
	defer end()
	if r.RequestURI == "*" && r.Method == http.MethodOptions { // of the server, not of what it serves
		leaveBody(w, r)
		w.Header().Set("Content-Length", "0")
		return
	}
	if h.brief && r.ProtoMajor < 2 {
		leaveBody(w, r)
	}
	if stall > 0 {
		w = &steady{ResponseWriter: w, control: http.NewResponseController(w), stall: stall}
	}
	handler.ServeHTTP(w, r)
}

// busy refuses a request before anything of it was looked at.
func busy(w http.ResponseWriter, r *http.Request) {
	leaveBody(w, r)
	w.Header().Set("Retry-After", "1")
	w.Header().Set("Connection", "close")
	http.Error(w, "Too many requests are under way.", http.StatusServiceUnavailable)
}

// leaveBody bounds how long the connection lasts for the body of a request that is answered without it: net/http waits for the rest of
// the body first, and knows no limit for that.
func leaveBody(w http.ResponseWriter, r *http.Request) {
	if r.Body == http.NoBody {
		return
	}
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(unreadBody))
}

// unreadBody is how long a client can send a body that nothing reads.
const unreadBody = 5 * time.Second

// enter counts one more if there is room, unless finish was called: a connection might just have read a request when it is
// closed.
func (h *handlers) enter(host string) (room, closed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return false, true
	case h.most > 0:
		if h.hosts[host] >= h.most-h.open {
			return false, false
		}
		h.open++
		h.hosts[host]++
	}
	h.wait.Add(1)
	return true, false
}

func (h *handlers) leave(host string) {
	h.wait.Done()
	if h.most == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open--
	if h.hosts[host]--; h.hosts[host] == 0 {
		delete(h.hosts, host)
	}
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
		logging.Warn(w.log, "Connection failed", "reason", string(p))
	}
	return len(p), nil
}

// steady closes the connection of a client that takes nothing of an answer for the stall time.
type steady struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
}

// Write sends a part of the answer.
func (s *steady) Write(p []byte) (int, error) {
	defer s.within()()
	return s.ResponseWriter.Write(p)
}

// FlushError sends what was written so far.
func (s *steady) FlushError() error {
	defer s.within()()
	return s.control.Flush()
}

// Flush implements http.Flusher.
func (s *steady) Flush() { _ = s.FlushError() }

// Unwrap is for http.ResponseController.
func (s *steady) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// within bounds what is written until the returned function is called.
func (s *steady) within() (end func()) {
	_ = s.control.SetWriteDeadline(time.Now().Add(s.stall))
	return func() { _ = s.control.SetWriteDeadline(time.Time{}) }
}

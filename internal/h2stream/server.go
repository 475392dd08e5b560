// Package h2stream serves gRPC streams over HTTP/2 to gateways, at little cost for each message.
//
// gRPC's own server hands every message from the goroutine that reads a connection to one of the stream, and every
// answer to a third that writes. On a machine that is not busy each hand-over wakes a sleeping thread, which costs more
// than all that is done with a piece of an answer. Here the goroutine that reads a connection calls the stream's
// Handler itself, and writes what was answered when nothing more is there to read. What may wait runs elsewhere
// (Stream.Off).
//
//	socket --> wire (reads ahead) --> TLS --> frames --> Stream --> Handler.Message
//	socket <-- wire (keeps)       <-- TLS <-- frames <-- Stream <-- Stream.Send
//	       ^ flushed before a read that may wait, without waiting; what the socket does not take a goroutine writes
//
// It is a server of HTTP/2 (RFC 9113) for gRPC (its PROTOCOL-HTTP2) and nothing else: frames and header compression are
// read by golang.org/x/net/http2; messages are not compressed, there is no priority and no push. Reading never waits for
// writing. What a client may send ahead is bounded by flow control, what waits for a client by Options.MaxPending.
package h2stream

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
)

// Handler has the messages of one stream. Its methods are called one at a time, by different goroutines, and must not
// wait: others' messages come on the same connection. None is called while what was given to Stream.Off runs.
type Handler interface {
	// Message takes a message of the client. Its bytes are the caller's again when it returns.
	Message(m []byte)
	// HalfClosed tells that the client sends no more. It expects Stream.Finish in the end.
	HalfClosed()
	// Ended tells that the stream is over, for whatever reason: finished, reset, or its connection lost. It is the last
	// call, and comes exactly once.
	Ended()
}

// Options are what a Server is made of. Zero values take the defaults.
type Options struct {
	// Open gives the handler of a new stream; nil when there is no such method. It must not wait. Needed.
	Open func(call *Call, s *Stream) Handler
	// TLS of the connections; nil for none.
	TLS *tls.Config
	// MaxMessage is the largest message taken, in bytes; 4 MiB. A larger one ends its stream with RESOURCE_EXHAUSTED.
	MaxMessage int
	// MaxHeld is the most bytes held of messages that have not come to their end, on all streams; 1 GiB. A message that
	// would take more ends its stream with RESOURCE_EXHAUSTED.
	MaxHeld int64
	// MaxPending is the most bytes that wait for the client on one stream, but for bodies that their senders had not
	// count, before the client may send no more on it; 8 MiB.
	MaxPending int64
	// ConnectionAge is how old a connection may become before the client is told to open another one, give or take a
	// tenth; 0 for any age. Its streams go on.
	ConnectionAge time.Duration
	// A connection on which nothing was heard for Keepalive, 30 s, is asked for a sign of life, and given up when none
	// comes within KeepaliveTimeout, 10 s.
	Keepalive, KeepaliveTimeout time.Duration
	// Log gets faults of handlers.
	Log logr.Logger
}

const (
	// streamWindow and connectionWindow are how many bytes a client may send ahead: enough for a long prompt without
	// waiting.
	streamWindow     = 1 << 20
	connectionWindow = 16 << 20

	handshakeTimeout = 20 * time.Second
	// goAwayPatience is how long streams may still be opened by a client that has been told to go and does not confirm it.
	goAwayPatience = 5 * time.Second
	// idleWorkers is the most goroutines that wait for something to do, rather than end: their stacks have grown already.
	idleWorkers = 64
)

// Server serves connections. Make it with New.
type Server struct {
	options Options

	held    atomic.Int64 // bytes of messages that have not come to their end
	work    chan func()  // to workers that wait
	idle    atomic.Int32
	quit    chan struct{}  // closed when workers are to end
	serving sync.WaitGroup // connections
	jobs    sync.WaitGroup // what workers are at
	workers sync.WaitGroup

	mu          sync.Mutex
	connections map[*connection]bool // guarded by mu
	leaving     bool                 // guarded by mu
}

// New makes a server.
func New(o Options) *Server {
	o.MaxMessage = cmp.Or(o.MaxMessage, 4<<20)
	o.MaxHeld = cmp.Or(o.MaxHeld, 1<<30)
	o.MaxPending = cmp.Or(o.MaxPending, 8<<20)
	o.Keepalive = cmp.Or(o.Keepalive, 30*time.Second)
	o.KeepaliveTimeout = cmp.Or(o.KeepaliveTimeout, 10*time.Second)
	return &Server{options: o, work: make(chan func()), quit: make(chan struct{}), connections: map[*connection]bool{}}
}

// Serve takes connections until ctx ends, and closes the listener. Then clients are told to go elsewhere; streams that
// are open may go on for the grace, and are cut after it. When it returns nothing runs any more. cut is the number of
// connections that still had streams. It is called once.
func (s *Server) Serve(ctx context.Context, listener net.Listener, grace time.Duration) (cut int, err error) {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	err = s.accept(ctx, listener)
	_ = listener.Close()
	if err != nil { // no way to serve any more
		grace = 0
	}
	cut = s.leave(grace)
	return cut, err
}

// accept takes connections. Its error is nil when ctx has ended.
func (s *Server) accept(ctx context.Context, listener net.Listener) error {
	wait := time.Duration(0)
	for {
		nc, err := listener.Accept()
		var passing interface{ Temporary() bool } // too many open files, connections given up
		switch {
		case err == nil:
			wait = 0
			s.serving.Go(func() { s.serve(nc) })
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the listener was closed for that
		case errors.As(err, &passing) && passing.Temporary():
			wait = min(max(2*wait, 5*time.Millisecond), time.Second)
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
		default:
			return fmt.Errorf("accepting: %w", err)
		}
	}
}

// leave sends clients away and waits until all that runs has ended.
func (s *Server) leave(grace time.Duration) (cut int) {
	s.mu.Lock()
	s.leaving = true
	for c := range s.connections {
		c.goAway()
	}
	s.mu.Unlock()
	gone := make(chan struct{})
	go func() { defer close(gone); s.serving.Wait() }()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-gone:
	case <-timer.C:
		s.mu.Lock()
		cut = len(s.connections)
		for c := range s.connections {
			c.close()
		}
		s.mu.Unlock()
		<-gone
	}
	s.jobs.Wait()
	close(s.quit)
	s.workers.Wait()
	return cut
}

// serve serves a connection until it ends.
func (s *Server) serve(nc net.Conn) {
	c := newConnection(s, nc)
	s.mu.Lock()
	s.connections[c] = true
	leaving := s.leaving
	s.mu.Unlock()
	if leaving {
		c.goAway()
	}
	defer func() {
		s.mu.Lock()
		delete(s.connections, c)
		s.mu.Unlock()
	}()
	c.serve()
}

// elsewhere runs f on a worker: one that waits, or a new one.
func (s *Server) elsewhere(f func()) {
	s.jobs.Add(1)
	select {
	case s.work <- f:
	default:
		s.workers.Go(func() { s.worker(f) })
	}
}

func (s *Server) worker(f func()) {
	for {
		f()
		s.jobs.Done()
		if s.idle.Add(1) > idleWorkers {
			s.idle.Add(-1)
			return
		}
		select {
		case f = <-s.work:
			s.idle.Add(-1)
		case <-s.quit:
			return
		}
	}
}

// guard calls f, and tells whether it has returned rather than panicked.
func (s *Server) guard(f func()) (fine bool) {
	defer func() {
		if v := recover(); v != nil {
			s.options.Log.Error(fmt.Errorf("panic: %v", v), "Request failed", "stack", string(debug.Stack()))
		}
	}()
	f()
	return true
}

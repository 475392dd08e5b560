// Package h2stream serves gRPC streams over HTTP/2 to gateways, at little cost for each message.
//
// gRPC's own server hands every message from the goroutine that reads a connection to one of the stream, and every
// answer to a third that writes. On a machine that is not busy each hand-over wakes a sleeping thread, which costs more
// than all that is done with a piece of an answer. Here the goroutine that reads a connection calls the stream's
// Handler itself, and writes what was answered when nothing more is there to read. What can wait runs elsewhere
// (Stream.Off).
//
//	socket --> wire (reads ahead) --> TLS --> frames --> Stream --> Handler.Message
//	socket <-- wire (keeps)       <-- TLS <-- frames <-- Stream <-- Stream.Send
//	       ^ flushed before a read that can wait, without waiting; what the socket does not take a goroutine writes
//
// It is a server of HTTP/2 (RFC 9113) for gRPC (its PROTOCOL-HTTP2) and nothing else: frames and header compression are
// read by golang.org/x/net/http2; messages are not compressed, there is no priority and no push. Reading never
// waits for writing. Flow control bounds what a client can send ahead, Options.MaxPending what waits for a
// client, and Options.Budget what all streams hold. Clients that make the server work without sending anything are
// disconnected (flood.go).
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

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/gateway/accept"
	"github.com/kvasir-dev/kvasir/internal/overload"
)

// Handler receives the messages of one stream. Its methods are called one at a time, by different goroutines, and must not
// block: messages of other streams arrive on the same connection. None is called while a function passed to Stream.Off
// runs.
type Handler interface {
	// Message takes a message of the client. Its bytes are the caller's again when it returns.
	Message(m []byte)
	// HalfClosed reports that the client sends no more. It expects Stream.Finish in the end.
	HalfClosed()
	// Slow reports that the client's request arrives too slowly (Options.MinRate). It expects Stream.Finish in the end; if nothing comes of
	// it, it is called again.
	Slow()
	// Ended reports that the stream is over, for any reason: finished, reset, or its connection lost. It is the last call,
	// and is made exactly once.
	Ended()
}

// Options are what a Server is made of. Zero values take the defaults.
type Options struct {
	// Open returns the handler of a new stream; nil when there is no such method. It must not block. Required.
	Open func(call *Call, s *Stream) Handler
	// TLS of the connections; nil for none.
	TLS *tls.Config
	// MaxMessage is the largest message taken, in bytes; 4 MiB. A larger one ends its stream with RESOURCE_EXHAUSTED.
	MaxMessage int
	// Budget limits what streams hold: their headers, incomplete or waiting messages, answers that wait for the client, and
	// what handlers add (Stream.Hold). The default is one of 1 GiB. A stream for which there is no room ends with
	// RESOURCE_EXHAUSTED.
	Budget *budget.Budget
	// Overload closes new connections while resources are short; nil for never.
	Overload *overload.Manager
	// MaxStreams is the most open streams on one connection, announced to clients; 4096. MaxConnections is the most
	// connections; one network can have as many as are free, and those without streams give way to those of networks with fewer; 1024.
	MaxStreams, MaxConnections int
	// Idle is how long a stream can have no traffic; 1 h. RequestIdle is the same until the stream's request is complete
	// (Stream.Complete); 1 min.
	Idle, RequestIdle time.Duration
	// MinRate is how fast a request must arrive, in bytes per second over RequestIdle: 1 KiB. It is for requests that arrive in pieces:
	// for those whose client sends nothing there is RequestIdle.
	MinRate int64
	// MaxPending is the most bytes that wait for the client on one stream, except for bodies that their senders had not
	// count, before the client can send no more on it; 8 MiB.
	MaxPending int64
	// ConnectionAge is the maximum age of a connection, give or take a tenth: the client is then asked to open another
	// one. 0 for no limit. Its streams continue.
	ConnectionAge time.Duration
	// A connection without received data for Keepalive, 30 s, gets a ping, and is closed if no
	// answer arrives within KeepaliveTimeout, 10 s.
	Keepalive, KeepaliveTimeout time.Duration
	// Log gets faults of handlers.
	Log logr.Logger
}

const (
	// streamWindow and connectionWindow are how many bytes a client can send ahead: enough for a long prompt without
	// waiting.
	streamWindow     = 1 << 20
	connectionWindow = 16 << 20

	handshakeTimeout = 20 * time.Second
	// goAwayPatience is how long a client can still open streams after a GOAWAY that it does not confirm.
	goAwayPatience = 5 * time.Second
	// idleWorkers is the most goroutines that wait for something to do, rather than end: their stacks have grown already.
	idleWorkers = 64
)

// Server serves connections. Make it with New.
type Server struct {
	options   Options
	savings   *savings
	neighbors *neighbors

	work    chan func() // to workers that wait
	idle    atomic.Int32
	quit    chan struct{}  // closed when workers are to end
	serving sync.WaitGroup // connections
	streams sync.WaitGroup // whose end was not reported yet
	jobs    sync.WaitGroup // what workers are at, and streams that are being shed
	workers sync.WaitGroup

	mu          sync.Mutex
	connections map[*connection]bool // guarded by mu
	leaving     bool                 // guarded by mu
}

// New makes a server.
func New(o Options) *Server {
	o.MaxMessage = cmp.Or(o.MaxMessage, 4<<20)
	if o.Budget == nil {
		o.Budget = budget.New(1<<30, time.Now)
	}
	o.MaxStreams = cmp.Or(o.MaxStreams, 4096)
	o.MaxConnections = cmp.Or(o.MaxConnections, 1024)
	o.Idle = cmp.Or(o.Idle, time.Hour)
	o.RequestIdle = cmp.Or(o.RequestIdle, time.Minute)
	o.MinRate = cmp.Or(o.MinRate, 1<<10)
	o.MaxPending = cmp.Or(o.MaxPending, 8<<20)
	o.Keepalive = cmp.Or(o.Keepalive, 30*time.Second)
	o.KeepaliveTimeout = cmp.Or(o.KeepaliveTimeout, 10*time.Second)
	return &Server{
		options: o, savings: newSavings(), neighbors: newNeighbors(), work: make(chan func()), quit: make(chan struct{}),
		connections: map[*connection]bool{},
	}
}

// Serve takes connections until ctx ends, and closes the listener. Then clients get a GOAWAY; open streams can
// continue for the grace period, and are cut after it. When it returns nothing runs any more. cut is the number of
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
	// Its streams draw on the budget.
	listener = accept.Limit(listener, s.options.MaxConnections, nil).During(s.options.Overload).Counting(s.options.Overload.Port("gateways"))
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
	s.streams.Wait() // the end of one can be reported by a goroutine that is not the connection's
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

// guard calls f, and reports whether it has returned rather than panicked.
func (s *Server) guard(f func()) (fine bool) {
	defer func() {
		if v := recover(); v != nil {
			s.options.Log.Error(fmt.Errorf("panic: %v", v), "Request failed", "stack", string(debug.Stack()))
		}
	}()
	f()
	return true
}

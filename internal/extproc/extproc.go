// Package extproc is the picker as an endpoint picker of an inference gateway: the server side of Envoy's external
// processing, as the Endpoint Picker Protocol uses it (Gateway API Inference Extension, proposal 004).
//
// A gateway opens a stream for each HTTP request and shows what passes by; the picker answers every message:
//
//	> request_headers   > request_body*   (> request_trailers)     the whole body is needed for the pick
//	< request_headers   < request_body*   (< request_trailers)     the first one names the endpoint
//	> response_headers  > response_body*  (> response_trailers)
//	< response_headers  < response_body*  (< response_trailers)    one for one, at once
//
// An immediate_response in place of the picker's first answer refuses the request. Bodies pass byte for byte. Whatever
// ends the stream, the request's Decision is ended exactly once.
//
// Gateways differ in what they show; a stream's first message says how (protocol_config). exchange.go has the states.
// The streams are served by h2stream: messages are taken by the goroutine that reads a gateway's connection, so that
// only the pick itself, which may wait, has a goroutine of its own.
package extproc

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/h2stream"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/spans"
)

// Options are what a Server is made of. Zero values take the defaults.
type Options struct {
	// Picker that chooses; needed.
	Picker *picker.Picker
	// Pool is the namespace/name of the only pool that is served; empty for all, by the models of the requests.
	Pool string
	// Log gets what fails.
	Log logr.Logger
	// Observer is told of each request; nil for none.
	Observer Observer
	// Spans traces requests; nil for no tracing.
	Spans *spans.Tracer
	// Now is the clock of what the Observer is told; time.Now when nil.
	Now func() time.Time
	// DefaultMaxBody is the largest request body in bytes while there is no pool; 64 MiB.
	DefaultMaxBody int64
	// MaxBuffered is the most bytes of all request bodies held at once; 1 GiB. Requests beyond it are refused.
	MaxBuffered int64
	// MaxPending is the most bytes of answers that wait for a gateway to read them, on one stream, before no more is
	// read from it; 8 MiB. The bodies of requests, which come back when they are complete, do not count.
	MaxPending int64
}

func (o *Options) fill() {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Observer == nil {
		o.Observer = nobody{}
	}
	set(&o.DefaultMaxBody, 64<<20)
	set(&o.MaxBuffered, 1<<30)
	set(&o.MaxPending, 8<<20)
}

func set[T int | int64 | time.Duration](option *T, value T) {
	if *option == 0 {
		*option = value
	}
}

// Server speaks with gateways. It is safe for concurrent use.
type Server struct {
	options  Options
	picker   *picker.Picker
	buffered atomic.Int64 // bytes of request bodies held
	streams  atomic.Int64 // open
	gateways gateways
}

// New makes a server.
func New(options Options) *Server {
	options.fill()
	return &Server{options: options, picker: options.Picker}
}

// Buffered is the number of bytes of request bodies held now.
func (s *Server) Buffered() int64 { return s.buffered.Load() }

// Streams is the number of streams open now.
func (s *Server) Streams() int64 { return s.streams.Load() }

// open begins an exchange.
func (s *Server) open(call *h2stream.Call, out stream) *exchange {
	s.streams.Add(1)
	x := &exchange{server: s, out: out, start: s.options.Now(), gateway: hostOf(out.Client())}
	if s.options.Spans != nil {
		x.call = call
	}
	return x
}

// hostOf is the address of a gateway.
func hostOf(a net.Addr) string {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.IP.String()
	}
	return a.String()
}

// maxGateways bounds what is remembered of gateways. Beyond it everything is learned anew.
const maxGateways = 4096

// gateways remembers which gateways show answers too, by their addresses.
type gateways struct {
	mu   sync.RWMutex
	show map[string]bool // guarded by mu
}

func (g *gateways) showAnswers(host string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.show[host]
}

func (g *gateways) learn(host string) {
	if g.showAnswers(host) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.show == nil || len(g.show) >= maxGateways {
		g.show = map[string]bool{}
	}
	g.show[host] = true
}

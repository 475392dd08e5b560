// Package extproc is the picker as an endpoint picker of an inference gateway: the server side of Envoy's external
// processing, as the Endpoint Picker Protocol uses it (Gateway API Inference Extension, proposal 004).
//
// A gateway opens a stream for each HTTP request and sends its parts; the picker answers every message:
//
//	> request_headers   > request_body*   (> request_trailers)     the pick needs the complete body
//	< request_headers   < request_body*   (< request_trailers)     the first one names the endpoint
//	> response_headers  > response_body*  (> response_trailers)
//	< response_headers  < response_body*  (< response_trailers)    one for one, at once
//
// An immediate_response in place of the picker's first answer refuses the request. Bodies pass unchanged, except for a
// rewritten model name, what openai.DropPriority blanks and what openai.PutSalt sets. However the stream ends, the request's
// Decision is ended exactly once.
//
// Gateways differ in what they send; a stream's first message describes it (protocol_config). exchange.go has the states.
// h2stream serves the streams: the goroutine that reads a gateway's connection handles the messages, so that only the pick
// itself, which can wait, has a goroutine of its own.
package extproc

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/gateway/h2stream"
	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/overload"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tracing"
	"github.com/kvasir-dev/kvasir/internal/usagelog"
)

// Options are what a Server is made of. Zero values take the defaults.
type Options struct {
	// Picker that chooses; needed.
	Picker *picker.Picker
	// Pool is the namespace/name of the only pool that is served; empty for all, by the models of the requests.
	Pool string
	// Log gets what fails.
	Log logr.Logger
	// Observer is notified of each request; nil for none.
	Observer request.Observer
	// Spans traces requests; nil for no tracing.
	Spans *tracing.Tracer
	// Usage records what requests use; nil for no records.
	Usage *usagelog.Log
	// Now is the clock of the Observer's times; time.Now when nil.
	Now func() time.Time
	// DefaultMaxBody is the largest request body in bytes while there is no pool; 64 MiB.
	DefaultMaxBody int64
	// Budget of what streams hold; one of 1 GiB without. Requests that find no room there are refused.
	Budget *budget.Budget
	// Overload refuses bodies and new connections while resources are short; nil for never.
	Overload *overload.Manager
	// MaxPending is the most bytes of answers that can wait for a gateway to read them, on one stream, before no more is
	// read from it; 8 MiB. The bodies of requests, which are returned when they are complete, do not count.
	MaxPending int64
}

func (o *Options) fill() {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Observer == nil {
		o.Observer = request.Unobserved{}
	}
	o.DefaultMaxBody = cmp.Or(o.DefaultMaxBody, 64<<20)
	if o.Budget == nil {
		o.Budget = budget.New(1<<30, time.Now)
	}
	o.MaxPending = cmp.Or(o.MaxPending, 8<<20)
}

// Server serves gateways. It is safe for concurrent use.
type Server struct {
	options  Options
	picker   *picker.Picker
	streams  atomic.Int64 // open
	gateways gateways
	probes   probes
	since    time.Time // when it was made: the time that lists of models give for each
}

// New makes a server.
func New(options Options) *Server {
	options.fill()
	return &Server{options: options, picker: options.Picker, probes: probes{dial: dial}, since: options.Now()}
}

// Buffered is the number of bytes that the streams of the budget hold now.
func (s *Server) Buffered() int64 { return s.options.Budget.Held(budget.Streams) }

// Streams is the number of streams open now.
func (s *Server) Streams() int64 { return s.streams.Load() }

// open begins an exchange. Ready is that of ServeOptions.
func (s *Server) open(call *h2stream.Call, out stream, ready func() bool) *exchange {
	s.streams.Add(1)
	x := &exchange{server: s, out: out, ready: ready, start: s.options.Now(), gateway: out.Host()}
	if s.options.Spans != nil {
		x.call = call
	}
	return x
}

// maxGateways bounds what is remembered of gateways. Beyond it everything is learned again.
const maxGateways = 4096

// route is a kind of route at a gateway.
type route struct {
	host     string // the gateway's address
	bodyless bool   // at most the headers of answers are shown
}

// gateways remembers which gateways show answers, too.
type gateways struct {
	mu   sync.RWMutex
	show map[route]bool // guarded by mu
}

func (g *gateways) showAnswers(r route) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.show[r]
}

func (g *gateways) learn(r route) {
	if g.showAnswers(r) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.show == nil || len(g.show) >= maxGateways {
		g.show = map[route]bool{}
	}
	g.show[r] = true
}

// Package sidecar serves the pool's port in a pod that decodes. It passes requests to the pod's engine as they are. If a picker of the pool
// asks for it by a relay.Ticket, it has another engine prefill the prompt first:
//
//	without a ticket                          -> engine of the pod
//	with a ticket    -> engine that prefills  -> engine of the pod, with the parameters of the first
//	                         |                          |
//	                         +--------- fails ----------+-> engine of the pod, alone
//
// The answer to a request with a ticket has a relay.Report for the picker.
package sidecar

import (
	"cmp"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/transport"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/monotonic"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/relay"
)

// Options of a Server. Zero values take the defaults.
type Options struct {
	// Engine is the address of the pod's engine. Wires are how it is spoken to, and how engines that prefill are.
	Engine string
	// Pod is the pod's identity, as pickers know it.
	Pod   string
	Wires func() (engine, peers endpoint.Wire)
	// Seeds are those that pickers sign with; none while no picker is known.
	Seeds func() []kvblock.Seed
	Log   logr.Logger
	// MaxRequests is how many requests can be under way, 4096; others get 503.
	MaxRequests int
	// Memory is how many bytes of request bodies are held, 64 MiB, and MaxBody how many of one, 16 MiB. Bodies for which there is no room
	// pass as they arrive, and are not handed over.
	Memory, MaxBody int64
	// DialTimeout bounds a connection to an engine, 2 s. Stall is how long a client can keep the sidecar waiting without taking or sending a
	// byte, 60 s.
	DialTimeout, Stall time.Duration
	Now                func() time.Time
}

// Server is the http.Handler. It is safe for concurrent use.
type Server struct {
	options Options
	engines *transport.Transports
	dialer  *net.Dialer
	held    atomic.Int64 // bytes of bodies
	spent   spent
	tag     string // of the pod
	// refusedAt is when a bad ticket was logged last, in nanoseconds; 0 for never.
	refusedAt atomic.Int64
	// refusing has an element when the engine has refused a connection.
	refusing chan struct{}
	counts   counts
}

// New makes a Server, which Close ends.
func New(o Options) *Server {
	o.MaxRequests = cmp.Or(o.MaxRequests, 4096)
	o.Memory, o.MaxBody = cmp.Or(o.Memory, 64<<20), cmp.Or(o.MaxBody, 16<<20)
	o.DialTimeout, o.Stall = cmp.Or(o.DialTimeout, 2*time.Second), cmp.Or(o.Stall, time.Minute)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Wires == nil {
		o.Wires = func() (engine, peers endpoint.Wire) { return }
	}
	s := &Server{options: o, refusing: make(chan struct{}, 1), tag: relay.TagOf(o.Pod)}
	s.dialer = &net.Dialer{Timeout: o.DialTimeout, KeepAlive: 15 * time.Second}
	s.engines = transport.NewTransports(s.dialer.DialContext, func() *http.Transport {
		return &http.Transport{
			MaxIdleConns: maxIdle, MaxIdleConnsPerHost: maxIdle, DisableCompression: true, MaxResponseHeaderBytes: maxAnswerHeader,
		}
	})
	return s
}

const (
	// maxIdle is how many idle connections to engines are kept.
	maxIdle = 512
	// maxAnswerHeader is the largest header of an engine's answer, bytes.
	maxAnswerHeader = 64 << 10
)

// Close gives up idle connections.
func (s *Server) Close() { s.engines.Close() }

// ends are the engine of the pod, and what is the same of all that prefill.
func (s *Server) ends() (engine, peer endpoint.Endpoint) {
	engine.Address = s.options.Engine
	engine.Wire, peer.Wire = s.options.Wires()
	return engine, peer
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{server: s, w: w, control: http.NewResponseController(w), r: r}
	defer s.counts.underWay.Add(-1)
	if s.counts.underWay.Add(1) > int64(s.options.MaxRequests) {
		s.counts.refused.Add(1)
		x.refuse(http.StatusServiceUnavailable, "server_error", "too many requests are under way")
		return
	}
	s.counts.requests.Add(1)
	if protocol := r.Header.Get("Upgrade"); r.Method == http.MethodConnect || protocol != "" && !strings.EqualFold(protocol, "h2c") {
		s.counts.refused.Add(1)
		x.refuse(http.StatusNotImplemented, "invalid_request_error", "this endpoint does not change to another protocol")
		return
	}
	tickets := r.Header[ticketHeader]
	delete(r.Header, ticketHeader)
	dropHops(r.Header)
	defer func() { x.body.release() }()
	x.hold()
	if len(tickets) > 0 {
		x.report = &relay.Report{Prompt: -1, Cached: -1}
		t, ok := s.open(tickets, r)
		switch {
		case !ok:
			x.report.Cause = relay.CauseTicket
		case x.handOver(&t):
			return
		}
	}
	x.pass()
}

var (
	ticketHeader = http.CanonicalHeaderKey(relay.TicketHeader)
	reportHeader = http.CanonicalHeaderKey(relay.ReportHeader)
)

// open reads the ticket of a request. A request that the picker has not asked to hand over is served alone.
func (s *Server) open(tickets []string, r *http.Request) (relay.Ticket, bool) {
	err := relay.ErrForm
	var t relay.Ticket
	if len(tickets) == 1 { // a client in front of the picker cannot add one, which replaces them all
		t, err = relay.Open(tickets[0], s.tag, s.options.Now(), s.options.Seeds()...)
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	switch {
	case err == nil && ok && local.String() == t.Address: // in place of the endpoint that was to decode
		err = errItself
	case err == nil && !s.spent.take(t.ID, s.options.Now()):
		err = errSpent
	}
	if err != nil {
		s.noteRefused(err)
	}
	return t, err == nil
}

var (
	errItself = errors.New("the ticket for a hand-off names this pod as the one that prefills")
	errSpent  = errors.New("the ticket for a hand-off was taken before, or too many others were")
)

// noteRefused logs why a ticket is not good, once in a while: a wrong clock, or a reporter that reaches no picker, refuses all.
func (s *Server) noteRefused(why error) {
	now := monotonic.Of(s.options.Now())
	last := s.refusedAt.Load()
	if (last == 0 || now-last >= int64(time.Minute)) && s.refusedAt.CompareAndSwap(last, now) {
		s.options.Log.Info("A request that asks for a hand-off is served alone, as others can be in the next minute", "reason", why.Error(),
			"keys", len(s.options.Seeds()))
	}
}

// hopByHop are headers that concern one connection only (RFC 9110, 7.6.1, and what was common before).
var hopByHop = [...]string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding",
	"Upgrade",
}

// dropHops takes from a header what concerns one connection only, and what the header Connection names.
func dropHops(h http.Header) {
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			if name = strings.TrimSpace(name); name != "" && !strings.EqualFold(name, "close") {
				delete(h, http.CanonicalHeaderKey(name))
			}
		}
	}
	for _, name := range hopByHop {
		delete(h, name)
	}
}

// routeOf is the route of a request that can be handed over. Gateways can have put a path before that of the API.
func routeOf(r *http.Request) (openai.Route, bool) {
	path := r.URL.Path[max(0, strings.LastIndex(r.URL.Path, "/v1/")):]
	route, ok := openai.RouteOf(path)
	return route, ok && r.Method == http.MethodPost && (route == openai.Completions || route == openai.ChatCompletions)
}

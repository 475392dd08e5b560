// Package envoytest is a strict stand-in for Envoy as an inference gateway: real HTTP in and out, and between the two a
// client of external processing that holds the endpoint picker to Envoy's rules. A violation is recorded, and the request
// gets the 500 that Envoy would answer with.
//
// The rules are in these files: rules.go has the order and shape of answers, mutation.go the permitted changes, duplex.go
// full-duplex streaming, lockstep.go the modes that wait for each answer. nginx.go is the client of another gateway, with
// other habits.
package envoytest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/protobuf/types/known/structpb"
)

// Balance is how a gateway learns the destination.
type Balance uint8

// The ways.
const (
	// ByHeader takes the first address of the header.
	ByHeader Balance = iota
	// ByMetadata takes the first address of the dynamic metadata.
	ByMetadata
	// ByList tries the addresses of the header in their order until one can be reached (override_host).
	ByList
)

// Place is on which messages a gateway puts metadata.
type Place uint8

// The places.
const (
	OnHeaders Place = 1 << iota
	OnBody
)

// Options are a gateway's habits. The zero value is Envoy as inference gateways configure it.
type Options struct {
	// Pickers are the addresses of the endpoint pickers, which take turns. A stream that cannot be opened at one is
	// opened at the next.
	Pickers []string
	// Dial are options of the connections to them: at least the credentials.
	Dial []grpc.DialOption
	// Seed cuts bodies and answers at random places; 0 leaves them as they are read. No two requests are cut alike.
	Seed uint64
	// DuplicateEnd sends the end of a request's body twice (Envoy #46237).
	DuplicateEnd bool
	// HalfClose ends streams gracefully, instead of resetting them.
	HalfClose bool
	// FailOpen sends a request to one of Endpoints when no picker has answered before the first piece of its body.
	FailOpen  bool
	Endpoints []string
	// MessageTimeout bounds the wait for an answer, in the modes that wait; 200 ms, as in Envoy.
	MessageTimeout time.Duration
	// Request and Response are the modes of bodies; full duplex by default, and for answers STREAMED where the request
	// is not full duplex. See WithMode.
	Request, Response *filter.ProcessingMode_BodySendMode
	// NoProtocolConfig leaves the modes untold, as older versions do.
	NoProtocolConfig bool
	// NoResponse: answers are not shown.
	NoResponse bool
	// Subset restricts a request to some endpoints; nil does not. SubsetOn are the messages that have it.
	Subset   *structpb.Value
	SubsetOn Place
	// Served reports which endpoint has answered.
	Served bool
	// Balance is where the destination is read.
	Balance Balance
	// MaxRequests at once to the pickers, as of a circuit breaker; 1024.
	MaxRequests int64
	// ReadPause is how long the gateway waits before it reads each answer of a picker.
	ReadPause time.Duration
	// Allowed are further headers that the picker can set.
	Allowed []string
}

// WithMode gives a pointer to a mode, for Options.
func WithMode(m filter.ProcessingMode_BodySendMode) *filter.ProcessingMode_BodySendMode { return &m }

// Gateway is the handler. It is safe for concurrent use.
type Gateway struct {
	options   Options
	pickers   []*grpc.ClientConn
	transport *http.Transport
	turn      atomic.Uint64
	open      atomic.Int64

	mu         sync.Mutex
	violations []string // guarded by mu
}

// New makes a gateway. Close it.
func New(o Options) (*Gateway, error) {
	if o.MessageTimeout == 0 {
		o.MessageTimeout = 200 * time.Millisecond
	}
	if o.MaxRequests == 0 {
		o.MaxRequests = 1024
	}
	if o.Response == nil && !fullDuplex(o.Request) {
		o.Response = WithMode(filter.ProcessingMode_STREAMED)
	}
	if o.SubsetOn == 0 {
		o.SubsetOn = OnHeaders
	}
	g := &Gateway{options: o, transport: &http.Transport{
		DisableCompression: true, MaxIdleConnsPerHost: 256, IdleConnTimeout: 2 * time.Second,
	}}
	for _, address := range o.Pickers {
		c, err := grpc.NewClient("passthrough:///"+address, o.Dial...)
		if err != nil {
			g.Close()
			return nil, fmt.Errorf("dialling picker %s: %w", address, err)
		}
		g.pickers = append(g.pickers, c)
	}
	return g, nil
}

// Close gives up all connections.
func (g *Gateway) Close() {
	for _, c := range g.pickers {
		_ = c.Close()
	}
	g.transport.CloseIdleConnections()
}

// Connected reports whether new streams can begin at the picker of that number: its connection is not known to have ended.
func (g *Gateway) Connected(picker int) bool {
	return g.pickers[picker].GetState() == connectivity.Ready
}

// Open is the number of requests that are with pickers now.
func (g *Gateway) Open() int64 { return g.open.Load() }

// Violations are the rules broken so far, in words.
func (g *Gateway) Violations() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.violations...)
}

func (g *Gateway) violated(format string, args ...any) *failure {
	text := fmt.Sprintf(format, args...)
	g.mu.Lock()
	g.violations = append(g.violations, text)
	g.mu.Unlock()
	return &failure{status: http.StatusInternalServerError, why: "spurious message: " + text}
}

// failure is what a client gets in place of an answer.
type failure struct {
	status int
	why    string
	// header and body of an immediate response.
	header http.Header
	body   []byte
	// unreached: no picker has taken the stream.
	unreached bool
}

func (f *failure) Error() string { return f.why }

// ServeHTTP takes one request through the picker to its endpoint.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer g.open.Add(-1)
	if g.open.Add(1) > g.options.MaxRequests {
		http.Error(w, "ext_proc_gRPC_error_14 overflow", http.StatusInternalServerError)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	x := &exchange{gateway: g, w: w, r: r, ctx: ctx, cancel: cancel}
	if g.options.Seed != 0 {
		x.rng = rand.New(rand.NewPCG(g.options.Seed, g.turn.Load()))
	}
	err := x.run()
	var f *failure
	switch {
	case err == nil:
	case errors.As(err, &f) && !x.started:
		for name, values := range f.header {
			w.Header()[name] = values
		}
		w.WriteHeader(f.status)
		if f.body == nil {
			f.body = []byte(f.why)
		}
		_, _ = w.Write(f.body)
	default:
		panic(http.ErrAbortHandler)
	}
}

// stream opens a stream at one of the pickers.
func (g *Gateway) stream(ctx context.Context) (pb.ExternalProcessor_ProcessClient, error) {
	first := g.turn.Add(1)
	var err error
	for i := range g.pickers {
		c := g.pickers[(first+uint64(i))%uint64(len(g.pickers))]
		var s pb.ExternalProcessor_ProcessClient
		if s, err = pb.NewExternalProcessorClient(c).Process(ctx); err == nil {
			return s, nil
		}
	}
	return nil, &failure{status: http.StatusInternalServerError, why: fmt.Sprintf("ext_proc: %v", err), unreached: true}
}

// reach finds the first address that can be reached.
func reach(ctx context.Context, addresses []string) (string, error) {
	if len(addresses) == 1 {
		return addresses[0], nil
	}
	var dialer net.Dialer
	for _, a := range addresses {
		if c, err := dialer.DialContext(ctx, "tcp", a); err == nil {
			_ = c.Close()
			return a, nil
		}
	}
	return "", &failure{status: http.StatusServiceUnavailable, why: "no healthy upstream"}
}

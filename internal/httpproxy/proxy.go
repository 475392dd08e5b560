// Package httpproxy is the picker as a reverse proxy: an OpenAI-style HTTP server that sends each request to the
// engine that the picker chooses, byte for byte, and streams the answer back as it comes.
//
//	read the body -> pick -> send to Targets[0], else to the fallbacks -> copy the answer
//
// A request is tried on another endpoint only as long as nothing of an answer has gone to the client. Whatever
// happens to it, its Decision is ended exactly once.
package httpproxy

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/spans"
	"github.com/kvasir-dev/kvasir/internal/wire"
)

// Options are what a Proxy is made of. Zero values take the defaults.
type Options struct {
	// Picker that chooses; needed.
	Picker *picker.Picker
	// Log gets a line per failed attempt.
	Log logr.Logger
	// Observer is told of each request; nil for none.
	Observer Observer
	// Spans traces requests; nil for no tracing.
	Spans *spans.Tracer
	// Now is the clock of what the Observer is told; time.Now when nil.
	Now func() time.Time
	// DialTimeout bounds connecting to an engine; 2 s.
	DialTimeout time.Duration
	// IdlePerEndpoint is the most idle connections kept to an engine's address; 256.
	IdlePerEndpoint int
	// IdleTimeout is how long an idle connection to an engine is kept; 4 s, less than the 5 s after which the
	// engines' server closes it, so that a request seldom meets a connection that is just being closed.
	IdleTimeout time.Duration
	// DefaultMaxBody is the largest request body in bytes while there is no pool; 64 MiB.
	DefaultMaxBody int64
	// MaxBuffered is the most bytes of all request bodies held at once; 1 GiB. Requests beyond it are refused.
	MaxBuffered int64
	// MaxRequests is the most requests under way at once, of all clients; 16384. Requests beyond it are refused. A
	// request holds a goroutine or two, two connections and up to 100 KiB, so this is a bound on memory and sockets.
	MaxRequests int
	// Stall is how long a client may keep us waiting without taking or giving a byte; 30 s. MinBodyRate, in bytes/s,
	// is how fast a body must come beyond that; 1 KiB/s.
	Stall       time.Duration
	MinBodyRate int64
}

func (o *Options) fill() {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Observer == nil {
		o.Observer = nobody{}
	}
	set(&o.DialTimeout, 2*time.Second)
	set(&o.IdlePerEndpoint, 256)
	set(&o.IdleTimeout, 4*time.Second)
	set(&o.DefaultMaxBody, 64<<20)
	set(&o.MaxBuffered, 1<<30)
	set(&o.MaxRequests, 16<<10)
	set(&o.Stall, 30*time.Second)
	set(&o.MinBodyRate, 1<<10)
}

func set[T int | int64 | time.Duration](option *T, value T) {
	if *option == 0 {
		*option = value
	}
}

// Proxy is the handler. It is safe for concurrent use.
type Proxy struct {
	options  Options
	picker   *picker.Picker
	engines  *wire.Transports
	suspects *suspects
	buffered atomic.Int64 // bytes of request bodies held
	requests atomic.Int64 // under way
}

// New makes a proxy. Close it when no request is under way any more.
func New(options Options) *Proxy {
	options.fill()
	return &Proxy{options: options, picker: options.Picker, engines: newTransports(&options), suspects: newSuspects()}
}

// Close gives up the idle connections to the engines.
func (p *Proxy) Close() { p.engines.Close() }

// Buffered is the number of bytes of request bodies held now.
func (p *Proxy) Buffered() int64 { return p.buffered.Load() }

// ServeHTTP answers one request. It panics only with http.ErrAbortHandler, to break the connection of an answer that
// cannot be finished.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := &client{ResponseWriter: w, control: http.NewResponseController(w), stall: p.options.Stall, h2: r.ProtoMajor >= 2}
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if err, _ := v.(error); !errors.Is(err, http.ErrAbortHandler) {
			p.options.Log.Error(fmt.Errorf("panic: %v", v), "Request failed", "stack", string(debug.Stack()))
			p.options.Observer.Refused(RefusedPanic)
			if !out.started {
				out.fail(http.StatusInternalServerError, "server_error", "internal_error", "The request could not be handled.")
				return
			}
		}
		panic(http.ErrAbortHandler)
	}()
	if r.Body != http.NoBody {
		// Also bounds what the server reads of a body that is refused.
		out.unread = true
		out.readWithin(p.options.Stall)
	}
	out.id = requestID(r.Header)
	defer p.requests.Add(-1)
	if p.requests.Add(1) > int64(p.options.MaxRequests) {
		p.refuse(out, RefusedRequests, http.StatusServiceUnavailable, "service_unavailable", "overloaded", "Too many requests are under way.")
		return
	}
	p.route(out, r)
}

func (p *Proxy) route(out *client, r *http.Request) {
	// Whether browsers may send what they ask for is the engines' to say, or a gateway's before us.
	preflight := r.Body == http.NoBody && picker.IsPreflight(r.Method, r.Header.Get)
	if !preflight {
		if err := p.picker.Known(r.Header.Get); err != nil {
			p.refusePick(out, r, err)
			return
		}
	}
	if r.URL.Path == "/v1/models" && preflight {
		p.generate(out, r, 0, false)
		return
	}
	if r.URL.Path == "/v1/models" {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			p.wrongMethod(out, "GET, HEAD")
			return
		}
		p.models(out, r)
		return
	}
	route, ok := openai.RouteOf(r.URL.Path)
	if r.URL.Path == openai.CountTokens {
		route, ok = openai.Messages, true
	}
	out.messages = ok && route == openai.Messages
	unmatched := !ok && !byLoad[r.URL.Path] && isOpen(r.URL.Path)
	parsed := ok
	ok = ok || byLoad[r.URL.Path]
	switch {
	case unmatched:
		p.generate(out, r, 0, false)
	case !ok:
		p.refuse(out, RefusedPath, http.StatusNotFound, "invalid_request_error", "not_found", "There is nothing at this path.")
	case preflight:
		p.generate(out, r, 0, false)
	case r.Method != http.MethodPost:
		p.wrongMethod(out, "POST")
	default:
		p.generate(out, r, route, parsed)
	}
}

// isOpen tells whether a path that is not known here may be asked for by load, with any method: those below /v1/, which
// are the API, but for those that load adapters. A path that an engine might understand otherwise is not.
func isOpen(p string) bool {
	return strings.HasPrefix(p, "/v1/") && path.Clean(p) == p && p != "/v1/load_lora_adapter" && p != "/v1/unload_lora_adapter"
}

// byLoad are paths of the engines' API, elsewhere or taking POST only, whose bodies are not read here: requests go by load
// alone, in the pool of their model if their body is JSON that names one. All others that are not below /v1/ are refused,
// because engines have paths among them that are not for clients: those that put an engine to sleep or reset its cache.
var byLoad = map[string]bool{
	"/v1/audio/transcriptions": true, "/v1/audio/translations": true,
	"/v1/rerank": true, "/v2/rerank": true, "/rerank": true, "/v1/score": true, "/score": true,
	"/pooling": true, "/classify": true, "/tokenize": true, "/detokenize": true,
}

func (p *Proxy) wrongMethod(out *client, allow string) {
	out.Header().Set("Allow", allow)
	p.refuse(out, RefusedMethod, http.StatusMethodNotAllowed, "invalid_request_error", "method_not_allowed",
		"This path takes "+allow+" only.")
}

// refuse answers a request that was not picked for.
func (p *Proxy) refuse(out *client, reason string, status int, typ, code, message string) {
	p.options.Observer.Refused(reason)
	out.span.Refused(reason)
	if status == http.StatusServiceUnavailable && out.Header().Get("Retry-After") == "" {
		out.Header().Set("Retry-After", "1")
	}
	out.fail(status, typ, code, message)
}

// generate serves an inference request.
func (p *Proxy) generate(out *client, r *http.Request, route openai.Route, parsed bool) {
	start := p.options.Now()
	out.span = p.options.Spans.Proxied(r, parsed || byLoad[r.URL.Path], start)
	defer func() { out.span.Close(out.status) }()
	body, refused := p.readBody(out, r)
	if refused != nil {
		p.refuseBody(out, refused)
		return
	}
	if p.suspects.known.Load() > 0 {
		if after := p.suspects.refused(p.suspects.mark(r, body.bytes), start); after > 0 {
			body.release()
			out.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
			p.refuse(out, RefusedSuspect, http.StatusServiceUnavailable, "service_unavailable", "engines_broke_off",
				"Engines have broken off on this request, and it is not sent to others for some minutes.")
			return
		}
	}
	e := &exchange{proxy: p, client: out, request: r, route: route, body: body, start: start}
	defer e.dropBody()

	d, err := p.picker.Pick(r.Context(), &picker.Request{
		Route: route, Body: body.bytes, Header: r.Header.Get, Unparsed: !parsed, Light: r.URL.Path == openai.CountTokens,
		Preflight: !parsed && r.Method == http.MethodOptions, Steps: out.span.Steps(),
	})
	if err != nil {
		p.refusePick(out, r, err)
		return
	}
	e.decision = d
	e.run(r.Context())
}

func (p *Proxy) refuseBody(out *client, why *refusal) {
	p.refuse(out, why.reason, why.status, why.typ, why.code, why.message)
}

// refusePick answers a request that the picker has refused.
func (p *Proxy) refusePick(out *client, r *http.Request, err error) {
	if r.Context().Err() != nil {
		p.options.Observer.Refused(RefusedClientGone)
		out.span.Refused(RefusedClientGone)
		panic(http.ErrAbortHandler)
	}
	var refusal *picker.Error
	if !errors.As(err, &refusal) {
		p.options.Log.Error(err, "Picking failed")
		p.refuse(out, RefusedPick, http.StatusInternalServerError, "server_error", "internal_error", "The request could not be routed.")
		return
	}
	reason := RefusedPick
	switch refusal.Status {
	case http.StatusBadRequest:
		reason = RefusedUnreadable
	case http.StatusNotFound:
		reason = RefusedModel
	case http.StatusRequestEntityTooLarge: // another pool takes as much
		reason = RefusedTooLarge
	case http.StatusServiceUnavailable:
		reason = RefusedNoEndpoint
	case http.StatusUnauthorized, http.StatusForbidden:
		reason = RefusedTenant
	case http.StatusTooManyRequests:
		reason = RefusedTooMuch
	}
	if after := refusal.RetryAfter; after > 0 {
		out.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
	}
	p.refuse(out, reason, refusal.Status, refusal.Type, refusal.Code, refusal.Message)
}

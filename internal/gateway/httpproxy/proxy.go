// Package httpproxy is the picker as a reverse proxy: an OpenAI-style HTTP server that sends each request to the engine
// that the picker chooses, and streams the answer back as it arrives. The request is unchanged except for what
// exchange.rewrite does; the answer, except for the usage event that this can cause.
//
//	read the body -> pick -> send to Targets[0], else to the fallbacks -> copy the answer
//
// A request is tried on another endpoint only as long as no part of an answer was sent to the client. Its Decision is ended
// exactly once in every case.
package httpproxy

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/transport"
	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/overload"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/picker/circuit"
	"github.com/kvasir-dev/kvasir/internal/respcache"
	"github.com/kvasir-dev/kvasir/internal/tracing"
	"github.com/kvasir-dev/kvasir/internal/usagelog"
)

// Options are what a Proxy is made of. Zero values take the defaults.
type Options struct {
	// Picker that chooses; needed.
	Picker *picker.Picker
	// Log gets a line per failed attempt.
	Log logr.Logger
	// Observer is notified of each request; nil for none.
	Observer request.Observer
	// Spans traces requests; nil for no tracing.
	Spans *tracing.Tracer
	// Usage records what requests use; nil for no records.
	Usage *usagelog.Log
	// Ready reports whether the picker should receive requests, for GET /health; nil is always.
	Ready func() bool
	// Unreachable receives the endpoints of a pool (namespace/name) that a request was tried at, when none of them
	// could be connected to. It reports whether the pool has other ones: then the request is picked for again. nil is never.
	Unreachable func(pool string, failed []*endpoint.Endpoint) bool
	// Now is the clock of the Observer's times; time.Now when nil.
	Now func() time.Time
	// DialTimeout bounds connecting to an engine; 2 s.
	DialTimeout time.Duration
	// IdlePerEndpoint is the most idle connections kept to an engine's address; 256. MaxIdle is that to all engines of one wire, and
	// as many for requests with large bodies; 0 for no limit.
	IdlePerEndpoint, MaxIdle int
	// DefaultMaxBody is the largest request body in bytes while there is no pool; 64 MiB.
	DefaultMaxBody int64
	// Budget of the requests under way, their bodies, and the answers that are held; one of 1 GiB. Requests that find no room
	// there are refused.
	Budget *budget.Budget
	// Overload refuses bodies while resources are short; nil for never.
	Overload *overload.Manager
	// MaxRequests is the most requests under way at once, of all clients; one tenant, or else address, can have twice as many
	// as are free; 16384. Requests beyond it are refused. A request holds goroutines and connections, so this is a bound on
	// sockets.
	MaxRequests int
	// Hold is how long an answer is held back from the client after its header has arrived, while nothing was generated:
	// until then the request can be tried elsewhere; 15 s. It stays below the time that clients and load balancers wait for
	// a header.
	Hold time.Duration
	// StallLook is how often a request without an answer asks whether its engine still makes progress; 1 s.
	StallLook time.Duration
	// Stall is how long a client can keep the proxy waiting without taking or sending a byte; 30 s. MinBodyRate, in
	// bytes/s, is how fast a body must arrive in each stall time; 1 KiB/s.
	Stall       time.Duration
	MinBodyRate int64
	// Mirroring bounds the copies of requests for mirrors.
	Mirroring Mirroring
}

func (o *Options) fill() {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Unreachable == nil {
		o.Unreachable = func(string, []*endpoint.Endpoint) bool { return false }
	}
	if o.Observer == nil {
		o.Observer = request.Unobserved{}
	}
	o.DialTimeout = cmp.Or(o.DialTimeout, 2*time.Second)
	o.IdlePerEndpoint = cmp.Or(o.IdlePerEndpoint, 256)
	o.DefaultMaxBody = cmp.Or(o.DefaultMaxBody, 64<<20)
	if o.Budget == nil {
		o.Budget = budget.New(1<<30, time.Now)
	}
	o.MaxRequests = cmp.Or(o.MaxRequests, 16<<10)
	o.Hold = cmp.Or(o.Hold, 15*time.Second)
	o.StallLook = cmp.Or(o.StallLook, stallLook)
	o.Stall = cmp.Or(o.Stall, 30*time.Second)
	o.MinBodyRate = cmp.Or(o.MinBodyRate, 1<<10)
}

// Proxy is the handler. It is safe for concurrent use.
type Proxy struct {
	options  Options
	picker   *picker.Picker
	engines  *transport.Transports
	suspects *circuit.Suspects
	budget   *budget.Budget
	requests underWay
	ids      requestIDs
	mirrors  *mirrors
	// bootstraps are the engines that hand prompts over by Mooncake.
	bootstraps *bootstraps
	// since is when the proxy was made: the time that lists of models give for each.
	since time.Time
}

// New makes a proxy. Close it when no request is under way any more.
func New(options Options) *Proxy {
	options.fill()
	return &Proxy{
		options: options, picker: options.Picker, engines: newTransports(&options), suspects: options.Picker.Suspects(),
		budget: options.Budget, requests: underWay{most: options.MaxRequests, owners: map[string]int{}},
		mirrors: newMirrors(&options), bootstraps: newBootstraps(), since: options.Now(),
	}
}

// Close cuts off the copies of requests for mirrors, and gives up the idle connections to the engines.
func (p *Proxy) Close() {
	p.mirrors.close()
	p.engines.Close()
}

// ServeHTTP answers one request. It panics only with http.ErrAbortHandler, to break the connection of an answer that
// cannot be finished.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := &client{
		ResponseWriter: w, control: http.NewResponseController(w), log: p.options.Log,
		stall: p.options.Stall, h2: r.ProtoMajor >= 2,
	}
	defer func() { out.usage.Close(out.status) }()
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if err, _ := v.(error); !errors.Is(err, http.ErrAbortHandler) {
			p.options.Log.Error(fmt.Errorf("panic: %v", v), "Request failed", "request", out.id, "stack", string(debug.Stack()))
			p.options.Observer.Refused(request.RefusedPanic)
			p.recordRefusal(out, request.RefusedPanic)
			out.comments.stop()
			if !out.started {
				out.fail(&request.Panic.Error)
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
	out.id = picker.RequestID(r.Header.Get(picker.RequestIDHeader))
	if r.URL.Path == openai.Health && r.Body == http.NoBody && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		p.health(out)
		return
	}
	engineID, leave := p.ids.enter(out.id)
	defer leave()
	out.engineID = engineID
	p.route(out, r)
}

// health answers as engines do: the status alone, without a key. Load tools and load balancers request it before they send
// requests. It does not depend on endpoints, because a pool at zero is woken by its first request.
func (p *Proxy) health(out *client) {
	if p.options.Ready != nil && !p.options.Ready() {
		out.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	out.WriteHeader(http.StatusOK)
}

func (p *Proxy) route(out *client, r *http.Request) {
	if r.Body == http.NoBody && picker.IsPreflight(r.Method, r.Header.Get) {
		p.preflight(out, r)
		return
	}
	if origin := p.picker.AllowedOrigin(r.Header.Get("Origin"), ""); origin != "" { // for answers of our own
		out.Header().Set("Access-Control-Allow-Origin", origin)
		out.Header().Set("Vary", "Origin")
	}
	tenant, err := p.picker.Whose(headerOf(r))
	if err != nil {
		p.refusePick(out, r, err)
		return
	}
	out.tenant = tenant
	p.beginRecord(out, r)
	owner := out.owner(r)
	if !p.requests.enter(owner) {
		p.refuse(out, request.TooMany)
		return
	}
	defer p.requests.leave(owner)
	if openai.Administrative(r.URL.EscapedPath()) {
		p.refuse(out, request.NotFound)
		return
	}
	if request.IsModels(r.URL.Path) {
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
	unmatched := !ok && !byLoad(r.URL.Path) && isOpen(r.URL.Path)
	parsed := ok
	ok = ok || byLoad(r.URL.Path)
	switch {
	case unmatched:
		p.generate(out, r, 0, false)
	case !ok && redirected(out, r):
	case !ok:
		p.refuse(out, nothingAt(r.URL.Path))
	case r.Method != http.MethodPost:
		p.wrongMethod(out, "POST")
	default:
		p.generate(out, r, route, parsed)
	}
}

// redirected sends a client that has added slashes to a served path there, with its body, as engines do. The path is relative to
// the host that the client asked, which the proxy in front of a picker can know under another name.
func redirected(out *client, r *http.Request) bool {
	path := strings.TrimRight(r.URL.Path, "/")
	if path == r.URL.Path || !isServed(path) {
		return false
	}
	to := url.URL{Path: path, RawQuery: r.URL.RawQuery}
	out.Header().Set("Location", to.String())
	out.WriteHeader(http.StatusTemporaryRedirect)
	return true
}

// isServed reports whether requests for a path are answered here or sent to an engine.
func isServed(path string) bool {
	_, read := openai.RouteOf(path)
	return read || path == openai.Health || byLoad(path) || isOpen(path)
}

// nothingAt refuses a path that is not served. At the root it says what is, for people who look with a browser.
func nothingAt(path string) *request.Refusal {
	why := *request.NotFound
	if path == "/" {
		why.Message += " This is an API for inference: /v1/models lists the models, and chats go to /v1/chat/completions."
	}
	return &why
}

// preflight answers a browser's preflight, which has no key. It is the same at every path, so that it reveals nothing of
// them.
func (p *Proxy) preflight(out *client, r *http.Request) {
	answer, err := p.picker.Preflight(r.Header.Get, "")
	if err != nil {
		p.refusePick(out, r, err)
		return
	}
	for _, header := range answer {
		out.Header().Set(header[0], header[1])
	}
	out.WriteHeader(http.StatusNoContent)
}

// isOpen reports whether a path that is not known here can be asked for by load, with any method: those below /v1/, which
// are the API, and a few others. A path that an engine might understand otherwise is not. Administrative ones have been
// refused before.
func isOpen(p string) bool {
	if post, ok := openai.ClientPath(p); ok {
		return !post && p != openai.Health
	}
	return strings.HasPrefix(p, openai.Prefix+"/") && path.Clean(p) == p
}

// byLoad reports whether a path is one of the engines' API that takes POST only and whose bodies are not read here: requests
// are routed by load, in the pool of their model, if their body is JSON or a form that names one, and to endpoints that have its adapter.
func byLoad(p string) bool {
	post, _ := openai.ClientPath(p)
	return post || openai.UnreadPath(p)
}

// generates are those paths of byLoad whose requests are answered like completions.
var generates = map[string]bool{openai.Invocations: true, openai.Generate: true}

func (p *Proxy) wrongMethod(out *client, allow string) {
	out.Header().Set("Allow", allow)
	p.refuse(out, request.WrongMethod(allow))
}

// beginRecord begins the record of the use of a request whose client is known.
func (p *Proxy) beginRecord(out *client, r *http.Request) {
	if p.options.Usage == nil {
		return
	}
	out.arrived = p.options.Now()
	out.usage = p.options.Usage.Begin(usagelog.Proxy, out.id, p.picker.ShownTenant(out.tenant), r.URL.Path, out.arrived)
	out.usage.SentAs(out.engineID)
}

// recordRefusal records why a request was not picked for.
func (p *Proxy) recordRefusal(out *client, reason string) {
	if out.usage != nil {
		out.usage.Refused(reason, p.options.Now().Sub(out.arrived))
	}
}

// refuse answers a request that was not picked for.
func (p *Proxy) refuse(out *client, why *request.Refusal) {
	p.options.Observer.Refused(why.Reason)
	out.span.Refused(why.Reason)
	p.recordRefusal(out, why.Reason)
	out.comments.stop()
	out.reason = why.Reason
	picker.EachRateHeader(why.Rates, out.put)
	out.fail(&why.Error)
}

// generate serves a request for an engine, whatever its route: it reads, picks, and sends.
func (p *Proxy) generate(out *client, r *http.Request, route openai.Route, parsed bool) {
	start := p.options.Now()
	out.span = p.options.Spans.Proxied(r, out.id, parsed || byLoad(r.URL.Path), start)
	defer func() { out.span.Close(out.status) }()
	defer func() { out.comments.stop() }()
	held := p.account(budget.Requests, out, r, nil)
	defer held.Close()
	if !held.Take(requestCost) {
		p.refuse(out, request.NoMemory)
		return
	}
	if r.Body != http.NoBody && p.options.Overload.RefusesBody(out.tenant, r.ContentLength) {
		p.refuse(out, request.Overload)
		return
	}
	body, refused := p.readBody(out, r)
	if refused != nil {
		p.refuse(out, refused)
		return
	}
	if p.suspects.Any() {
		if after := p.suspects.Refused(markOf(p.suspects, r, body.Bytes), start); after > 0 {
			body.release()
			p.refuse(out, request.Suspect(after))
			return
		}
	}
	e := &exchange{proxy: p, client: out, request: r, route: route, body: body, start: start}
	defer e.dropBody()
	if parsed && !body.TakeIDs(body.account.Take, route) {
		p.refuse(out, request.Memory)
		return
	}

	e.pick = picker.Request{
		ID: out.id, Route: route, Body: body.Bytes, Header: headerOf(r), Unparsed: !parsed, Generates: generates[r.URL.Path],
		Light: r.URL.Path == openai.CountTokens, Uncached: len(body.Bytes) == 0 || !openai.Computes(r.Method, r.URL.Path),
		Saltable: r.URL.Path == openai.Generate, Invokes: r.URL.Path == openai.Invocations, CutsUsage: true, Splits: true,
		Steps: out.span.Steps(), Facts: out.usage.Facts(), Headers: r.Header, Query: r.URL.RawQuery,
	}
	defer func() { e.pick.Recording.Drop(respcache.Incomplete) }()
	e.pick.Rename = e.rename
	if streams[route] && parsed {
		e.pick.Streams = func(policy *picker.PolicySpec) { out.comment(route, policy.Comments) }
	}
	d, err := p.picker.Pick(r.Context(), &e.pick)
	if err != nil {
		out.comments.stop()
		if hit := (*picker.CachedAnswer)(nil); errors.As(err, &hit) {
			p.replay(out, r, hit, start)
			return
		}
		p.refusePick(out, r, err)
		return
	}
	e.decision = d
	e.mirror()
	if !e.rewrite() {
		d.End(picker.Failed)
		p.refuse(out, request.Memory)
		return
	}
	ctx, cancel := e.within(r.Context())
	defer cancel()
	e.run(ctx)
}

// refusePick answers a request that the picker has refused.
func (p *Proxy) refusePick(out *client, r *http.Request, err error) {
	if r.Context().Err() != nil {
		p.options.Observer.Refused(request.RefusedClientGone)
		out.span.Refused(request.RefusedClientGone)
		p.recordRefusal(out, request.RefusedClientGone)
		p.options.Log.V(1).Info("Request refused", "request", out.id, "reason", request.RefusedClientGone)
		panic(http.ErrAbortHandler)
	}
	why := request.RefusalOf(err)
	if why.Cause != nil {
		p.options.Log.Error(why.Cause, "Picking failed", "request", out.id)
	}
	p.refuse(out, why)
}

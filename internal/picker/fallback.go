package picker

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/modelroute"
)

// Pick chooses endpoints for a request. The caller must end the decision. It fails with an *Error. If the pool of a request's ModelRoute
// cannot take the request, the route's fallbacks are tried.
func (p *Picker) Pick(ctx context.Context, in *Request) (d *Decision, err error) {
	again := in.Again != nil
	defer func() {
		if d == nil {
			in.Routing.leave(p.options.Peers)
		}
	}()
	d, err = p.pick(ctx, in)
	for err != nil && in.Routing != nil && ctx.Err() == nil {
		expired := errors.Is(err, context.DeadlineExceeded)
		cause, known := p.causeOfRefusal(in, err)
		if !known || in.Routing.over(p.now()) || !p.fallBack(in, cause, expired) {
			if expired {
				err = RequestTimeout()
			}
			break
		}
		again = false
		d, err = p.pick(ctx, in)
	}
	if d != nil && in.Routing != nil && !again {
		in.Routing.counters.request(in.Routing.target().Pool)
		if in.Remote {
			p.dropsAtGateway(in, d)
		}
	}
	return d, err
}

// ErrRouteTime is the cause of a context that has ended because the time that a request's ModelRoute sets is over.
var ErrRouteTime = errors.New("the time of the request's route is over")

// bound is the context for the pick of a request: the request waits for its pool until it can go to a fallback no more, or its time
// is over.
func (t *Routing) bound(ctx context.Context, now time.Time) (context.Context, context.CancelFunc) {
	if t == nil {
		return ctx, func() {}
	}
	most := t.Timeout
	if t.can(modelroute.Full, now) && (most == 0 || t.rule.Within < most) {
		most = t.rule.Within
	}
	if most == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, t.arrived.Add(most).Sub(now), ErrRouteTime)
}

// FallBack sends a request to the next fallback of its route, after the endpoints of a decision have failed: their queues are full, or
// they cannot serve it. It reports false if there is none that can be tried now. The decision must be ended, and the next pick is a new
// one.
func (p *Picker) FallBack(in *Request, full bool) bool {
	return in.Routing != nil && p.fallBack(in, causeOf(full), false)
}

// FallsBack reports whether FallBack has a fallback.
func (p *Picker) FallsBack(in *Request, full bool) bool {
	return in.Routing != nil && in.Routing.can(causeOf(full), p.now())
}

func causeOf(full bool) modelroute.Cause {
	if full {
		return modelroute.Full
	}
	return modelroute.Down
}

// fallBack takes a request to the next fallback, if there is one for the cause. expired: the time to wait for the pool has just ended.
func (p *Picker) fallBack(in *Request, cause modelroute.Cause, expired bool) bool {
	t := in.Routing
	if !t.can(cause, p.now()) && (!expired || !t.on(cause)) {
		return false
	}
	left := t.target().Pool
	t.cause = cause
	t.step = t.nextStep()
	t.counters.fallback(left, cause)
	in.Again, in.HandedOver, in.Steps = nil, false, nil
	return true
}

// nextStep is the step of the next fallback that the request was not sent to; 0 if there is none.
func (t *Routing) nextStep() int {
	if t.mirror != nil {
		return 0
	}
	for step := t.step + 1; step <= len(t.rule.Fallbacks); step++ {
		next := t.rule.Target(t.chosen, step)
		tried := false
		for s := range step {
			b := t.rule.Target(t.chosen, s)
			tried = tried || b.Is(next)
		}
		if !tried {
			return step
		}
	}
	return 0
}

// on reports whether there is a fallback for a cause, can whether it can also be tried now.
func (t *Routing) on(cause modelroute.Cause) bool { return t.rule.On.Has(cause) && t.nextStep() > 0 }

func (t *Routing) can(cause modelroute.Cause, now time.Time) bool {
	return t.on(cause) && now.Sub(t.arrived) < t.rule.Within
}

// over reports whether the time of the request is over.
func (t *Routing) over(now time.Time) bool { return t.Timeout > 0 && now.Sub(t.arrived) >= t.Timeout }

// TimeLeft is how long a request can still take by its route.
func (p *Picker) TimeLeft(in *Request) (left time.Duration, limited bool) {
	if in.Routing == nil || in.Routing.Timeout == 0 {
		return 0, false
	}
	return in.Routing.arrived.Add(in.Routing.Timeout).Sub(p.now()), true
}

// causeOfRefusal is why a pick has failed, if a fallback can help. A request that has waited for too long met a full pool.
func (p *Picker) causeOfRefusal(in *Request, err error) (cause modelroute.Cause, known bool) {
	refusal := (*Error)(nil)
	if !errors.As(err, &refusal) {
		return modelroute.Full, errors.Is(err, context.DeadlineExceeded)
	}
	switch refusal.Code {
	case codeQueueFull, codeQueueTimeout:
		return modelroute.Full, true
	case codeNoEndpoint:
		if v := p.current.Load().named[in.Routing.target().Pool]; v != nil {
			if cause, unserved := v.unserved(p.now()); unserved {
				return cause, true
			}
			return modelroute.Down, true
		}
		return modelroute.Cold, true
	case codeNoPool:
		return modelroute.Cold, true
	case codeModelUnknown: // the pool went while the request was on its way
		return modelroute.Cold, p.current.Load().named[in.Routing.target().Pool] == nil
	}
	return 0, false
}

// unserved is why no endpoint of a pool can take requests, if none can.
func (v *view) unserved(now time.Time) (cause modelroute.Cause, is bool) {
	cause = modelroute.Cold
	for i := range v.spec.Endpoints {
		ep := &v.spec.Endpoints[i]
		asleep := v.members[i].sleep.asleep(now)
		if ep.Pickable() && ep.Role.Decodes() && !asleep {
			return 0, false
		}
		if !ep.Terminating && !asleep {
			cause = modelroute.Down
		}
	}
	return cause, true
}

// RequestTimeout is the error for a request whose route's time is over.
func RequestTimeout() *Error {
	return &Error{Status: 504, Type: "timeout", Code: "request_timeout",
		Message: "The request was not answered within the time that its model's route sets."}
}

// RouteStats counts what a route has done.
type RouteStats struct {
	Namespace, Name string
	// Route as it is applied. It is shared, and must not be changed.
	Route *modelroute.Route
	// Requests that were picked for, by pool; Fallbacks are requests that left a pool, by pool and modelroute.Cause.
	Requests  map[string]int64
	Fallbacks map[string][modelroute.NumCauses]int64
	// Refused requests by reason, in the order of RouteRefusals; Limited: the route has limits.
	Refused [len(RouteRefusals)]int64
	Limited bool
	// Mirrors are the copies that were made of requests, by pool.
	Mirrors map[string]MirrorStats
}

// routeCounters count what a route does. Labels are pools that the route names.
type routeCounters struct {
	mu        sync.Mutex
	requests  map[string]int64
	fallbacks map[string][modelroute.NumCauses]int64
	mirrors   map[string]*MirrorStats

	meter routeMeter
}

func newRouteCounters() *routeCounters {
	return &routeCounters{requests: map[string]int64{}, fallbacks: map[string][modelroute.NumCauses]int64{}}
}

func (c *routeCounters) request(pool string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[pool]++
}

func (c *routeCounters) fallback(pool string, cause modelroute.Cause) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.fallbacks[pool]
	n[cause]++
	c.fallbacks[pool] = n
}

// keep leaves the counters of the pools that a route names.
func (c *routeCounters) keep(r *modelroute.Route) {
	c.mu.Lock()
	defer c.mu.Unlock()
	named := map[string]bool{}
	for i := range r.Rules {
		for _, b := range slices.Concat(r.Rules[i].Backends, r.Rules[i].Fallbacks) {
			named[b.Pool] = true
			c.requests[b.Pool] += 0
		}
	}
	c.keepMirrors(r)
	maps.DeleteFunc(c.requests, func(pool string, _ int64) bool { return !named[pool] })
	maps.DeleteFunc(c.fallbacks, func(pool string, _ [modelroute.NumCauses]int64) bool { return !named[pool] })
}

// Routes are the counters of all routes, by namespace and name.
func (p *Picker) Routes() []RouteStats {
	var all []RouteStats
	for _, r := range p.current.Load().routeList {
		c := r.counters
		c.mu.Lock()
		one := RouteStats{
			Namespace: r.Namespace, Name: r.Name, Route: r.Route, Requests: maps.Clone(c.requests), Fallbacks: maps.Clone(c.fallbacks),
			Limited: r.limits != nil, Mirrors: c.readMirrors(),
		}
		c.mu.Unlock()
		for i := range c.meter.refused {
			one.Refused[i] = c.meter.refused[i].Load()
		}
		all = append(all, one)
	}
	return all
}

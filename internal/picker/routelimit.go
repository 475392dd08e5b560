package picker

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/replicas"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// RouteRefusals are the reasons for refusing requests by a route, by the codes that clients receive.
var RouteRefusals = [...]string{codeRouteRate, codeRouteConcurrent}

// routeMeter counts the requests of a route, as those of one tenant are counted. It is kept across changes of the route.
type routeMeter struct {
	meters  tenant.Meters
	refused [len(RouteRefusals)]atomic.Int64
}

// limitsOf are the limits of a route in the words of tenants; nil without any.
func limitsOf(l modelroute.Limits) *tenant.Class {
	if l == (modelroute.Limits{}) {
		return nil
	}
	return &tenant.Class{Weight: 1, RequestsPerMinute: l.RequestsPerMinute, MaxConcurrent: l.MaxConcurrent}
}

// enter counts a request by the route's limits, until leave. also takes what else the request needs, if there is room here; if it fails,
// nothing is counted. A request that goes to a fallback is counted already. enter fails with an *Error.
func (t *Routing) enter(now time.Time, peers *replicas.Outbox, also func() bool) error {
	if t == nil || t.limits == nil || t.pass != nil {
		if also != nil {
			also()
		}
		return nil
	}
	pass, reason, after := t.counters.meter.meters.TakeWith(now, "", t.limits, also)
	if reason != tenant.Admitted {
		return t.refuse(reason, after)
	}
	if t.pass = pass; pass != nil {
		peers.Changed()
	}
	return nil
}

// refuse counts a request beyond a limit, and makes its error.
func (t *Routing) refuse(reason tenant.Reason, after time.Duration) *Error {
	i, limit := 0, fmt.Sprintf("%d requests per minute", t.limits.RequestsPerMinute)
	if reason == tenant.TooManyAtOnce {
		i, limit = 1, fmt.Sprintf("%d requests at once", t.limits.MaxConcurrent)
	}
	t.counters.meter.refused[i].Add(1)
	return &Error{Status: 429, Type: "rate_limit_error", Code: RouteRefusals[i], RetryAfter: after,
		Message: fmt.Sprintf("The model's route %s/%s takes at most %s, of all clients together.", t.Namespace, t.Name, limit)}
}

// leave ends the request for the limits of its route.
func (t *Routing) leave(peers *replicas.Outbox) {
	if t != nil && t.pass != nil {
		t.pass.Release()
		peers.Changed()
	}
}

// leaveRoute is leave for a request whose decision has ended, unless the request has gone to a fallback since. d.mu is held.
func (d *Decision) leaveRoute() {
	if d.routing != nil && d.routing.pass != nil && d.routing.step == d.routed.at.step {
		d.routing.leave(d.view.peers)
	}
}

// routeMeters is before the name of a route, where replicas name what they meter. A pool has one slash in its name.
const routeMeters = "modelroute/"

// limited is the route whose meter replicas call by a name; nil if there is none, or it has no limits.
func (s *snapshot) limited(meter string) *compiledRoute {
	if !strings.HasPrefix(meter, routeMeters) {
		return nil
	}
	for _, r := range s.routeList {
		if r.limits != nil && r.metered == meter {
			return r
		}
	}
	return nil
}

// eachMeter calls f for the meters of all routes with limits.
func (s *snapshot) eachMeter(f func(name string, m *tenant.Meters)) {
	for _, r := range s.routeList {
		if r.limits != nil {
			f(r.metered, &r.counters.meter.meters)
		}
	}
}

package picker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/modelroute"
)

// Mirror is a copy of one request, for a pool that the rule of its ModelRoute names as a mirror. Its methods can be called from any
// goroutine.
//
// A copy is no request of the client. It waits for nothing and goes only to endpoints that have room to spare; it enters no limit of
// tenants or routes, no record of use, no metric of requests, and no signal by which a pool is scaled or woken; and how it ends says
// nothing about an endpoint to others.
type Mirror struct {
	routing Routing
	to      *modelroute.Mirror
	caller  caller
}

// Drop is why a copy was not sent.
type Drop uint8

// The causes.
const (
	// DropGateway: a gateway holds the request, and the picker cannot send it.
	DropGateway Drop = iota
	// DropBusy: too many copies are under way.
	DropBusy
	// DropMemory: the request is too large for a copy, or copies hold what they can.
	DropMemory
	// DropOverload: resources of the picker run short.
	DropOverload
	// DropNoEndpoint: the pool does not exist, or none of its endpoints can take requests.
	DropNoEndpoint
	// DropFull: no endpoint of the pool has room to spare.
	DropFull
	// DropRefused: the pool, or its policy, does not take the request.
	DropRefused
	// NumDrops is the number of causes.
	NumDrops int = iota
)

// String is the value of the metric label.
func (d Drop) String() string {
	return [...]string{"gateway", "busy", "memory", "overload", "no_endpoint", "full", "refused"}[d]
}

// MirrorOutcomes are how copies that were sent have ended, in the order of MirrorStats.Ended.
var MirrorOutcomes = [...]string{Completed.String(), Rejected.String(), Failed.String(), "cut_off"}

// MirrorCutOff is the outcome, beside those of requests, of a copy that took too long, or had too long an answer.
const MirrorCutOff = numOutcomes

// MirrorStats counts the copies for a pool.
type MirrorStats struct {
	Sent    int64
	Dropped [NumDrops]int64
	Ended   [len(MirrorOutcomes)]int64
}

// Mirrors are the copies of a request that was picked for: the mirrors of its rule that its session, or chance, selects. There is none for
// a mirror that is where the request itself goes, and none of a request that computes nothing, or whose answer precedes its work.
func (p *Picker) Mirrors(in *Request, d *Decision) (all []*Mirror) {
	t := in.Routing
	if t == nil || len(t.rule.Mirrors) == 0 || in.Light || in.Unparsed || d.background {
		return nil
	}
	now, target := p.now(), t.target()
	for i := range t.rule.Mirrors {
		to := &t.rule.Mirrors[i]
		if to.Is(target) || !to.Takes(t.draw) {
			continue
		}
		m := &Mirror{routing: *t, to: to, caller: caller{name: d.caller.name, class: everybody}}
		m.routing.arrived, m.routing.pass, m.routing.mirror = now, nil, m
		all = append(all, m)
	}
	return all
}

// dropsAtGateway counts the copies of a request that a gateway holds.
func (p *Picker) dropsAtGateway(in *Request, d *Decision) {
	for _, m := range p.Mirrors(in, d) {
		m.Dropped(DropGateway)
	}
}

// Pool is the pool that the copy is for, as namespace/name.
func (m *Mirror) Pool() string { return m.to.Pool }

// PickMirror chooses an endpoint for a copy, at once. in is the request as the client has sent it, with a body of its own, and Rename.
// It fails as Pick does. The caller must end the decision.
func (p *Picker) PickMirror(ctx context.Context, m *Mirror, in *Request) (*Decision, error) {
	in.Routing = &m.routing
	return p.pick(ctx, in)
}

// DropOf is the cause for an error of PickMirror.
func DropOf(err error) Drop {
	refusal := (*Error)(nil)
	switch {
	case !errors.As(err, &refusal):
		return DropFull // its time was over before an endpoint was found
	case refusal.Code == codeQueueFull:
		return DropFull
	case refusal.Code == codeNoEndpoint, refusal.Code == codeNoPool, refusal.Code == codeModelUnknown:
		return DropNoEndpoint
	case refusal.Code == CodeOverloaded:
		return DropMemory
	}
	return DropRefused
}

// Sent counts the copy as sent, Dropped as not sent, and Ended, after Sent, how it has ended.
func (m *Mirror) Sent() { m.count(func(s *MirrorStats) { s.Sent++ }) }

// Dropped counts why the copy was not sent.
func (m *Mirror) Dropped(why Drop) { m.count(func(s *MirrorStats) { s.Dropped[why]++ }) }

// Ended counts how the copy has ended: with an Outcome, or MirrorCutOff.
func (m *Mirror) Ended(outcome Outcome) {
	i := 2
	switch outcome {
	case Completed:
		i = 0
	case Rejected:
		i = 1
	case Outcome(MirrorCutOff):
		i = 3
	}
	m.count(func(s *MirrorStats) { s.Ended[i]++ })
}

func (m *Mirror) count(f func(*MirrorStats)) {
	c := m.routing.counters
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.mirrors[m.to.Pool]; s != nil { // else the route has lost the mirror meanwhile
		f(s)
	}
}

// why is why the mirror gets a copy.
func (m *Mirror) why(steady bool) string {
	by := "by chance"
	if steady {
		by = "by session"
	}
	return fmt.Sprintf("mirror of %d %%, %s", m.to.Percent, by)
}

// mirrors reports whether the routing is that of a copy.
func (t *Routing) mirrors() bool { return t != nil && t.mirror != nil }

// spareBacklog is the predicted wait at an endpoint up to which it has room for copies, where a pool's policy sets no longer wait budget.
const spareBacklog = 100 * time.Millisecond

// spare leaves the candidates that have room to spare for a copy: nothing waits at them or for the pool, and they are neither near their
// limits nor suspected. It fails with an *Error if none is left.
func (v *view) spare(q *admissionQueue, s *scratch, now time.Time) error {
	if len(s.candidates) == 0 {
		return noEndpoint(v.spec.Name)
	}
	if q.waiting.Load() > 0 || q.elsewhere.Load() {
		return queueFull(v.spec.Name, 0)
	}
	kept := 0
	for c, i := range s.index {
		if v.spares(now, i, &s.candidates[c].Load, s.needs()) {
			s.candidates[kept], s.index[kept] = s.candidates[c], i
			kept++
		}
	}
	if s.candidates, s.index = s.candidates[:kept], s.index[:kept]; kept == 0 {
		return queueFull(v.spec.Name, 0)
	}
	return nil
}

// spares reports whether an endpoint has room to spare. One that fails is not tried by copies: they must not take the place of the request
// that finds out whether it serves again.
func (v *view) spares(now time.Time, i int, l *load.View, sequences int) bool {
	spec := &v.spec.Policy
	return l.Waiting == 0 && !l.Stalled && l.KVUsage <= spec.MaxKVUsage && v.members[i].ceiling.places(now, l) >= sequences &&
		v.members[i].circuit.Failures() < max(1, spec.CircuitFailures) &&
		admission.Backlog(l) <= max(spec.Admission.WaitBudget, spareBacklog)
}

// keepMirrors leaves the counters of the mirrors that a route names. c.mu is held.
func (c *routeCounters) keepMirrors(r *modelroute.Route) {
	before := c.mirrors
	c.mirrors = map[string]*MirrorStats{}
	for i := range r.Rules {
		for j := range r.Rules[i].Mirrors {
			pool := r.Rules[i].Mirrors[j].Pool
			c.mirrors[pool] = cmp.Or(before[pool], c.mirrors[pool], &MirrorStats{})
		}
	}
}

// readMirrors copies the counters of mirrors. c.mu is held.
func (c *routeCounters) readMirrors() map[string]MirrorStats {
	all := make(map[string]MirrorStats, len(c.mirrors))
	for pool, s := range c.mirrors {
		all[pool] = *s
	}
	return all
}

// mirrored names the mirrors that get a copy of a request, for people: empty for none, and otherwise to be added to why.
func (t *Routing) mirrored() (text string) {
	if t == nil || t.mirror != nil {
		return ""
	}
	for i := range t.rule.Mirrors {
		m := &t.rule.Mirrors[i]
		switch {
		case m.Is(t.target()) || m.Percent == 0:
		case t.steady && m.Takes(t.draw), m.Percent == 100:
			text += "; mirror " + m.Pool
		case !t.steady:
			text += fmt.Sprintf("; mirror %s for %d %%, by chance", m.Pool, m.Percent)
		}
	}
	return text
}

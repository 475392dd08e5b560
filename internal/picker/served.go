package picker

import (
	"slices"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

const (
	// avoidedFor is how long a gateway must have no answer from an endpoint until it is said to avoid it. An engine with a full
	// queue refuses many requests in a moment, and a gateway learns of a new pod some seconds after the picker.
	avoidedFor = 30 * time.Second
	// maxAvoided bounds the endpoints of a gateway about which that is being found out.
	maxAvoided = 64
)

// Served takes the address of the endpoint that has answered, as the gateway reports it. The gateway was given the first
// named ones of Targets. attempts is how many endpoints it has sent the request to by its own count, 0 if it does not report
// that. The request moves to the endpoint that has it, and to none if the pool does not know the address.
//
// An address that is none of the pool's means that the gateway did not follow the pick. If another endpoint of the pool
// answers than the picked one, the gateway has passed over those that it was given before it. It has retried, if they have
// failed the request; it did not follow the pick, if it never asked them. The result is the endpoints that the caller must
// connect to in order to find out, in any order:
//
//   - An endpoint that refuses connections has failed. If all refuse, the gateway has retried.
//   - If attempts counts all that were passed over, the gateway has asked them, and has retried.
//   - If an endpoint takes connections, and the answer is from an endpoint that was not named, or attempts is 1, the pick was
//     not followed.
//   - If it takes connections, and the answer is from a later endpoint of the list, one request does not show whether the
//     gateway has retried (after a 503, a reset or a time limit) or does not know the endpoint. It counts as neither.
//
// An endpoint that takes connections has not failed: a full queue, or the request, can be the reason why it gave no answer. That
// ends when at least tooUnfollowed requests in a row, in at least avoidedFor, were passed over it and none was answered by it.
// Then those that the gateway has asked it for are failures of the endpoint, from then on, and without such a count all
// of them count as not followed.
func (d *Decision) Served(address string, named, attempts int) []*Passed {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended || d.servedReported {
		return nil
	}
	d.servedReported = true
	named = max(d.target+1, min(named, len(d.Targets)))
	picked, to := d.target, d.servedAt(address, named)
	listed := to > picked && to < named
	asked := listed && attempts > to-picked
	d.countGateway(func(t *gatewayTally, now time.Time) {
		t.stats.Reported++
		if to >= 0 {
			id := d.Targets[to].Endpoint.ID
			delete(t.avoided, avoided{id, true})
			delete(t.avoided, avoided{id, false})
		}
		switch {
		case to == picked:
			t.served.add(now, false)
		case to < 0:
			t.ignored(now)
		case asked:
			t.retried(now)
		}
	})
	switch {
	case to == picked:
		return nil
	case to < 0:
		d.retried, d.elsewhere = true, true
		d.leaveTarget(d.now())
		return nil
	}
	d.moveTo(to)
	p := &passage{decision: d, instead: d.Targets[to].Endpoint.Address, asked: asked, unsure: listed && attempts != 1}
	last := named
	if listed {
		last = to
	}
	for i := picked; i < last; i++ {
		p.all = append(p.all, &Passed{by: p, endpoint: d.Targets[i].Endpoint, member: d.Targets[i].member})
	}
	p.left = len(p.all)
	return p.all
}

// servedAt returns the index in Targets of the endpoint at an address that has answered, -1 if the pool has none there. The
// gateway was given those before named. If the endpoint is not among Targets, it is added. d.mu is held.
//
// Data-parallel ranks can share an address, and the header of a request chooses the rank. It is set for the picked endpoint
// and stays on the request wherever the gateway sends it. So an answer from the picked endpoint's address is the picked
// rank's, and one from another address is that of the rank with the same number. If there is no such rank there, the engine
// refuses the request or chooses a rank itself, as it does without a header: then it counts as that of the rank with the
// fewest requests, which is what engines choose by.
func (d *Decision) servedAt(address string, named int) int {
	for i := d.target; i < named; i++ {
		if d.Targets[i].Endpoint.Address == address {
			return i
		}
	}
	rank := d.Targets[d.target].Endpoint.RankHeader
	found, fewest := -1, 0
	for i, m := range d.view.members {
		ep := &d.view.spec.Endpoints[i]
		if ep.Address != address {
			continue
		}
		if rank >= 0 && ep.RankHeader == rank {
			found = i
			break
		}
		if n := m.load.View(d.now()).InFlight; found < 0 || n < fewest {
			found, fewest = i, n
		}
	}
	if found < 0 {
		return -1
	}
	for i := range d.Targets {
		if d.Targets[i].at == found {
			return i
		}
	}
	d.Targets = append(d.Targets, Target{
		Endpoint: &d.view.spec.Endpoints[found], member: d.view.members[found], at: found, uncached: d.PromptTokens,
	})
	return len(d.Targets) - 1
}

// Passed is an endpoint that a gateway was given before the one that has answered. One of Dead, Alive and Silent is called
// at most once, by any goroutine, also after the end of the decision.
type Passed struct {
	by       *passage
	endpoint *endpoint.Endpoint
	member   *member
	found    finding // guarded by by.mu
}

// passage is what was found out of all endpoints that one request was passed over.
type passage struct {
	decision *Decision
	instead  string // the address of the endpoint that has answered
	// asked: the gateway has asked the endpoints, by its count. unsure: it might have.
	asked, unsure bool
	all           []*Passed

	mu   sync.Mutex
	left int // of all, about which nothing is known yet
}

// finding is what was found out of an endpoint that was passed over.
type finding uint8

const (
	nothingKnown finding = iota
	dead
	alive
)

// Address is that of the endpoint.
func (p *Passed) Address() string { return p.endpoint.Address }

// Instead is the address of the endpoint that has answered.
func (p *Passed) Instead() string { return p.by.instead }

// Dead records that the endpoint refuses connections: it has failed.
func (p *Passed) Dead() {
	p.fail(false)
	p.member.usage.failed()
	p.judge(dead)
}

// Alive records that the endpoint takes connections.
func (p *Passed) Alive() { p.judge(alive) }

// Silent records that it was not found out whether the endpoint takes connections.
func (p *Passed) Silent() { p.judge(nothingKnown) }

// fail counts a failure of the endpoint. answers: it is there, so that requests can be the reason.
func (p *Passed) fail(answers bool) {
	d := p.by.decision
	p.member.circuit.Fail(d.now(), d.view.spec.Policy.CircuitFailures, d.view.spec.Policy.CircuitOpen, answers)
	p.member.stats.failures.Add(1)
}

// judge judges the gateway by the first endpoint that is not dead, as soon as all are known. If the gateway has asked all of
// them, it was judged already, and those that are not dead are judged.
func (p *Passed) judge(found finding) {
	by := p.by
	by.mu.Lock()
	p.found = found
	by.left--
	open := by.left > 0
	by.mu.Unlock()
	if open {
		return
	}
	for _, one := range by.all {
		switch {
		case one.found == dead:
		case by.asked && one.found == alive:
			fails := false
			by.decision.countGateway(func(t *gatewayTally, now time.Time) {
				a := t.passedOver(now, avoided{one.endpoint.ID, true})
				fails = a != nil && a.certain
			})
			if fails {
				one.fail(true)
			}
		case by.asked:
		case one.found == alive:
			by.decision.countGateway(func(t *gatewayTally, now time.Time) { t.notFollowed(now, one.endpoint.ID, by.unsure) })
			return
		default:
			return
		}
	}
	if !by.asked {
		by.decision.countGateway((*gatewayTally).retried)
	}
}

// countGateway counts what the gateway has done with the pick.
func (d *Decision) countGateway(f func(*gatewayTally, time.Time)) {
	now := d.now()
	d.view.gateways.add(d.gateway, func(t *gatewayTally) { f(t, now) })
}

func (t *gatewayTally) retried(now time.Time) {
	t.stats.Retried++
	t.served.add(now, false)
}

func (t *gatewayTally) ignored(now time.Time) {
	t.stats.Unfollowed++
	t.served.add(now, true)
}

// avoided is what an avoidance is about: an endpoint, and whether the gateway has asked it.
type avoided struct {
	endpoint endpoint.ID
	asked    bool
}

// avoidance is about the requests in a row that a gateway has passed over an endpoint which takes connections. An answer from
// the endpoint ends it.
type avoidance struct {
	requests    int
	unsure      int // of them, that are not counted yet because the gateway might have retried
	first, last time.Time
	certain     bool // the endpoint gets no request through the gateway, or answers none
}

// passedOver counts a request that was passed over an endpoint which takes connections. The result is nil if there is no room
// for another endpoint.
func (t *gatewayTally) passedOver(now time.Time, key avoided) *avoidance {
	a := t.avoidance(now, key)
	if a == nil {
		return nil
	}
	a.requests++
	a.last = now
	a.certain = a.certain || a.requests >= tooUnfollowed && now.Sub(a.first) >= avoidedFor
	return a
}

// notFollowed counts a request that was passed over an endpoint which takes connections and was not asked. unsure: it might
// have been.
func (t *gatewayTally) notFollowed(now time.Time, id endpoint.ID, unsure bool) {
	a := t.passedOver(now, avoided{id, false})
	switch {
	case !unsure:
		t.ignored(now)
	case a != nil:
		a.unsure++
	}
	if a == nil || !a.certain {
		return
	}
	t.stats.Unfollowed += int64(a.unsure)
	for range min(a.unsure, judgedAnswers) {
		t.served.add(now, true)
	}
	a.unsure = 0
}

// avoidance is that of an endpoint, nil if there is no room for another one.
func (t *gatewayTally) avoidance(now time.Time, key avoided) *avoidance {
	a := t.avoided[key]
	if a != nil && now.Sub(a.last) <= judgedFor {
		return a
	}
	if a == nil && len(t.avoided) >= maxAvoided {
		for other, b := range t.avoided {
			if now.Sub(b.last) > judgedFor {
				delete(t.avoided, other)
			}
		}
		if len(t.avoided) >= maxAvoided {
			return nil
		}
	}
	if t.avoided == nil {
		t.avoided = map[avoided]*avoidance{}
	}
	a = &avoidance{first: now}
	t.avoided[key] = a
	return a
}

// avoids reports whether the gateway is certain to avoid an endpoint.
func (t *gatewayTally) avoids(now time.Time) bool {
	for key, a := range t.avoided {
		if !key.asked && a.certain && now.Sub(a.last) <= judgedFor {
			return true
		}
	}
	return false
}

// Strayed reports whether an address is that of an endpoint of another pool than the decision's, and none of its pool's: a gateway that has
// several pools behind one backend of its own can send a request there.
func (p *Picker) Strayed(d *Decision, address string) bool {
	has := func(v *view) bool {
		return slices.ContainsFunc(v.spec.Endpoints, func(ep endpoint.Endpoint) bool { return ep.Address == address })
	}
	pools := p.current.Load().pools
	if len(pools) < 2 || address == d.Targets[0].Endpoint.Address || has(d.view) {
		return false
	}
	return slices.ContainsFunc(pools, func(v *view) bool { return v.name != d.view.name && has(v) })
}

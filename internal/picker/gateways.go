package picker

import (
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

const (
	// maxGateways bounds the gateways of a pool that are counted separately; the rest counts as otherGateways.
	maxGateways   = 64
	otherGateways = "other"
	// A gateway is judged by its last conclusive answers, at most judgedAnswers of them and none older than judgedFor. So
	// many picks that it did not follow, or streamed answers that it held back, are no coincidence.
	judgedAnswers          = 32
	judgedFor              = 10 * time.Minute
	tooUnfollowed, tooHeld = 4, 4
)

// gatewayTallies count what gateways do with picks and answers, by gateway. It is safe for concurrent use.
type gatewayTallies struct {
	mu  sync.Mutex
	all map[string]*gatewayTally // guarded by mu
}

type gatewayTally struct {
	stats        GatewayStats
	served, held recent
}

// GatewayStats are counters of one gateway.
type GatewayStats struct {
	// Gateway is its address, or otherGateways.
	Gateway string
	// For Told answers the gateway reported the endpoint that served them, or that it knew none. Of these it sent Retried
	// ones to another endpoint because the picked one was dead, and Unfollowed ones to another endpoint or to none although it
	// was not. Unfollowed also counts answers that the picked endpoint cannot have given, by its count of generated tokens.
	Reported, Retried, Unfollowed int64
	// Streams counts streamed answers with several events, and Buffered those of them that arrived in one piece.
	Streams, Buffered int64
	// Ignores: it has not followed too many of the last picks. Buffers: it has held back too many of the last streams.
	Ignores, Buffers bool
}

// recent is the last verdicts: a bit for each, the last one lowest.
type recent struct {
	bad uint32
	n   int
	at  time.Time
}

func (r *recent) add(now time.Time, bad bool) {
	if now.Sub(r.at) > judgedFor {
		*r = recent{}
	}
	r.bad, r.n, r.at = r.bad<<1, min(r.n+1, judgedAnswers), now
	if bad {
		r.bad |= 1
	}
}

// count is the number of bad ones.
func (r *recent) count(now time.Time) int {
	if now.Sub(r.at) > judgedFor {
		return 0
	}
	return bits.OnesCount32(r.bad)
}

// add lets f count for a gateway; one without a name is not counted.
func (g *gatewayTallies) add(name string, f func(*gatewayTally)) {
	if name == "" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.all[name]
	if t == nil && len(g.all) >= maxGateways {
		name = otherGateways
		t = g.all[name]
	}
	if t == nil {
		if g.all == nil {
			g.all = map[string]*gatewayTally{}
		}
		t = &gatewayTally{stats: GatewayStats{Gateway: name}}
		g.all[name] = t
	}
	f(t)
}

func (g *gatewayTallies) read(now time.Time) []GatewayStats {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := make([]GatewayStats, 0, len(g.all))
	for _, t := range g.all {
		s := t.stats
		s.Ignores, s.Buffers = t.served.count(now) >= tooUnfollowed, t.held.count(now) >= tooHeld
		list = append(list, s)
	}
	return list
}

// Streamed counts a streamed answer with several events, which the gateway has shown as one piece (held) or in several.
func (d *Decision) Streamed(held bool) {
	now := d.now()
	d.view.gateways.add(d.gateway, func(t *gatewayTally) {
		t.stats.Streams++
		if held {
			t.stats.Buffered++
		}
		t.held.add(now, held)
	})
}

// Served takes the address of the endpoint that has answered, as the gateway reports it. The gateway was given the first
// named ones of Targets. If a later one answers, it was a retry: the earlier ones have failed. An address that is none of the
// pool's means that the gateway did not follow the pick. If another endpoint of the pool answers, either can be the case, and
// the result is the endpoint to ask; it is nil otherwise. The request moves to the endpoint that has it, and to none if the
// pool does not know the address.
func (d *Decision) Served(address string, named int) *Passed {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended || d.servedReported {
		return nil
	}
	d.servedReported = true
	picked, to := d.target, d.targetAt(address)
	followed := to >= 0 && to < named
	for i, m := range d.view.members {
		if ep := &d.view.spec.Endpoints[i]; to < 0 && ep.Address == address {
			to = len(d.Targets)
			d.Targets = append(d.Targets, Target{Endpoint: ep, member: m, at: i, uncached: d.PromptTokens})
		}
	}
	d.countGateway(func(t *gatewayTally, now time.Time) {
		t.stats.Reported++
		switch {
		case followed && to > picked:
			t.retried(now)
		case followed:
			t.served.add(now, false)
		case to < 0:
			t.ignored(now)
		}
	})
	switch {
	case to == picked && followed:
		return nil
	case to < 0:
		d.retried, d.elsewhere = true, true
		d.leaveTarget(d.now())
		return nil
	case followed && to > picked:
		d.probe = false // it has failed
		for i := picked; i < to; i++ {
			d.fail(&d.Targets[i])
		}
	}
	if to != picked {
		d.moveTo(to)
	}
	if followed {
		return nil
	}
	return &Passed{d, d.Targets[picked].Endpoint, d.Targets[picked].member}
}

// targetAt returns the index in Targets of an address, -1 if there is none. d.mu is held.
func (d *Decision) targetAt(address string) int {
	return slices.IndexFunc(d.Targets, func(t Target) bool { return t.Endpoint.Address == address })
}

// Passed is an endpoint that a gateway was given while another one has answered. If it is dead the gateway has retried,
// and otherwise it did not follow the pick. One of Dead and Alive is called at most once, by any goroutine, also after the
// end of the decision.
type Passed struct {
	decision *Decision
	endpoint *endpoint.Endpoint
	member   *member
}

// Address is that of the endpoint.
func (p *Passed) Address() string { return p.endpoint.Address }

// Dead records that the endpoint refuses connections: it has failed.
func (p *Passed) Dead() {
	d := p.decision
	p.member.circuit.answered.Store(false)
	p.member.circuit.fail(d.now(), d.view.spec.Policy.CircuitFailures, d.view.spec.Policy.CircuitOpen)
	p.member.stats.failures.Add(1)
	d.countGateway((*gatewayTally).retried)
}

// Alive records that the endpoint takes connections.
func (p *Passed) Alive() { p.decision.countGateway((*gatewayTally).ignored) }

// Unfollowed records that the gateway has answered by itself because it knows no endpoint that it could send the request to,
// although one was picked.
func (d *Decision) Unfollowed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended || d.servedReported {
		return
	}
	d.servedReported = true
	d.countGateway(func(t *gatewayTally, now time.Time) {
		t.stats.Reported++
		t.ignored(now)
	})
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

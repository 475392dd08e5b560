package picker

import (
	"math/bits"
	"sync"
	"time"
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
	avoided      map[avoided]*avoidance // at most maxAvoided
}

// GatewayStats are counters of one gateway.
type GatewayStats struct {
	// Gateway is its address, or otherGateways.
	Gateway string
	// For Reported answers the gateway reported the endpoint that served them, or that it knew none. Of these it sent Retried
	// ones to another endpoint because the picked one had failed, and Unfollowed ones to another endpoint or to none although
	// it had not (Decision.Served). Unfollowed also counts answers that the picked endpoint cannot have given, by its count of
	// generated tokens.
	Reported, Retried, Unfollowed int64
	// Streams counts streamed answers with several events, and Buffered those of them that arrived in one piece.
	Streams, Buffered int64
	// Ignores: it has not followed too many of the last picks, or it avoids an endpoint. Buffers: it has held back too many of
	// the last streams.
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
		s.Ignores, s.Buffers = t.served.count(now) >= tooUnfollowed || t.avoids(now), t.held.count(now) >= tooHeld
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

package picker

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/replicas"
	"github.com/kvasir-dev/kvasir/internal/routinghistory"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// Loads calls f for every endpoint of every pool: the load that is sent to peers.
func (p *Picker) Loads(f func(pool string, id endpoint.ID, t *load.Tracker)) {
	for _, v := range p.current.Load().pools {
		for i, m := range v.members {
			f(v.name, v.spec.Endpoints[i].ID, &m.load)
		}
	}
}

// Tracker implements replicas.Pools.
func (p *Picker) Tracker(pool string, id endpoint.ID) *load.Tracker {
	if v := p.named(pool); v != nil {
		if m, ok := v.find(id); ok {
			return &m.load
		}
	}
	return nil
}

// Assume implements replicas.Pools: the guess of a peer, which is worth as much as one of this picker's own.
func (p *Picker) Assume(a *replicas.Assumption) (*kvindex.Guess, replicas.Refusal) {
	v := p.named(a.Pool)
	if v == nil {
		return nil, replicas.Unknown
	}
	m, ok := v.find(a.Endpoint)
	switch {
	case !ok:
		return nil, replicas.Unknown
	case v.spec.Policy.SpeculationOff:
		return nil, replicas.Off
	case v.keyID != a.KeyID || v.spec.BlockTokens != a.BlockTokens:
		return nil, replicas.OtherKeys
	}
	if latest := p.now().Add(v.spec.Policy.SpeculationMax); a.Until.After(latest) {
		a.Until = latest
	}
	return v.index.Speculate(m.holder, a.Keys), replicas.Taken
}

// Homes calls f for every pool: the homes of sessions, which are sent to peers.
func (p *Picker) Homes(f func(pool string, s *routinghistory.Sessions)) {
	for _, v := range p.current.Load().pools {
		f(v.name, v.homes)
	}
}

// Sessions implements replicas.Pools.
func (p *Picker) Sessions(pool string) *routinghistory.Sessions {
	if v := p.named(pool); v != nil {
		return v.homes
	}
	return nil
}

// Routed implements replicas.Pools: requests of peers count as those of this picker.
func (p *Picker) Routed(r *replicas.Routed) {
	for _, m := range p.memoriesOf(r) {
		m.Record(r.Chunks)
	}
}

// Recalled takes what another picker remembers of an endpoint. It is older than all that this one has recorded.
func (p *Picker) Recalled(r *replicas.Routed) {
	for _, m := range p.memoriesOf(r) {
		m.Append(r.Chunks)
	}
}

// memoriesOf are those of an endpoint for texts that are cut alike; none if the endpoint or the root is unknown.
func (p *Picker) memoriesOf(r *replicas.Routed) (list []*routinghistory.Memory) {
	v := p.named(r.Pool)
	if v == nil || v.keyID != r.KeyID {
		return nil
	}
	at := slices.IndexFunc(v.spec.Endpoints, func(e endpoint.Endpoint) bool { return e.ID == r.Endpoint })
	if at < 0 {
		return nil
	}
	for i := range v.histories {
		if h := &v.histories[i]; h.bytes == r.ChunkBytes && h.most == r.MostChunks {
			list = append(list, h.memories[at])
		}
	}
	return list
}

// Remembered calls f for what was routed to each endpoint of every pool, the most recent chunks first, until f returns false. All
// together are at most most chunks, and each endpoint has the same share of them.
func (p *Picker) Remembered(most int, f func(*replicas.Routed) bool) {
	pools, memories := p.current.Load().pools, 0
	for _, v := range pools {
		memories += len(v.histories) * len(v.members)
	}
	for _, v := range pools {
		for i := range v.histories {
			h := &v.histories[i]
			for at, m := range h.memories {
				r := &replicas.Routed{
					Pool: v.name, Endpoint: v.spec.Endpoints[at].ID, KeyID: v.keyID, ChunkBytes: h.bytes, MostChunks: h.most,
					Chunks: m.Recent(most / memories),
				}
				if len(r.Chunks) > 0 && !f(r) {
					return
				}
			}
		}
	}
}

// publishRouted sends peers what was routed to a target, by one of the histories.
func (d *Decision) publishRouted(t *Target, h *history, chunks []routinghistory.Chunk) {
	if d.view.peers.Alone() {
		return
	}
	d.view.peers.Route(&replicas.Routed{
		Pool: d.view.name, Endpoint: t.Endpoint.ID, KeyID: d.view.keyID, ChunkBytes: h.bytes, MostChunks: h.most, Chunks: chunks,
	})
}

// Meters calls f for every pool that has tenants or a queue, and for every route with limits: the usage that is sent to peers.
func (p *Picker) Meters(f func(pool string, m *tenant.Meters)) {
	for _, v := range p.current.Load().pools {
		if a := &v.spec.Policy.Admission; a.Tenants != nil || a.Queue {
			f(v.name, &v.meters)
		}
	}
	p.current.Load().eachMeter(f)
}

// Spent implements replicas.Tenants.
func (p *Picker) Spent(now time.Time, pool string, peer uint64, name string, u tenant.Usage) {
	if r := p.current.Load().limited(pool); r != nil {
		u.Queued = nil
		r.counters.meter.meters.Merge(now, peer, "", u, r.limits)
		return
	}
	v := p.named(pool)
	if v == nil {
		return
	}
	a := &v.spec.Policy.Admission
	class := a.classOf(name)
	if class == nil {
		return
	}
	u.Queued = slices.DeleteFunc(u.Queued, func(x tenant.Queued) bool { return !a.waits() || !a.has(x.Level, class) })
	news := v.meters.Merge(now, peer, name, u, class)
	q := &v.admission
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tickets.Limits.CatchUp = catchUp
	for _, x := range news {
		if x.Served > 0 {
			q.tickets.ServedElsewhere(now, x.Level, name, class.Weight, float64(x.Served))
		}
		waits := v.meters.Elsewhere(name, x.Level)
		q.tickets.WaitsElsewhere(now, x.Level, name, class.Weight, waits)
		if waits {
			q.elsewhere.Store(true) // until a look finds otherwise
		}
	}
}

// classOf is the class of a tenant, nil for one that there is not.
func (a *AdmissionSpec) classOf(name string) *tenant.Class {
	switch {
	case a.Tenants != nil:
		return a.Tenants.classOf(name)
	case name == "":
		return everybody
	}
	return nil
}

// publish reports to peers what has left the queue for the tenant of a ticket, in tokens, and whether its requests wait. q.mu is held.
func (q *admissionQueue) publish(v *view, t *admission.Ticket, served float64) {
	if v.peers != nil && v.spec.Policy.Admission.waits() &&
		v.meters.Queue(q.now(), t.Tenant, t.Level, served, q.tickets.Waits(t.Level, t.Tenant)) {
		v.peers.Changed()
	}
}

// recount finds out again which requests wait at other replicas, after one has left or the policy has changed.
func (q *admissionQueue) recount(v *view) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now, a := q.now(), &v.spec.Policy.Admission
	q.tickets.EachElsewhere(func(level int, name string) {
		class := a.classOf(name)
		waits := class != nil && a.waits() && a.has(level, class) && v.meters.Elsewhere(name, level)
		q.tickets.WaitsElsewhere(now, level, name, cmp.Or(class, everybody).Weight, waits)
	})
}

// Lost implements replicas.Tenants.
func (p *Picker) Lost(peer uint64) {
	for _, v := range p.current.Load().pools {
		v.meters.Lost(peer)
		v.admission.recount(v)
	}
	p.current.Load().eachMeter(func(_ string, m *tenant.Meters) { m.Lost(peer) })
}

// named finds a pool by namespace/name.
func (p *Picker) named(pool string) *view {
	for _, v := range p.current.Load().pools {
		if v.name == pool {
			return v
		}
	}
	return nil
}

// publishAssumption sends the speculation that was just made about keys, unless the pod itself has announced all blocks of the only
// prompt that a request can use. d.mu is held, or d is not shared yet.
func (d *Decision) publishAssumption(keys []kvblock.Key, until time.Time) *replicas.Assumption {
	t := &d.Targets[d.target]
	known := kvindex.Match{Speculative: uint32(len(keys))} // at most maxKeyed
	known = d.view.whole(t.member, known, d.PromptTokens)
	if d.view.peers.Alone() || len(d.more) == 0 && t.Match.Confirmed() >= known.Blocks() {
		return nil
	}
	told := &replicas.Assumption{
		Pool: d.view.name, Endpoint: t.Endpoint.ID, KeyID: d.view.keyID, BlockTokens: d.view.spec.BlockTokens,
		Keys: keys, Until: until,
	}
	d.view.peers.Assume(told)
	return told
}

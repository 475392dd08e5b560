package tenant

import (
	"container/list"
	"math"
	"slices"
	"time"
)

// A tenant's rates apply to its pool, however many replicas serve it: each replica reports to the others what it has
// admitted, and subtracts their reports from its own buckets. So all replicas have about the same buckets. Together they
// admit what the rate allows, plus what arrives at all of them before they receive each other's reports.

// Usage is what one replica has let a tenant use since the replica started.
type Usage struct {
	// Requests that were let through, and tokens, where these have a rate.
	Requests, Tokens uint64
	// UnderWay are the requests that have not ended.
	UnderWay int
	// RequestsLeft and TokensLeft are what was left of the rates; infinite without one.
	RequestsLeft, TokensLeft float64
	// Queued is what the replica's queue has for the tenant, by priority level. It must not change.
	Queued []Queued
}

// Queued is what a replica's queue has for a tenant at a priority level.
type Queued struct {
	Level int
	// Served is the work that has left the queue since the replica started, in uncached prompt tokens.
	Served uint64
	// Waiting: requests wait.
	Waiting bool
}

// MaxQueued bounds the levels of a tenant: those of a policy's 16 priorities, its default, and the highest of a class.
const MaxQueued = 18

// Queue changes what this replica's queue has for a tenant at a level: waiting is whether requests wait, and served is added. What is
// beyond MaxQueued levels is not reported. It returns whether something has changed.
func (ms *Meters) Queue(now time.Time, name string, level int, served float64, waiting bool) bool {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m := ms.meter(now, name)
	i := slices.IndexFunc(m.total.Queued, func(x Queued) bool { return x.Level == level })
	if i >= 0 && served <= 0 && m.total.Queued[i].Waiting == waiting || i < 0 && len(m.total.Queued) >= MaxQueued {
		return false
	}
	list := slices.Clone(m.total.Queued)
	if i < 0 {
		i, list = len(list), append(list, Queued{Level: level})
	}
	list[i].Served += uint64(max(0, served))
	list[i].Waiting = waiting
	m.total.Queued = list
	ms.changed(m)
	return true
}

// Elsewhere reports whether requests of a tenant wait at a level of other replicas.
func (ms *Meters) Elsewhere(name string, level int) bool {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m := ms.meters[name]
	if m == nil {
		return false
	}
	for _, u := range m.others {
		if slices.ContainsFunc(u.Queued, func(x Queued) bool { return x.Level == level && x.Waiting }) {
			return true
		}
	}
	return false
}

// servedSince are the levels of a report, each with the work that was served since an earlier report of the same replica. The first report
// of a level, and one of a replica that has forgotten the tenant, counts as none.
func (u *Usage) servedSince(before *Usage) []Queued {
	list := slices.Clone(u.Queued)
	for i := range list {
		x := &list[i]
		at := slices.IndexFunc(before.Queued, func(b Queued) bool { return b.Level == x.Level })
		if at < 0 {
			x.Served = 0
		} else {
			x.Served -= min(x.Served, before.Queued[at].Served)
		}
	}
	return list
}

// maxOthers bounds the lives of other replicas that are remembered of a tenant.
const maxOthers = 256

// changed notes that this replica's use has changed. ms.mu is held.
func (ms *Meters) changed(m *meter) {
	ms.changes++
	m.change = ms.changes
	if m.place == nil {
		m.place = ms.recent.PushBack(m)
		return
	}
	ms.recent.MoveToBack(m.place)
}

// Since calls f for at most most of the tenants that used something at this replica since a change, in the order of their
// changes, and returns the last change that it has reported. more reports whether there are others.
func (ms *Meters) Since(change uint64, most int, f func(name string, u Usage)) (upTo uint64, more bool) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.changes <= change {
		return change, false
	}
	var first *list.Element
	for e := ms.recent.Back(); e != nil && e.Value.(*meter).change > change; e = e.Prev() {
		first = e
	}
	upTo = change
	for e := first; e != nil; e = e.Next() {
		if most--; most < 0 {
			return upTo, true
		}
		m := e.Value.(*meter)
		u := m.total
		u.UnderWay, u.RequestsLeft, u.TokensLeft = m.underWay, m.requests.known(), m.tokens.known()
		f(m.name, u)
		upTo = m.change
	}
	return ms.changes, false
}

// known is what is left, infinite where nothing was taken yet.
func (b *bucket) known() float64 {
	if b.at.IsZero() {
		return math.Inf(1)
	}
	return b.left
}

// Merge takes what another replica has reported about a tenant of a class. peer is that replica's life. The first report of
// a replica is not counted, but afterwards no more is left than it reported. Merge returns u.Queued with the work since the last report.
func (ms *Meters) Merge(now time.Time, peer uint64, name string, u Usage, c *Class) []Queued {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m := ms.meter(now, name)
	before, known := m.others[peer]
	if !known && len(m.others) >= maxOthers {
		return nil
	}
	if m.others == nil {
		m.others = map[uint64]Usage{}
	}
	m.others[peer] = u
	m.theirs += u.UnderWay - before.UnderWay
	if rate := float64(c.RequestsPerMinute); rate > 0 {
		m.requests.fill(now, rate)
		m.requests.merge(known, before.Requests, u.Requests, u.RequestsLeft)
	}
	if rate := float64(c.TokensPerMinute); rate > 0 {
		m.tokens.fill(now, rate)
		m.tokens.merge(known, before.Tokens, u.Tokens, u.TokensLeft)
	}
	return u.servedSince(&before)
}

// merge takes off what another replica has used meanwhile. A replica that has forgotten the tenant counts from 0 again.
func (b *bucket) merge(known bool, before, after uint64, left float64) {
	switch {
	case !known:
		b.left = math.Min(b.left, left)
	case after >= before:
		b.left -= float64(after - before)
	default:
		b.left -= float64(after)
	}
}

// Lost records that another replica has left: nothing of it is under way or waits.
func (ms *Meters) Lost(peer uint64) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for _, m := range ms.meters {
		if u, ok := m.others[peer]; ok {
			m.theirs -= u.UnderWay
			u.UnderWay, u.Queued = 0, nil
			m.others[peer] = u
		}
	}
}

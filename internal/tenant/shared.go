package tenant

import (
	"container/list"
	"math"
	"time"
)

// A tenant's rates are its pool's, however many replicas serve it: each tells the others what it has let through, and
// takes what they have off its own buckets. So all have about the same buckets, and together let through what the rate
// allows, and what comes to all of them before they hear of each other.

// Usage is what one replica has let a tenant use since the replica started.
type Usage struct {
	// Requests that were let through, and tokens, where these have a rate.
	Requests, Tokens uint64
	// UnderWay are the requests that have not ended.
	UnderWay int
	// RequestsLeft and TokensLeft are what was left of the rates; infinite without one.
	RequestsLeft, TokensLeft float64
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

// Since calls f for at most so many of the tenants that this replica has let use something since a change, the one that
// changed first first, and returns the last change that it has told of. more says that there are others.
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

// Merge takes what another replica has told of a tenant of a class. peer is that replica's life. What a replica tells
// the first time is not counted, but no more is left afterwards than it said.
func (ms *Meters) Merge(now time.Time, peer uint64, name string, u Usage, c *Class) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m := ms.meter(now, name)
	before, known := m.others[peer]
	if !known && len(m.others) >= maxOthers {
		return
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

// Lost says that another replica is gone: nothing of it is under way.
func (ms *Meters) Lost(peer uint64) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for _, m := range ms.meters {
		if u, ok := m.others[peer]; ok {
			m.theirs -= u.UnderWay
			u.UnderWay = 0
			m.others[peer] = u
		}
	}
}

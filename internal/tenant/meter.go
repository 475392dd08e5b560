package tenant

import (
	"container/list"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// maxMeters bounds how many tenants are metered one by one. Names beyond it, which only a header can bring, share one
// meter: a flood of invented names is limited like one tenant.
const maxMeters = 1 << 16

// Reason is why a request of a tenant is refused.
type Reason uint8

// The reasons.
const (
	// Admitted: it is not refused.
	Admitted Reason = iota
	TooManyRequests
	TooManyTokens
	TooManyAtOnce
)

// String is the value of the metric label and the code of the error.
func (r Reason) String() string {
	return [...]string{"", "requests_per_minute", "tokens_per_minute", "max_concurrent"}[r]
}

// Meters keep the rates of a pool's tenants and count their requests under way, including those that other replicas report.
// The zero value is ready. It is safe for concurrent use.
type Meters struct {
	mu      sync.Mutex
	meters  map[string]*meter
	swept   time.Time
	changes uint64    // so far
	recent  list.List // of *meter that this replica has used, the one changed last at the end
}

// meter is one tenant's account: two buckets that fill up to one minute's worth.
type meter struct {
	name             string
	requests, tokens bucket
	underWay         int

	// What this replica has let through since it started, and when that has changed.
	total  Usage
	change uint64
	place  *list.Element // in Meters.recent, nil before the first change
	others map[uint64]Usage
	theirs int // others' requests under way
}

// bucket is what is left of a rate. A debt is possible: an answer's length is known only when it has arrived.
type bucket struct {
	left float64
	at   time.Time
}

// fill adds what the time has brought; at most a minute's worth is saved up.
func (b *bucket) fill(now time.Time, perMinute float64) {
	if b.at.IsZero() {
		b.left, b.at = perMinute, now
	} else if d := now.Sub(b.at).Minutes(); d > 0 {
		b.left, b.at = math.Min(perMinute, b.left+d*perMinute), now
	}
}

// full reports whether forgetting the bucket changes nothing.
func (b *bucket) full(now time.Time) bool {
	return b.at.IsZero() || now.Sub(b.at) >= time.Minute && b.left >= 0
}

// Pass is a request that was let through. The nil Pass belongs to no tenant: its methods do nothing.
type Pass struct {
	meters   *Meters
	meter    *meter
	class    *Class
	released bool
	charged  atomic.Int64
}

// Take counts a request of a tenant, or refuses it: then the pass is nil, and after is how long to wait before it can
// be let through. The pass must be released.
func (ms *Meters) Take(now time.Time, name string, c *Class) (pass *Pass, reason Reason, after time.Duration) {
	return ms.TakeWith(now, name, c, nil)
}

// TakeWith is Take for a request that needs something else, too: also takes that, and is called only if the request is not refused here. If
// also fails, nothing is counted, and the pass is nil without a reason. also must not use these meters; nil takes nothing.
func (ms *Meters) TakeWith(now time.Time, name string, c *Class, also func() bool) (pass *Pass, reason Reason, after time.Duration) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m := ms.meter(now, name)
	if c.MaxConcurrent > 0 && m.underWay+m.theirs >= c.MaxConcurrent {
		return nil, TooManyAtOnce, time.Second
	}
	if rate := float64(c.TokensPerMinute); rate > 0 {
		if m.tokens.fill(now, rate); m.tokens.left < 1 {
			return nil, TooManyTokens, wait(1-m.tokens.left, rate)
		}
	}
	if rate := float64(c.RequestsPerMinute); rate > 0 {
		if m.requests.fill(now, rate); m.requests.left < 1 {
			return nil, TooManyRequests, wait(1-m.requests.left, rate)
		}
	}
	if also != nil && !also() {
		return nil, Admitted, 0
	}
	if c.RequestsPerMinute > 0 {
		m.requests.left--
	}
	m.underWay++
	m.total.Requests++
	ms.changed(m)
	return &Pass{meters: ms, meter: m, class: c}, Admitted, 0
}

// CountsTokens reports whether the tenant has a rate of tokens.
func (p *Pass) CountsTokens() bool { return p != nil && p.class.TokensPerMinute > 0 }

// Charge counts tokens that the request has used, of its prompt or its answer. It can be called after Release.
func (p *Pass) Charge(now time.Time, tokens int) {
	if p == nil || tokens <= 0 {
		return
	}
	p.charged.Add(int64(tokens))
	if !p.CountsTokens() {
		return
	}
	p.meters.mu.Lock()
	defer p.meters.mu.Unlock()
	p.meter.total.Tokens += uint64(tokens)
	p.meters.changed(p.meter)
	p.meter.tokens.fill(now, float64(p.class.TokensPerMinute))
	p.meter.tokens.left -= float64(tokens)
}

// Charged is how many tokens were charged so far.
func (p *Pass) Charged() int64 {
	if p == nil {
		return 0
	}
	return p.charged.Load()
}

// Rate is a limit for each minute, and what is left of it. The zero Rate is no limit.
type Rate struct {
	PerMinute, Left int64
	// Full is how long it takes until nothing is missing, if nothing is used meanwhile.
	Full time.Duration
}

// Rates are the limits of a tenant that its clients see.
type Rates struct{ Requests, Tokens Rate }

// Rates of the tenant that the request belongs to, as of now.
func (p *Pass) Rates(now time.Time) Rates {
	if p == nil {
		return Rates{}
	}
	p.meters.mu.Lock()
	defer p.meters.mu.Unlock()
	return p.meter.rates(now, p.class)
}

// Rates of a tenant, as of now.
func (ms *Meters) Rates(now time.Time, name string, c *Class) Rates {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.meter(now, name).rates(now, c)
}

func (m *meter) rates(now time.Time, c *Class) Rates {
	return Rates{m.requests.rate(now, int64(c.RequestsPerMinute)), m.tokens.rate(now, c.TokensPerMinute)}
}

func (b *bucket) rate(now time.Time, perMinute int64) Rate {
	if perMinute <= 0 {
		return Rate{}
	}
	b.fill(now, float64(perMinute))
	return Rate{perMinute, max(0, int64(b.left)), wait(float64(perMinute)-b.left, float64(perMinute))}
}

// Release reports that the request has ended. Only the first call counts.
func (p *Pass) Release() {
	if p == nil {
		return
	}
	p.meters.mu.Lock()
	defer p.meters.mu.Unlock()
	if !p.released {
		p.released = true
		p.meter.underWay--
		p.meters.changed(p.meter)
	}
}

// UnderWay is the number of a tenant's requests that were taken and not released.
func (ms *Meters) UnderWay(name string) int {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if m := ms.meters[name]; m != nil {
		return m.underWay
	}
	return 0
}

// Len is the number of tenants that have a meter.
func (ms *Meters) Len() int {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return len(ms.meters)
}

// meter finds or makes a tenant's meter. ms.mu is held.
func (ms *Meters) meter(now time.Time, name string) *meter {
	if m := ms.meters[name]; m != nil {
		return m
	}
	if ms.meters == nil {
		ms.meters = map[string]*meter{}
	}
	if len(ms.meters) >= maxMeters && !ms.sweep(now) {
		name = ""
		if m := ms.meters[name]; m != nil {
			return m
		}
	}
	m := &meter{name: name}
	ms.meters[name] = m
	return m
}

// sweep forgets the meters without information, at most once a second, and reports whether there is room.
func (ms *Meters) sweep(now time.Time) bool {
	if now.Sub(ms.swept) >= time.Second {
		ms.swept = now
		for name, m := range ms.meters {
			if m.underWay+m.theirs == 0 && m.requests.full(now) && m.tokens.full(now) {
				delete(ms.meters, name)
				if m.place != nil {
					ms.recent.Remove(m.place)
				}
			}
		}
	}
	return len(ms.meters) < maxMeters
}

// wait is how long a rate takes to bring an amount.
func wait(amount, perMinute float64) time.Duration {
	return time.Duration(math.Min(amount/perMinute*60, 3600) * float64(time.Second))
}

package respcache

import (
	"context"
	"errors"
	"time"
)

// Redis names a server that keeps answers for all replicas.
type Redis struct {
	// Address is HOST:PORT; empty for none.
	Address            string
	Username, Password string
	// TLS; CA are the authorities that the server's certificate is checked by, PEM; empty for those of the system.
	TLS bool
	CA  string
	// Prefix of the names of keys.
	Prefix string
	// Timeout of a question.
	Timeout time.Duration
	// Origin names the pool and the policy that answers are made by, as they are configured. Others share no answers.
	Origin Key
	// Missing is why the server cannot be asked; empty for nothing.
	Missing string
}

// Store keeps answers outside of the process. It is safe for concurrent use.
type Store interface {
	// Get returns the answer to a request, nil if there is none. It fails with ErrNotCalled, ErrUnusable, or what the server has done.
	Get(ctx context.Context, key Key) (*Answer, error)
	// Put stores an answer for so long, later and without a report.
	Put(key Key, a *Answer, life time.Duration)
	Close()
}

// Storage is what became of a question to the store of a cache, or of an answer for it.
type Storage uint8

// The ways.
const (
	// StoreHit: it had the answer. StoreMiss: it had none.
	StoreHit Storage = iota
	StoreMiss
	// StoreInvalid: what it had is no answer of this pool, or was changed.
	StoreInvalid
	// StoreFailed: it did not answer in time, or with an error.
	StoreFailed
	// StoreNotCalled: it is left alone, because it has failed repeatedly or has many questions under way.
	StoreNotCalled
	// StoreWritten: it has taken an answer. StoreWriteFailed: it has not. StoreDropped: too many answers were waiting to be written.
	StoreWritten
	StoreWriteFailed
	StoreDropped
	// NumStorages is the number of ways.
	NumStorages int = iota
)

// String is the value of the metric label.
func (s Storage) String() string {
	return [...]string{"hit", "miss", "invalid", "failed", "not_called", "written", "write_failed", "dropped"}[s]
}

// StoreTrouble is why the store is not used now.
type StoreTrouble struct {
	What   Storage
	Detail string
	Since  time.Time
}

// CountStorage counts what became of a question or an answer. detail describes what went wrong. A store that is left alone has the trouble
// that it had.
func (c *Counters) CountStorage(now time.Time, s Storage, detail string) {
	c.storages[s].Add(1)
	before := c.storeTrouble.Load()
	switch s {
	case StoreHit, StoreMiss, StoreWritten:
		if before != nil && (s == StoreWritten) == (before.What == StoreWriteFailed) {
			c.storeTrouble.CompareAndSwap(before, nil)
		}
	case StoreDropped, StoreInvalid:
	default:
		if before == nil || before.What != s && s != StoreNotCalled {
			c.storeTrouble.CompareAndSwap(before, &StoreTrouble{What: s, Detail: detail, Since: now})
		}
	}
}

// Shared returns the answer that the store has for a request, nil if there is none that is younger than maxAge; negative is no bound. It
// counts a hit, and keeps the answer of the tenant.
func (c *Cache) Shared(ctx context.Context, store Store, now func() time.Time, key Key, tenant string, maxAge time.Duration) *Answer {
	a, err := store.Get(ctx, key)
	at := now()
	switch {
	case err == nil && a != nil && len(a.Body) <= c.most():
		// The time is by the clock of another replica, which can be ahead. From here on, setting the clock does not change the age.
		a.Stored = at.Add(-max(0, at.Sub(a.Stored)))
	case err == nil:
		c.counters.CountStorage(at, StoreMiss, "")
		return nil
	case ctx.Err() != nil: // the client has gone
		return nil
	case errors.Is(err, ErrNotCalled):
		c.counters.CountStorage(at, StoreNotCalled, err.Error())
		return nil
	case errors.Is(err, ErrUnusable):
		c.counters.CountStorage(at, StoreInvalid, err.Error())
		return nil
	default:
		c.counters.CountStorage(at, StoreFailed, err.Error())
		return nil
	}
	if !c.young(a, at, maxAge) {
		c.counters.CountStorage(at, StoreMiss, "")
		return nil
	}
	c.counters.CountStorage(at, StoreHit, "")
	c.counters.Count(Hit)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.put(key, tenant, a, nil)
	}
	return a
}

// most bytes of an answer.
func (c *Cache) most() int { return min(MaxAnswer, int(c.limit/underWayShare)) }

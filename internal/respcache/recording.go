package respcache

import "time"

// Recording collects the answer to a request that was not in the cache. Store or Drop must be called and ends it: all later
// calls are ignored. It is for one goroutine at a time; nil records nothing.
type Recording struct {
	cache  *Cache
	key    Key
	tenant string
	body   []byte
	ended  bool
	// likeness by which the answer will be found, too; nil for none.
	likeness *Likeness
	// store gets the answer, too; nil for none.
	store Store
}

// Record begins to record the answer to a request of a tenant. It holds nothing before the first Write.
func (c *Cache) Record(key Key, tenant string) *Recording {
	return &Recording{cache: c, key: key, tenant: tenant}
}

// Share lets the answer be kept by a store, too.
func (r *Recording) Share(s Store) {
	if r.Active() {
		r.store = s
	}
}

// Like lets the answer be found by similar requests. While the answer is under way, the vector counts like it; if there is no room, the
// answer is found by equal requests alone.
func (r *Recording) Like(l *Likeness) {
	if r.Active() && r.likeness == nil && r.cache.grow(vectorSize(l.Vector)) == Stored {
		r.likeness = l
	}
}

// vector is what the vector takes, in bytes.
func (r *Recording) vector() int64 {
	if r.likeness == nil {
		return 0
	}
	return vectorSize(r.likeness.Vector)
}

// Active reports whether the answer is still recorded.
func (r *Recording) Active() bool { return r != nil && !r.ended }

// Write takes the next bytes that the client gets.
func (r *Recording) Write(p []byte) {
	if !r.Active() {
		return
	}
	if size := len(r.body) + len(p); size > cap(r.body) {
		most := r.cache.most()
		if size > most {
			r.Drop(TooLarge)
			return
		}
		grown := min(max(firstGrowth, 2*cap(r.body), size), most)
		if why := r.cache.grow(int64(grown - cap(r.body))); why != Stored {
			r.Drop(why)
			return
		}
		r.body = append(make([]byte, 0, grown), r.body...)
	}
	r.body = append(r.body, p...)
}

// Reset forgets what was recorded: another engine is asked, and the client has nothing of the answer yet.
func (r *Recording) Reset() {
	if r.Active() {
		r.cache.shrink(int64(cap(r.body)))
		r.body = nil
	}
}

// Store stores the answer, whose body is what was recorded.
func (r *Recording) Store(now time.Time, a Answer) {
	if !r.Active() {
		return
	}
	c := r.cache
	a.Stored, a.Body = now, append(make([]byte, 0, len(r.body)), r.body...)
	c.mu.Lock()
	defer c.mu.Unlock()
	r.ended = true
	c.underWay -= int64(cap(r.body)) + r.vector()
	r.body = nil
	if c.closed {
		c.counters.storings[Outdated].Add(1)
		return
	}
	c.put(r.key, r.tenant, &a, r.likeness)
	c.counters.storings[Stored].Add(1)
	if r.store != nil {
		r.store.Put(r.key, &a, c.life)
	}
}

// Drop ends the recording without an entry, and counts why.
func (r *Recording) Drop(why Storing) {
	if !r.Active() {
		return
	}
	r.cache.shrink(int64(cap(r.body)) + r.vector())
	r.body, r.ended = nil, true
	r.cache.counters.storings[why].Add(1)
}

// grow takes bytes for an answer under way. If there are none, it returns why.
func (c *Cache) grow(n int64) (why Storing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return Outdated
	case c.underWay+n > c.limit/underWayShare:
		return NoRoom
	}
	c.makeRoom(n)
	c.underWay += n
	return Stored
}

// shrink gives bytes back.
func (c *Cache) shrink(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.underWay -= n
}

// Package respcache keeps whole answers of engines in memory, so that the same request is answered again without an engine.
//
// A Cache is bounded in bytes and time. If it is full, the answer that was used least recently of the tenant that holds most gives way: a
// tenant that holds little keeps its answers however much others store. Answers are immutable, so that they are sent without a lock.
package respcache

import (
	"container/heap"
	"container/list"
	"sync"
	"sync/atomic"
	"time"
)

// Key names a request and all that its answer depends on. It is a SHA-256: a client cannot find another request with the same one.
type Key [32]byte

// Answer is a whole answer of an engine, of status 200. It is not changed once it is stored.
type Answer struct {
	ContentType string
	// Stream: the answer is a stream of events.
	Stream bool
	Body   []byte
	// PromptTokens and GeneratedTokens as the engine has counted them; -1 where it has not.
	PromptTokens, GeneratedTokens int
	// Stored is when the answer was complete.
	Stored time.Time
}

const (
	// MaxAnswer is the most bytes of an answer that is stored, where a quarter of the cache is not less.
	MaxAnswer = 1 << 20
	// overhead is about what an answer takes besides its body, in bytes: its key, its places in maps and lists, its tenant's name.
	overhead = 1 << 10
	// underWayShare of a cache is the most that answers under way can take, so that slow or many ones do not empty it.
	underWayShare = 4
	// firstGrowth is the first size of an answer under way.
	firstGrowth = 4 << 10
)

// Result is what became of a request in the cache.
type Result uint8

// The results. The cache counts hits and similar ones, its caller the others.
const (
	// Hit: it was answered from the cache. Miss: it was not there, nor a similar one.
	Hit Result = iota
	Miss
	// Similar: it was answered from the cache with the answer to a similar request.
	Similar
	// NotAsked: the policy caches only requests whose clients ask for it.
	NotAsked
	// NotDeterministic: another answer to the same request can be as good, and the client has not asked for this one.
	NotDeterministic
	// Stateful: the answer depends on earlier requests or on other engines, or is to be kept by the engine.
	Stateful
	// Declined: the client has refused with Cache-Control.
	Declined
	// NoTenant: the policy distinguishes tenants, and the request has none.
	NoTenant
	// Unreadable: two such requests cannot be compared, or the body is too large for that.
	Unreadable
	// NumResults is the number of results.
	NumResults int = iota
)

// String is the value of the metric label.
func (r Result) String() string {
	return [...]string{
		"hit", "miss", "similar", "not_asked", "not_deterministic", "stateful", "declined", "no_tenant", "unreadable",
	}[r]
}

// Storing is what became of the answer to a request that was not in the cache.
type Storing uint8

// The ways.
const (
	// Stored: it is in the cache.
	Stored Storing = iota
	// TooLarge: it is larger than MaxAnswer, or than a quarter of the cache.
	TooLarge
	// NoRoom: answers under way take too much already.
	NoRoom
	// Incomplete: it was cut off, its client has left, or another engine has served it after a failure.
	Incomplete
	// Unfit: its status, coding or headers do not let it be stored, or it contains an error.
	Unfit
	// Outdated: the pool or its policy has changed since the request came.
	Outdated
	// NumStorings is the number of ways.
	NumStorings int = iota
)

// String is the value of the metric label.
func (s Storing) String() string {
	return [...]string{"stored", "too_large", "no_room", "incomplete", "unfit", "outdated"}[s]
}

// Counters count what caches of one pool do. They outlive a Cache. The zero value is ready, and safe for concurrent use.
type Counters struct {
	results  [NumResults]atomic.Int64
	storings [NumStorings]atomic.Int64
	evicted  atomic.Int64
	expired  atomic.Int64

	embeddings [NumEmbeddings]atomic.Int64
	models     atomic.Int64
	similarity similarities
	trouble    atomic.Pointer[Trouble]

	storages     [NumStorages]atomic.Int64
	storeTrouble atomic.Pointer[StoreTrouble]
}

// Count counts what became of a request.
func (c *Counters) Count(r Result) { c.results[r].Add(1) }

// Stats are counts, and what a cache holds.
type Stats struct {
	Results  [NumResults]int64
	Storings [NumStorings]int64
	// Evicted answers had to give way, Expired ones were too old.
	Evicted, Expired int64
	// Bytes that are held of Limit, those of answers under way included, by so many Entries.
	Bytes, Limit int64
	Entries      int
	// Vectors of entries that are found by similarity. Embeddings are what became of questions that were to be compared, Models how often
	// the service has had another model than before, Similarity the distribution of the highest similarities.
	Vectors    int
	Embeddings [NumEmbeddings]int64
	Models     int64
	Similarity Similarities
	// Trouble is what is wrong with the embedding service now; nil for nothing.
	Trouble *Trouble
	// Storages are what became of questions to the store and of answers for it, StoreTrouble what is wrong with it now; nil for nothing.
	Storages     [NumStorages]int64
	StoreTrouble *StoreTrouble
}

// Cache keeps answers. Make it with New. It is safe for concurrent use.
type Cache struct {
	limit    int64
	life     time.Duration
	counters *Counters

	mu       sync.Mutex // guards what follows
	closed   bool
	held     int64 // by entries
	underWay int64 // by recordings
	entries  map[Key]*entry
	holders  map[string]*holder
	byWeight weights
	groups   map[Key]*group
	// mark is the vector of Mark by the model that has made the vectors in the cache; nil before the first. vectorsAge counts its changes.
	mark       Vector
	vectorsAge uint64
}

// entry is an answer in the cache.
type entry struct {
	key    Key
	answer *Answer
	size   int64
	holder *holder
	place  *list.Element
	// point in the group by which similar requests find the entry; nil if they do not.
	point *point
	group Key
}

// holder is a tenant that has answers in the cache.
type holder struct {
	tenant string
	held   int64
	used   list.List // of *entry, the most recently used one first
	index  int       // in weights
}

// New makes a cache of so many bytes, whose answers live so long.
func New(limit int64, life time.Duration, counters *Counters) *Cache {
	return &Cache{limit: limit, life: life, counters: counters, entries: map[Key]*entry{}, holders: map[string]*holder{},
		groups: map[Key]*group{}}
}

// Get returns the answer to a request, nil if there is none that is younger than maxAge; negative is no bound. It counts a hit.
func (c *Cache) Get(now time.Time, key Key, maxAge time.Duration) *Answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[key]
	if e != nil && now.Sub(e.answer.Stored) >= c.life {
		c.remove(e)
		c.counters.expired.Add(1)
		e = nil
	}
	if e == nil || !c.young(e.answer, now, maxAge) {
		return nil
	}
	c.counters.Count(Hit)
	e.holder.used.MoveToFront(e.place)
	return e.answer
}

// Peek returns what Get would. It counts nothing, and the answer is no more recently used.
func (c *Cache) Peek(now time.Time, key Key, maxAge time.Duration) *Answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[key]
	if e == nil || !c.young(e.answer, now, maxAge) {
		return nil
	}
	return e.answer
}

// young reports whether an answer is young enough for the cache and for the client.
func (c *Cache) young(a *Answer, now time.Time, maxAge time.Duration) bool {
	age := now.Sub(a.Stored)
	return age < c.life && (maxAge < 0 || age < maxAge)
}

// Close drops everything, and lets nothing be stored any more.
func (c *Cache) Close() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.held = 0
	clear(c.entries)
	clear(c.holders)
	clear(c.groups)
	c.byWeight = nil
	c.vectorsAge++
}

// Stats reads the counters of a pool, and what its cache holds; nil holds nothing.
func (c *Cache) Stats(counters *Counters) Stats {
	var s Stats
	for i := range s.Results {
		s.Results[i] = counters.results[i].Load()
	}
	for i := range s.Storings {
		s.Storings[i] = counters.storings[i].Load()
	}
	s.Evicted, s.Expired = counters.evicted.Load(), counters.expired.Load()
	for i := range s.Embeddings {
		s.Embeddings[i] = counters.embeddings[i].Load()
	}
	s.Models, s.Similarity, s.Trouble = counters.models.Load(), counters.similarity.read(), counters.trouble.Load()
	for i := range s.Storages {
		s.Storages[i] = counters.storages[i].Load()
	}
	s.StoreTrouble = counters.storeTrouble.Load()
	if c == nil {
		return s
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Bytes, s.Limit, s.Entries = c.held+c.underWay, c.limit, len(c.entries)
	for _, g := range c.groups {
		s.Vectors += g.live()
	}
	return s
}

// put stores an answer of a tenant in place of the one before; l is by what it is found too, nil for nothing. c.mu is held.
func (c *Cache) put(key Key, tenant string, a *Answer, l *Likeness) {
	if old := c.entries[key]; old != nil {
		c.remove(old)
	}
	e := &entry{key: key, answer: a}
	size := int64(cap(a.Body)) + overhead
	if l != nil {
		c.makeRoom(size + vectorSize(l.Vector))
	} else {
		c.makeRoom(size)
	}
	h := c.holders[tenant]
	if h == nil {
		h = &holder{tenant: tenant}
		c.holders[tenant] = h
		heap.Push(&c.byWeight, h)
	}
	e.holder, e.place = h, h.used.PushFront(e)
	c.entries[key] = e
	c.weigh(e, size)
	c.like(e, l)
}

// weigh changes what an entry takes. c.mu is held.
func (c *Cache) weigh(e *entry, by int64) {
	e.size += by
	c.held += by
	e.holder.held += by
	heap.Fix(&c.byWeight, e.holder.index)
}

// remove takes an answer out. c.mu is held.
func (c *Cache) remove(e *entry) {
	c.unlike(e)
	h := e.holder
	delete(c.entries, e.key)
	h.used.Remove(e.place)
	c.held -= e.size
	h.held -= e.size
	if h.used.Len() == 0 {
		delete(c.holders, h.tenant)
		heap.Remove(&c.byWeight, h.index)
		return
	}
	heap.Fix(&c.byWeight, h.index)
}

// makeRoom lets answers give way until so many more bytes can be held. c.mu is held.
func (c *Cache) makeRoom(n int64) {
	for c.held+c.underWay+n > c.limit && len(c.byWeight) > 0 {
		c.remove(c.byWeight[0].used.Back().Value.(*entry))
		c.counters.evicted.Add(1)
	}
}

// weights are the holders, the one that holds most first; of several that hold as much, the first by name.
type weights []*holder

func (w weights) Len() int { return len(w) }

func (w weights) Less(i, j int) bool {
	return w[i].held > w[j].held || w[i].held == w[j].held && w[i].tenant < w[j].tenant
}

func (w weights) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].index, w[j].index = i, j
}

// Push implements heap.Interface.
func (w *weights) Push(x any) {
	h := x.(*holder)
	h.index = len(*w)
	*w = append(*w, h)
}

// Pop implements heap.Interface.
func (w *weights) Pop() any {
	last := len(*w) - 1
	h := (*w)[last]
	(*w)[last] = nil
	*w = (*w)[:last]
	return h
}

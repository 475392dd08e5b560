package tokenizer

import (
	"hash/maphash"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"
)

// Cache remembers the ids of parts of texts, and the keys of the blocks they fill, so that a text costs only what has
// not been seen before: of a conversation, its newest turn. It is exact: texts are compared, not only their hashes. It
// holds at most a given number of bytes; the least recently used entries are dropped first. It can be shared by tokenizers
// and is safe for many goroutines, which do not wait for each other to find something.
type Cache struct {
	seed   maphash.Seed
	shards [cacheShards]cacheShard

	hits, misses        atomic.Uint64 // parts
	hitBytes, missBytes atomic.Uint64 // of text
	evicted             atomic.Uint64 // parts
}

const (
	cacheShards = 32
	cacheWays   = 8 // places in which a part can be
	// bytesPerSlot is how many bytes of parts there are for each place, or more.
	bytesPerSlot = 1024
	// partOverhead is what a part takes besides its text and ids, in bytes.
	partOverhead = 176
	// linkOverhead is what a link takes besides its keys and ids, in bytes.
	linkOverhead = 96
)

// cacheShard holds the parts with certain hashes: a table of buckets with cacheWays slots each.
type cacheShard struct {
	slots []cacheSlot // read without the mutex
	mask  uint64      // of bucket numbers
	limit int64

	mu    sync.Mutex // guards what follows, and all writing of slots and of links of their parts
	bytes int64      // of the parts in slots
	hand  int        // the slot that is looked at next for eviction
}

type cacheSlot struct {
	hash atomic.Uint64 // of the part, 0 for none
	part atomic.Pointer[part]
}

// part is a part of a text with its ids. It is immutable, except for its atomic fields.
type part struct {
	partKey
	text string
	ids  []uint32

	used  atomic.Bool // since the hand has passed
	gone  bool        // evicted; guarded by the shard's mutex
	bytes int64       // likewise
	links [2]atomic.Pointer[link]
}

// partKey is what parts with equal texts differ in.
type partKey struct {
	hash  uint64 // of text and the rest of the key, never 0
	space uint64
	model uint64 // the tokenizer's serial number and where the part begins
}

// NewCache makes a cache that holds up to maxBytes bytes, its tables included. Below a few KB it holds nothing.
func NewCache(maxBytes int64) *Cache {
	c := &Cache{seed: maphash.MakeSeed()}
	each := max(maxBytes, 0) / cacheShards
	buckets := int64(1)
	for buckets*2*cacheWays*bytesPerSlot <= each {
		buckets *= 2
	}
	for i := range c.shards {
		s := &c.shards[i]
		s.slots = make([]cacheSlot, buckets*cacheWays)
		s.mask = uint64(buckets - 1)
		s.limit = each - buckets*cacheWays*16
	}
	return c
}

// CacheStats is what a Cache has done and what it holds.
type CacheStats struct {
	// Hits and Misses count parts of texts, HitBytes and MissBytes their lengths.
	Hits, Misses, HitBytes, MissBytes uint64
	// Evicted counts parts that had to make room.
	Evicted uint64
	// Parts and Bytes are what is held now; Bytes includes an estimate of what the runtime adds.
	Parts int
	Bytes int64
}

// Stats counts.
func (c *Cache) Stats() CacheStats {
	out := CacheStats{Hits: c.hits.Load(), Misses: c.misses.Load(), HitBytes: c.hitBytes.Load(), MissBytes: c.missBytes.Load(),
		Evicted: c.evicted.Load()}
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		out.Bytes += s.bytes
		for j := range s.slots {
			if s.slots[j].part.Load() != nil {
				out.Parts++
			}
		}
		s.mu.Unlock()
	}
	return out
}

// Space is the part of a cache that texts with one salt share. Other salts do not see what it holds, not even by time.
// The zero Space remembers nothing.
type Space struct {
	cache *Cache
	salt  uint64
}

// Space of a salt; empty for the common one.
func (c *Cache) Space(salt string) Space {
	if c == nil {
		return Space{}
	}
	if salt == "" {
		return Space{cache: c}
	}
	return Space{cache: c, salt: maphash.String(c.seed, salt) | 1}
}

// key of a part that begins at the place at, for a tokenizer.
func (s Space) key(t *Tokenizer, text string, at start) partKey {
	k := partKey{space: s.salt, model: t.serial << 8}
	if t.startMatters {
		k.model |= uint64(at)
	}
	hi, lo := bits.Mul64(maphash.String(s.cache.seed, text)^s.salt, k.model^0x9e3779b97f4a7c15)
	k.hash = max(1, hi^lo)
	return k
}

func (c *Cache) shard(hash uint64) *cacheShard { return &c.shards[hash>>(64-bits.Len(cacheShards-1))] }

func (s *cacheShard) bucket(hash uint64) []cacheSlot {
	first := (hash & s.mask) * cacheWays
	return s.slots[first : first+cacheWays : first+cacheWays]
}

// find is the part with the key and text, or nil.
func (c *Cache) find(k partKey, text string) *part {
	bucket := c.shard(k.hash).bucket(k.hash)
	for i := range bucket {
		if bucket[i].hash.Load() != k.hash {
			continue
		}
		if p := bucket[i].part.Load(); p != nil && p.partKey == k && p.text == text {
			if !p.used.Load() {
				p.used.Store(true)
			}
			return p
		}
	}
	return nil
}

// add remembers a part, and returns it or the one that was there before; nil when it is too large. The text is copied, so
// that the cache does not keep an entire request for a part of it.
func (c *Cache) add(k partKey, text string, ids []uint32) *part {
	s := c.shard(k.hash)
	size := int64(len(text)) + 4*int64(len(ids)) + partOverhead
	if size > s.limit/4 {
		return nil
	}
	p := &part{partKey: k, bytes: size, text: strings.Clone(text), ids: append(make([]uint32, 0, len(ids)), ids...)}
	s.mu.Lock()
	defer s.mu.Unlock()
	bucket := s.bucket(k.hash)
	place := -1
	for i := range bucket {
		old := bucket[i].part.Load()
		switch {
		case old == nil:
			place = i
		case old.partKey == k && old.text == text:
			return old
		}
	}
	for i := k.hash >> 32 % cacheWays; place < 0; i = (i + 1) % cacheWays { // at most twice around
		if !bucket[i].part.Load().used.Swap(false) {
			place = int(i)
			c.evict(s, &bucket[i])
		}
	}
	bucket[place].part.Store(p)
	bucket[place].hash.Store(k.hash)
	s.bytes += p.bytes
	c.shrink(s, p)
	return p
}

// evict empties a slot. The shard's mutex is held.
func (c *Cache) evict(s *cacheShard, slot *cacheSlot) {
	p := slot.part.Load()
	slot.hash.Store(0)
	slot.part.Store(nil)
	p.gone = true
	s.bytes -= p.bytes
	c.evicted.Add(1)
}

// shrink evicts parts until the shard is within its limit, fresh last of all. The shard's mutex is held.
func (c *Cache) shrink(s *cacheShard, fresh *part) {
	for steps := 0; s.bytes > s.limit; steps++ {
		slot := &s.slots[s.hand]
		s.hand = (s.hand + 1) % len(s.slots)
		p := slot.part.Load()
		if p == nil || p == fresh && steps <= 2*len(s.slots) {
			continue
		}
		if !p.used.Swap(false) {
			c.evict(s, slot)
		}
	}
}

// count adds what one encoding has found.
func (c *Cache) count(f *found) {
	if f.hits > 0 {
		c.hits.Add(f.hits)
		c.hitBytes.Add(f.hitBytes)
	}
	if f.misses > 0 {
		c.misses.Add(f.misses)
		c.missBytes.Add(f.missBytes)
	}
}

// found is what one encoding has found in a cache.
type found struct{ hits, misses, hitBytes, missBytes uint64 }

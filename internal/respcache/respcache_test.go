package respcache

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

func keyOf(n int) Key { return Key{byte(n), byte(n >> 8)} }

// record stores an answer of so many bytes.
func record(c *Cache, now time.Time, key Key, tenant string, size int) {
	recordLike(c, now, key, tenant, size, nil)
}

// recordLike is record of an answer that is found by similarity, too.
func recordLike(c *Cache, now time.Time, key Key, tenant string, size int, l *Likeness) {
	r := c.Record(key, tenant)
	if l != nil {
		r.Like(l)
	}
	r.Write(bytes.Repeat([]byte{'x'}, size))
	r.Store(now, Answer{})
	r.Drop(Incomplete)
}

// model is the obvious cache: a list of entries, the most recently used one last.
type model struct {
	limit   int64
	life    time.Duration
	entries []modelEntry
}

type modelEntry struct {
	key    Key
	tenant string
	size   int64
	stored time.Time
	like   *Likeness
}

func (m *model) held(tenant string) (n int64) {
	for _, e := range m.entries {
		if tenant == "" || e.tenant == tenant {
			n += e.size
		}
	}
	return n
}

func (m *model) delete(key Key) {
	m.entries = slices.DeleteFunc(m.entries, func(e modelEntry) bool { return e.key == key })
}

// room evicts until n bytes fit: of the tenant that holds most the entry that was used least recently.
func (m *model) room(n int64) {
	for m.held("")+n > m.limit && len(m.entries) > 0 {
		worst := m.entries[0].tenant
		for _, e := range m.entries {
			if h, w := m.held(e.tenant), m.held(worst); h > w || h == w && e.tenant < worst {
				worst = e.tenant
			}
		}
		m.delete(m.entries[slices.IndexFunc(m.entries, func(e modelEntry) bool { return e.tenant == worst })].key)
	}
}

// put is a recording in one Write: first its bytes under way, then its entry.
func (m *model) put(now time.Time, key Key, tenant string, size int, l *Likeness) {
	vector := int64(0)
	if l != nil {
		vector = vectorSize(l.Vector)
		m.room(vector)
	}
	if grown := max(size, firstGrowth); size > 0 {
		m.room(vector + int64(grown))
	}
	m.delete(key)
	all := int64(size) + overhead + vector
	m.room(all)
	m.entries = append(m.entries, modelEntry{key, tenant, all, now, l})
}

// similar is the similarity of the most similar answer of a group, and how young it is.
func (m *model) similar(now time.Time, l *Likeness, least float64, maxAge time.Duration) (stored time.Time, similarity float64, found bool) {
	m.entries = slices.DeleteFunc(m.entries, func(e modelEntry) bool {
		return e.like != nil && e.like.Group == l.Group && now.Sub(e.stored) >= m.life
	})
	best := -1
	for i, e := range m.entries {
		if e.like == nil || e.like.Group != l.Group || maxAge >= 0 && now.Sub(e.stored) >= maxAge {
			continue
		}
		s := Similarity(e.like.Vector, l.Vector)
		if best < 0 || s > similarity || s == similarity && !e.stored.Before(m.entries[best].stored) {
			best, similarity = i, s
		}
	}
	if best < 0 || similarity < least {
		return stored, similarity, false
	}
	e := m.entries[best]
	m.delete(e.key)
	m.entries = append(m.entries, e)
	return e.stored, similarity, true
}

func (m *model) get(now time.Time, key Key, maxAge time.Duration) bool {
	i := slices.IndexFunc(m.entries, func(e modelEntry) bool { return e.key == key })
	if i < 0 {
		return false
	}
	e := m.entries[i]
	if age := now.Sub(e.stored); age >= m.life {
		m.delete(key)
		return false
	} else if maxAge >= 0 && age >= maxAge {
		return false
	}
	m.delete(key)
	m.entries = append(m.entries, e)
	return true
}

// TestTheCacheAgreesWithAPlainOne plays random requests of some tenants on the cache and on the model: both have the same answers, and the
// same bytes, and neither exceeds its limit.
func TestTheCacheAgreesWithAPlainOne(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 1))
		limit := int64(40_000 + rng.IntN(200_000))
		c, m := New(limit, 4*time.Second, new(Counters)), &model{limit: limit, life: 4 * time.Second}
		now := time.Unix(0, 0)
		for step := range 1000 {
			now = now.Add(time.Duration(rng.IntN(500)) * time.Millisecond)
			key := keyOf(rng.IntN(80))
			raw := make([]float32, 3)
			for i := range raw {
				raw[i] = float32(rng.NormFloat64())
			}
			vector, _ := NewVector(raw)
			like := c.Likeness(keyOf(rng.IntN(3)), vector, Vector{1, 0, 0})
			switch rng.IntN(4) {
			case 0, 1:
				// Most requests are of one tenant.
				tenant, size := fmt.Sprint(max(0, rng.IntN(12)-7)), rng.IntN(int(limit/8))
				if rng.IntN(3) == 0 {
					like = nil
				}
				recordLike(c, now, key, tenant, size, like)
				m.put(now, key, tenant, size, like)
			case 2:
				maxAge := time.Duration(rng.IntN(6)-3) * time.Second
				a, s, _ := c.Similar(now, like, 0.9, maxAge)
				stored, want, found := m.similar(now, like, 0.9, maxAge)
				if (a != nil) != found || s != want || a != nil && !a.Stored.Equal(stored) {
					t.Fatalf("seed %d, step %d: %v at %v, want %v at %v", seed, step, a, s, stored, want)
				}
			default:
				maxAge := time.Duration(rng.IntN(6)-3) * time.Second
				if got, want := c.Get(now, key, maxAge) != nil, m.get(now, key, maxAge); got != want {
					t.Fatalf("seed %d, step %d: found %v, want %v", seed, step, got, want)
				}
			}
			s := c.Stats(c.counters)
			if s.Bytes != m.held("") || s.Entries != len(m.entries) || s.Bytes > limit {
				t.Fatalf("seed %d, step %d: %d bytes in %d entries, want %d in %d, limit %d", seed, step, s.Bytes, s.Entries, m.held(""), len(m.entries), limit)
			}
		}
		c.Likeness(keyOf(0), Vector{0, 1, 0}, Vector{0, 1, 0}) // another model: what is left are answers without vectors
		for i := range m.entries {
			if e := &m.entries[i]; e.like != nil {
				e.size -= vectorSize(e.like.Vector)
			}
		}
		if s := c.Stats(c.counters); s.Bytes != m.held("") || s.Entries != len(m.entries) || s.Vectors != 0 || len(c.groups) != 0 {
			t.Errorf("seed %d: of another model %+v, want %d bytes", seed, s, m.held(""))
		}
		if s := c.Stats(c.counters); s.Results[Hit] == 0 || s.Results[Similar] == 0 || s.Evicted == 0 || s.Expired == 0 {
			t.Errorf("seed %d: nothing was tested: %+v", seed, s)
		}
	}
}

// TestATenantKeepsItsAnswersBesideAGreedyOne: thousands of answers of one tenant push out none of another one that holds less.
func TestATenantKeepsItsAnswersBesideAGreedyOne(t *testing.T) {
	t.Parallel()
	c := New(1<<20, time.Hour, new(Counters))
	now := time.Unix(0, 0)
	for i := range 10 {
		record(c, now, keyOf(i), "small", 10_000)
	}
	for i := range 1000 {
		record(c, now, keyOf(100+i), "greedy", 10_000)
	}
	for i := range 10 {
		if c.Get(now, keyOf(i), -1) == nil {
			t.Errorf("answer %d of the small tenant is gone", i)
		}
	}
	if s := c.Stats(c.counters); s.Bytes > 1<<20 || s.Entries < 50 {
		t.Errorf("%+v", s)
	}
}

// TestWhatIsNotStored: answers that are too large, cut off, or of a time before a change; and nothing stays held for them.
func TestWhatIsNotStored(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	for name, tc := range map[string]struct {
		limit int64
		do    func(*Cache, *Recording)
		want  Storing
	}{
		"too large": {16 << 20, func(_ *Cache, r *Recording) {
			for range 1025 {
				r.Write(make([]byte, 1<<10))
			}
		}, TooLarge},
		"too large for the cache": {1 << 20, func(_ *Cache, r *Recording) { r.Write(make([]byte, 1<<18+1)) }, TooLarge},
		"cut off":                 {1 << 20, func(_ *Cache, r *Recording) { r.Write([]byte("half")); r.Drop(Incomplete) }, Incomplete},
		"after the end":           {1 << 20, func(c *Cache, r *Recording) { c.Close(); r.Write([]byte("late")) }, Outdated},
		"ended before its store":  {1 << 20, func(c *Cache, r *Recording) { r.Write([]byte("late")); c.Close() }, Outdated},
		"others are under way": {1 << 20, func(c *Cache, r *Recording) {
			other := c.Record(keyOf(2), "")
			other.Write(make([]byte, 1<<18))
			r.Write([]byte("x"))
			other.Drop(Incomplete)
			c.counters.storings[Incomplete].Add(-1)
		}, NoRoom},
	} {
		c := New(tc.limit, time.Hour, new(Counters))
		r := c.Record(keyOf(1), "a")
		tc.do(c, r)
		r.Store(now, Answer{})
		r.Drop(Incomplete)
		s := c.Stats(c.counters)
		var want [NumStorings]int64
		want[tc.want] = 1
		if s.Storings != want || s.Bytes != 0 || s.Entries != 0 || c.Get(now, keyOf(1), -1) != nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// TestAnAnswerOfAQuarterIsStored: in small pieces it grows up to the limit, and not beyond.
func TestAnAnswerOfAQuarterIsStored(t *testing.T) {
	t.Parallel()
	c := New(1<<20, time.Hour, new(Counters))
	r := c.Record(keyOf(1), "")
	for range 1 << 8 {
		r.Write(make([]byte, 1<<10))
	}
	if s := c.Stats(c.counters); s.Bytes != 1<<18 {
		t.Errorf("%d bytes are held under way", s.Bytes)
	}
	r.Store(time.Unix(0, 0), Answer{})
	if a := c.Get(time.Unix(0, 0), keyOf(1), -1); a == nil || len(a.Body) != 1<<18 {
		t.Errorf("%+v", c.Stats(c.counters))
	}
}

// TestAnotherAttemptBeginsAnew: what an engine has sent that has given up is no part of the answer.
func TestAnotherAttemptBeginsAnew(t *testing.T) {
	t.Parallel()
	c := New(1<<20, time.Hour, new(Counters))
	now := time.Unix(0, 0)
	r := c.Record(keyOf(1), "")
	r.Write([]byte("given up"))
	r.Reset()
	r.Write([]byte("whole"))
	r.Store(now, Answer{ContentType: "text/plain"})
	if a := c.Get(now, keyOf(1), -1); a == nil || string(a.Body) != "whole" || a.ContentType != "text/plain" {
		t.Errorf("%+v", a)
	}
	(*Recording)(nil).Write([]byte("nothing"))
	(*Recording)(nil).Reset()
	(*Recording)(nil).Store(now, Answer{})
	(*Recording)(nil).Drop(Unfit)
}

// TestRequestsAtOnce: recordings, hits, and the end of the cache at once end with nothing held, and no answer is another one's.
func TestRequestsAtOnce(t *testing.T) {
	t.Parallel()
	c := New(1<<20, time.Hour, new(Counters))
	var all sync.WaitGroup
	now := time.Unix(0, 0)
	for w := range 8 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 2))
			for i := range 300 {
				if w == 0 && i == 200 {
					c.Close()
				}
				n := rng.IntN(20)
				if a := c.Get(now, keyOf(n), -1); a != nil {
					if len(a.Body) != 100*n || len(bytes.Trim(a.Body, string(rune('a'+n)))) > 0 {
						t.Errorf("answer %d is %q", n, a.Body)
					}
					continue
				}
				r := c.Record(keyOf(n), fmt.Sprint(n%3))
				for range n {
					r.Write(bytes.Repeat([]byte{byte('a' + n)}, 100))
				}
				r.Store(now, Answer{})
			}
		})
	}
	all.Wait()
	if s := c.Stats(c.counters); s.Bytes != 0 || s.Entries != 0 || s.Results[Hit] == 0 {
		t.Errorf("%+v", s)
	}
}

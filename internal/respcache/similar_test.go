package respcache

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
)

// randomVectors are n directions of so many dimensions.
func randomVectors(n, dimensions int) []Vector {
	rng := rand.New(rand.NewPCG(1, 2))
	all := make([]Vector, n)
	for i := range all {
		raw := make([]float32, dimensions)
		for j := range raw {
			raw[j] = float32(rng.NormFloat64())
		}
		all[i], _ = NewVector(raw)
	}
	return all
}

// TestVectorsHaveADirection: others are refused.
func TestVectorsHaveADirection(t *testing.T) {
	t.Parallel()
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for name, raw := range map[string][]float32{
		"none": nil, "zero": {0, 0}, "almost zero": {1e-30, 0}, "no number": {1, nan}, "infinite": {1, inf}, "infinite, the other way": {-inf, 1},
		"too long": make([]float32, MaxDimensions+1),
	} {
		if len(raw) > MaxDimensions {
			raw[0] = 1
		}
		if v, ok := NewVector(raw); ok {
			t.Errorf("%s is a vector: %v", name, v)
		}
	}
	for _, raw := range [][]float32{{3e38, 3e38}, {1e-10, 1e-10}, {-5, -5}} {
		v, ok := NewVector(raw)
		if s := Similarity(v, v); !ok || math.Abs(s-1) > 1e-6 {
			t.Errorf("%v is %v, of length %v", raw, v, s)
		}
	}
}

// TestTheHighestBoundIsReached: a question with the same vector is similar whatever the bound is, though sums of float32 are not exact.
func TestTheHighestBoundIsReached(t *testing.T) {
	t.Parallel()
	for _, dimensions := range []int{2, 384, 1024, MaxDimensions} {
		for i, v := range randomVectors(200, dimensions) {
			if s := Similarity(v, v); s != 1 {
				t.Fatalf("vector %d of %d dimensions is similar to itself by %v", i, dimensions, s)
			}
		}
	}
	if s := Similarity(Vector{1, 0}, Vector{0.9999, 0.01414}); s >= 1 {
		t.Errorf("other vectors are similar by %v", s)
	}
}

// TestAGroupIsBounded: of more questions than are compared the oldest are found by equal requests alone, and take no vector.
func TestAGroupIsBounded(t *testing.T) {
	t.Parallel()
	const most = maxCompared / MaxDimensions
	c := New(1<<30, time.Hour, new(Counters))
	now := time.Unix(0, 0)
	mark := make(Vector, MaxDimensions)
	mark[0] = 1
	for i := range most + 10 {
		v := make(Vector, MaxDimensions)
		v[i%MaxDimensions] = 1
		recordLike(c, now, keyOf(i), "a", 10, c.Likeness(Key{1}, v, mark))
	}
	if s := c.Stats(c.counters); s.Vectors != most || s.Entries != most+10 || s.Bytes != int64(most)*(4*MaxDimensions+vectorOverhead)+(most+10)*(10+overhead) {
		t.Errorf("%+v", s)
	}
	if c.Get(now, keyOf(0), -1) == nil {
		t.Error("the oldest answer is gone")
	}
}

// TestVectorsOfAnEarlierModelAreNotStored: an answer that comes after the model has changed is found by equal requests alone.
func TestVectorsOfAnEarlierModelAreNotStored(t *testing.T) {
	t.Parallel()
	c := New(1<<20, time.Hour, new(Counters))
	now := time.Unix(0, 0)
	before := c.Likeness(Key{1}, Vector{1, 0}, Vector{0, 1})
	after := c.Likeness(Key{1}, Vector{1, 0}, Vector{1, 0})
	recordLike(c, now, keyOf(1), "a", 10, before)
	if a, _, compared := c.Similar(now, after, 0.5, -1); a != nil || compared {
		t.Error("an answer is found by a vector of another model")
	}
	recordLike(c, now, keyOf(2), "a", 10, after)
	if a, s, _ := c.Similar(now, after, 0.5, -1); a == nil || s != 1 {
		t.Errorf("%v %v", a, s)
	}
	if a, _, _ := c.Similar(now, before, 0.5, -1); a != nil {
		t.Error("a vector of another model finds an answer")
	}
	c.Close()
	recordLike(c, now, keyOf(3), "a", 10, after)
	if s := c.Stats(c.counters); s.Vectors != 0 || s.Bytes != 0 || s.Models != 1 {
		t.Errorf("%+v", s)
	}
}

// TestAVectorWithoutRoomLeavesTheAnswer: it is found by equal requests.
func TestAVectorWithoutRoomLeavesTheAnswer(t *testing.T) {
	t.Parallel()
	c := New(1<<20, time.Hour, new(Counters))
	now := time.Unix(0, 0)
	other := c.Record(keyOf(2), "")
	other.Write(make([]byte, 1<<18))
	l := c.Likeness(Key{1}, Vector{1, 0}, Vector{0, 1})
	r := c.Record(keyOf(1), "")
	r.Like(l)
	other.Drop(Incomplete)
	r.Write([]byte("x"))
	r.Store(now, Answer{})
	if s := c.Stats(c.counters); s.Entries != 1 || s.Vectors != 0 || s.Bytes != 1+overhead {
		t.Errorf("%+v", s)
	}
}

// TestSimilarOnesAtOnce: questions, answers, changes of the model and the end of the cache at once end with nothing held, and no answer is of
// another group.
func TestSimilarOnesAtOnce(t *testing.T) {
	t.Parallel()
	c := New(1<<18, time.Hour, new(Counters))
	vectors := randomVectors(50, 16)
	now := time.Unix(0, 0)
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 3))
			for i := range 2000 {
				n := rng.IntN(3)
				l := c.Likeness(Key{byte(n)}, vectors[rng.IntN(50)], vectors[i/500])
				if a, _, _ := c.Similar(now, l, 0.3, -1); a != nil {
					if len(a.Body) != 100+n {
						t.Errorf("group %d has %d bytes", n, len(a.Body))
					}
					continue
				}
				recordLike(c, now, keyOf(rng.IntN(100)<<2|n), fmt.Sprint(n), 100+n, l)
			}
		})
	}
	all.Wait()
	if s := c.Stats(c.counters); s.Results[Similar] == 0 || s.Models == 0 || s.Vectors == 0 {
		t.Errorf("nothing was tested: %+v", s)
	}
	c.Close()
	if s := c.Stats(c.counters); s.Bytes != 0 || s.Entries != 0 || s.Vectors != 0 {
		t.Errorf("%+v", s)
	}
}

// TestVectorsLeaveCheaply: what is allocated, with the lock held, while all questions of a group leave is a small part of what they took.
func TestVectorsLeaveCheaply(t *testing.T) { //nolint:paralleltest // it counts what the process allocates
	const n = 1 << 14
	now := time.Unix(0, 0)
	mark := Vector{1, 0}
	for name, leave := range map[string]func(c *Cache, l *Likeness){
		"the model changes": func(c *Cache, l *Likeness) { c.Likeness(l.Group, Vector{1, 0}, Vector{0, 1}) },
		"they are too old":  func(c *Cache, l *Likeness) { c.Similar(now.Add(time.Hour), l, 0.9, -1) },
		"others need room": func(c *Cache, _ *Likeness) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.makeRoom(c.limit)
		},
	} {
		c := New(1<<30, time.Hour, new(Counters))
		for i := range n {
			recordLike(c, now, keyOf(i), "a", 0, c.Likeness(Key{1}, Vector{1, 0}, mark))
		}
		before, after := runtime.MemStats{}, runtime.MemStats{}
		l := c.Likeness(Key{1}, Vector{1, 0}, mark)
		runtime.ReadMemStats(&before)
		leave(c, l)
		runtime.ReadMemStats(&after)
		if s := c.Stats(c.counters); s.Vectors != 0 || len(c.groups) != 0 {
			t.Errorf("%s: %d vectors are left in %d groups", name, s.Vectors, len(c.groups))
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > n*vectorOverhead {
			t.Errorf("%s: %d bytes were allocated for %d vectors", name, took, n)
		}
	}
}

// TestAVectorThatLeavesFreesItsAnswer: a group keeps nothing of answers that are no longer in the cache, whichever of its questions leave.
func TestAVectorThatLeavesFreesItsAnswer(t *testing.T) {
	t.Parallel()
	c := New(1<<20, time.Hour, new(Counters))
	now := time.Unix(0, 0)
	vectors := randomVectors(100, 8)
	model := map[int]Vector{}
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range 2000 {
		n := rng.IntN(100)
		if rng.IntN(2) == 0 {
			recordLike(c, now, keyOf(n), "a", 10, c.Likeness(Key{1}, vectors[n], vectors[0]))
			model[n] = vectors[n]
		} else if _, ok := model[n]; ok {
			c.mu.Lock()
			c.remove(c.entries[keyOf(n)])
			c.mu.Unlock()
			delete(model, n)
		}
		if s := c.Stats(c.counters); s.Vectors != len(model) {
			t.Fatalf("after %d steps %d vectors instead of %d", i, s.Vectors, len(model))
		}
		if g := c.groups[Key{1}]; g != nil && len(g.points) > 2*len(model)+1 {
			t.Fatalf("after %d steps a list of %d points for %d vectors", i, len(g.points), len(model))
		}
		best := -1.0
		for _, v := range model {
			best = max(best, Similarity(v, vectors[n]))
		}
		_, s, compared := c.Similar(now, c.Likeness(Key{1}, vectors[n], vectors[0]), 2, -1)
		if compared != (len(model) > 0) || compared && s != best {
			t.Fatalf("after %d steps similarity %v, %v, instead of %v", i, s, compared, best)
		}
	}
}

// BenchmarkSimilar compares a question with others of its group; plain is a loop over the numbers.
func BenchmarkSimilar(b *testing.B) {
	const dimensions = 1024
	for _, n := range []int{1_000, 10_000} {
		c := New(1<<30, time.Hour, new(Counters))
		now := time.Unix(0, 0)
		vectors := randomVectors(n+1, dimensions)
		for i, v := range vectors[:n] {
			recordLike(c, now, keyOf(i), "a", 10, c.Likeness(Key{}, v, vectors[0]))
		}
		l := c.Likeness(Key{}, vectors[n], vectors[0])
		b.Run(fmt.Sprintf("exact/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Similar(now, l, 0.9, -1)
			}
		})
		b.Run(fmt.Sprintf("plain/%d", n), func(b *testing.B) {
			for b.Loop() {
				best := float32(-1)
				for _, v := range vectors[:n] {
					sum := float32(0)
					for i, x := range v {
						sum += x * l.Vector[i]
					}
					best = max(best, sum)
				}
			}
		})
	}
}

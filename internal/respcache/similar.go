package respcache

import (
	"errors"
	"math"
	"sync/atomic"
	"time"

	"gonum.org/v1/gonum/blas/blas32"
)

const (
	// MaxDimensions of a vector.
	MaxDimensions = 4096
	// maxCompared bounds the numbers of the vectors that a request is compared with: 10,240 vectors of 1,024 dimensions. If a group has
	// more, the oldest of them are found by equal requests alone.
	maxCompared = 10 << 20
	// vectorOverhead is about what a vector takes besides its numbers, in bytes: its place in its group, and the group.
	vectorOverhead = 256
	// sameMark is how similar two marks are that are of the same model. Those of one model differ in the last digits.
	sameMark = 0.999
	// inexact is by how much the sum of the products of a vector with itself can be below 1.
	inexact = 1e-5
)

// Embeddings name a service that makes vectors of texts, by POST /v1/embeddings of the OpenAI API.
type Embeddings struct {
	URL, Model string
	// Key for the service; empty for none.
	Key string
	// Timeout of a whole call.
	Timeout time.Duration
}

// Causes why a text has no vector. Errors that wrap neither are of services that do not answer, or with another status than 200.
var (
	// ErrNotCalled: the service is left alone, because it has failed repeatedly or has many calls under way.
	ErrNotCalled = errors.New("the embedding service is not called now")
	// ErrUnusable: its answer has no vectors that can be compared.
	ErrUnusable = errors.New("the embedding service's answer cannot be used")
)

// Mark is a text whose vector is asked for beside that of each question. It shows which model has made the vectors, and whether the model
// tells texts apart.
const Mark = "The lighthouse keeper counts seven grey geese above the frozen harbour."

// Embedding is what became of a question that was to be compared with others.
type Embedding uint8

// The ways.
const (
	// Embedded: it has a vector.
	Embedded Embedding = iota
	// EmbeddingFailed: the service has not answered in time, or with another status than 200.
	EmbeddingFailed
	// EmbeddingUnusable: the answer of the service has no vectors, or vectors that cannot be compared.
	EmbeddingUnusable
	// EmbeddingAlike: the service finds the question similar to a text that has nothing to do with it, so all would be similar.
	EmbeddingAlike
	// EmbeddingNotCalled: the service was left alone, because it has failed repeatedly or has many calls under way.
	EmbeddingNotCalled
	// NumEmbeddings is the number of ways.
	NumEmbeddings int = iota
)

// String is the value of the metric label.
func (e Embedding) String() string {
	return [...]string{"embedded", "failed", "unusable", "alike", "not_called"}[e]
}

// Vector is the direction of an embedding: of length 1, never changed.
type Vector []float32

// NewVector makes a vector, whose memory is that of raw. ok is false if raw has no direction: if it is empty or zero, or has a number that
// is none or is too large.
func NewVector(raw []float32) (v Vector, ok bool) {
	if len(raw) == 0 || len(raw) > MaxDimensions {
		return nil, false
	}
	square := 0.0
	for _, x := range raw {
		square += float64(x) * float64(x)
	}
	if !(square > 1e-30) || math.IsInf(square, 0) {
		return nil, false
	}
	scale := 1 / math.Sqrt(square)
	for i, x := range raw {
		raw[i] = float32(float64(x) * scale)
	}
	return raw, true
}

// Similarity is the cosine of the angle between two vectors of as many dimensions, -1 to 1: exactly 1 for vectors that differ only in the
// last digits.
func Similarity(a, b Vector) float64 {
	n := len(a)
	dot := blas32.Dot(blas32.Vector{N: n, Inc: 1, Data: a}, blas32.Vector{N: n, Inc: 1, Data: b})
	if dot > 1-inexact {
		return 1
	}
	return max(-1, float64(dot))
}

// Likeness is what requests are found by that are similar to an earlier one and not equal to it.
type Likeness struct {
	// Group names all that must be equal.
	Group  Key
	Vector Vector
	// age of the cache's vectors, see Cache.Likeness.
	age uint64
}

// Likeness returns by what a request is found. mark is the vector of Mark from the same call as vector, of as many dimensions. If it is not
// that of the vectors in the cache, these are of another model and are dropped.
func (c *Cache) Likeness(group Key, vector, mark Vector) *Likeness {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.mark) != len(mark) || Similarity(c.mark, mark) < sameMark {
		if c.mark != nil {
			c.counters.models.Add(1)
		}
		c.mark = mark
		c.vectorsAge++
		for _, e := range c.entries {
			c.unlike(e)
		}
	}
	return &Likeness{Group: group, Vector: vector, age: c.vectorsAge}
}

// point is a question whose answer can be found by similarity. What it points to is not changed, so that it is compared without a lock; it
// is nil once the question has left its group, so that lists which still have the point keep nothing of the answer.
type point struct{ atomic.Pointer[liked] }

type liked struct {
	entry  *entry
	answer *Answer
	vector Vector
}

// group are the points of requests that are equal but for their questions, the oldest first. Its list is never changed below its length: it
// is read without a lock. Of points that have left, those before first are skipped; the list is copied when more have left than are there.
type group struct {
	points []*point
	first  int
	left   int
}

// live is the number of points that have not left.
func (g *group) live() int { return len(g.points) - g.left }

// oldest is what the oldest point has; nil if all have left.
func (g *group) oldest() *liked {
	for ; g.first < len(g.points); g.first++ {
		if l := g.points[g.first].Load(); l != nil {
			return l
		}
	}
	return nil
}

// leave lets a point leave.
func (g *group) leave(p *point) {
	p.Store(nil)
	if g.left++; g.left <= g.live() {
		return
	}
	kept := make([]*point, 0, 2*g.live())
	for _, p := range g.points[g.first:] {
		if p.Load() != nil {
			kept = append(kept, p)
		}
	}
	g.points, g.first, g.left = kept, 0, 0
}

// Similar returns the answer to the request that is most similar to this one, of those of its group that are at least so similar and have
// answers that are younger than maxAge; nil if there is none. It counts a hit. The similarity is that of the most similar one, whatever it
// is; compared is false if there was none to compare with.
func (c *Cache) Similar(now time.Time, l *Likeness, least float64, maxAge time.Duration) (a *Answer, similarity float64, compared bool) {
	c.mu.Lock()
	var points []*point
	if g := c.groups[l.Group]; g != nil && l.age == c.vectorsAge {
		for p := g.oldest(); p != nil && now.Sub(p.answer.Stored) >= c.life; p = g.oldest() {
			c.remove(p.entry)
			c.counters.expired.Add(1)
		}
		points = g.points
	}
	c.mu.Unlock()
	var best *liked
	for _, point := range points {
		p := point.Load()
		if p == nil || !c.young(p.answer, now, maxAge) {
			continue
		}
		if s := Similarity(p.vector, l.Vector); best == nil || s >= similarity { // of equal ones the youngest
			best, similarity = p, s
		}
	}
	if best == nil {
		return nil, 0, false
	}
	c.counters.similarity.observe(similarity)
	if similarity < least {
		return nil, similarity, true
	}
	c.counters.Count(Similar)
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := best.entry; c.entries[e.key] == e {
		e.holder.used.MoveToFront(e.place)
	}
	return best.answer, similarity, true
}

// like lets an entry be found by similarity, if its vector is of the model of the others. c.mu is held.
func (c *Cache) like(e *entry, l *Likeness) {
	if l == nil || l.age != c.vectorsAge {
		return
	}
	g := c.groups[l.Group]
	if g == nil {
		g = &group{}
		c.groups[l.Group] = g
	}
	for g.live() > 0 && (g.live()+1)*len(l.Vector) > maxCompared {
		c.unlike(g.oldest().entry)
	}
	c.groups[l.Group] = g // if it was empty in between
	e.group, e.point = l.Group, new(point)
	e.point.Store(&liked{entry: e, answer: e.answer, vector: l.Vector})
	g.points = append(g.points, e.point)
	c.weigh(e, vectorSize(l.Vector))
}

// unlike lets an entry be found by equal requests alone. c.mu is held.
func (c *Cache) unlike(e *entry) {
	if e.point == nil {
		return
	}
	vector := e.point.Load().vector
	g := c.groups[e.group]
	if g.leave(e.point); g.live() == 0 {
		delete(c.groups, e.group)
	}
	c.weigh(e, -vectorSize(vector))
	e.point = nil
}

// vectorSize is what a vector takes in the cache, in bytes.
func vectorSize(v Vector) int64 { return int64(4*cap(v)) + vectorOverhead }

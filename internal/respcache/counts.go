package respcache

import (
	"math"
	"sync/atomic"
	"time"
)

// SimilarityBounds are the upper bounds of the classes of Similarities; a last class has what is above.
var SimilarityBounds = [...]float64{0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.96, 0.97, 0.98, 0.99, 0.995}

// Similarities is a distribution of similarities.
type Similarities struct {
	// Counts by class.
	Counts [len(SimilarityBounds) + 1]int64
	Sum    float64
}

// similarities collects a distribution.
type similarities struct {
	counts [len(SimilarityBounds) + 1]atomic.Int64
	sum    atomic.Int64 // in millionths
}

func (s *similarities) observe(similarity float64) {
	class := 0
	for class < len(SimilarityBounds) && similarity > SimilarityBounds[class] {
		class++
	}
	s.counts[class].Add(1)
	s.sum.Add(int64(math.Round(similarity * 1e6)))
}

func (s *similarities) read() (all Similarities) {
	for i := range all.Counts {
		all.Counts[i] = s.counts[i].Load()
	}
	all.Sum = float64(s.sum.Load()) / 1e6
	return all
}

// Trouble is why requests are not compared by similarity.
type Trouble struct {
	What Embedding
	// Detail describes it, without anything of a request.
	Detail string
	Since  time.Time
}

// CountEmbedding counts what became of a question that was to be compared. detail describes what went wrong. A service that is left alone
// has the trouble that it had.
func (c *Counters) CountEmbedding(now time.Time, e Embedding, detail string) {
	c.embeddings[e].Add(1)
	before := c.trouble.Load()
	switch {
	case e == Embedded:
		if before != nil {
			c.trouble.CompareAndSwap(before, nil)
		}
	case before == nil || before.What != e && e != EmbeddingNotCalled:
		c.trouble.CompareAndSwap(before, &Trouble{What: e, Detail: detail, Since: now})
	}
}

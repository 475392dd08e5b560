package picker

import (
	"container/list"
	"crypto/sha256"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

const (
	// renderedLife is how long ids of an engine are used for the same prompt. An engine that has started again with another template in
	// the same pod is detected by the checks of what it counts and announces; this bounds how long they must.
	renderedLife = 5 * time.Minute
	// renderedShare of the cache is the most that one prompt can take.
	renderedShare = 8
	// renderedOverhead is about what a prompt takes besides its ids, in bytes.
	renderedOverhead = 512
)

// renderedKey names a prompt and all that its ids depend on. It is a SHA-256: a client cannot find another prompt with the same one.
type renderedKey [sha256.Size]byte

// renderedPrompts keeps the ids that engines have made of prompts, so that a prompt that comes again within minutes, as when a client
// tries again, costs no engine anything. It is bounded in bytes and time; if it is full, what was used least recently gives way. nil keeps
// nothing. It is safe for concurrent use.
type renderedPrompts struct {
	limit int64

	mu   sync.Mutex // guards what follows
	held int64
	all  map[renderedKey]*list.Element // of *renderedPrompt
	used list.List                     // the most recently used one first
}

// renderedPrompt is immutable.
type renderedPrompt struct {
	key    renderedKey
	answer Rendered
	by     *member
	until  time.Time
	size   int64
}

func newRenderedPrompts(limit int64) *renderedPrompts {
	if limit <= 0 {
		return nil
	}
	return &renderedPrompts{limit: limit, all: map[renderedKey]*list.Element{}}
}

// keyOfRendered names the prompt of a request to a pool; ok is false for those that are not kept: with items, which can be links, and
// bodies that cannot be compared or are large. root is that of the block keys, which salts and adapters change.
func (v *view) keyOfRendered(r *openai.Request, size int, root kvblock.Key) (key renderedKey, ok bool) {
	if r.Multimodal || size > maxCachedRequest {
		return key, false
	}
	h := sha256.New()
	write(h, v.name, strconv.Itoa(int(r.Route)), r.Model, strconv.FormatUint(uint64(root), 16))
	if !r.WriteCanonicalPrompt(h) {
		return key, false
	}
	h.Sum(key[:0])
	return key, true
}

// get returns the ids of a prompt, if the engine that made them is still in the pool and does not differ from the others.
func (c *renderedPrompts) get(now time.Time, key renderedKey, v *view) (answer Rendered, by *member, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	place := c.all[key]
	if place == nil {
		return answer, nil, false
	}
	e := place.Value.(*renderedPrompt)
	if !now.Before(e.until) || e.by.left.Load() || v.checks.differsAtAll(e.by) {
		c.remove(place)
		return answer, nil, false
	}
	c.used.MoveToFront(place)
	return e.answer, e.by, true
}

// put keeps the ids of a prompt. It copies them: what an engine has sent is released when the request needs it no more.
func (c *renderedPrompts) put(now time.Time, key renderedKey, answer *Rendered, by *member) {
	size := int64(renderedOverhead + idBytes*len(answer.IDs))
	for _, ids := range answer.More {
		size += int64(24 + idBytes*len(ids))
	}
	if size > c.limit/renderedShare {
		return
	}
	e := &renderedPrompt{key: key, by: by, until: now.Add(renderedLife), size: size}
	e.answer = Rendered{IDs: slices.Clone(answer.IDs), Tokenized: answer.Tokenized, Lacking: answer.Lacking}
	for _, ids := range answer.More {
		e.answer.More = append(e.answer.More, slices.Clone(ids))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.all[key]; old != nil {
		c.remove(old)
	}
	for c.held+size > c.limit {
		c.remove(c.used.Back())
	}
	c.all[key] = c.used.PushFront(e)
	c.held += size
}

// remove takes a prompt out. c.mu is held.
func (c *renderedPrompts) remove(place *list.Element) {
	e := c.used.Remove(place).(*renderedPrompt)
	delete(c.all, e.key)
	c.held -= e.size
}

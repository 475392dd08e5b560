package picker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// proofs are what answers show of caches beyond the events. An engine that reports n cached tokens of a prompt holds the
// prompt's first blocks, whether the picker knows of them or not: after lost events, an engine does not announce again the
// blocks that it still holds.
//
// A proof is a guess of the index (kvindex.Reader.Speculate), since it has no names by which an event could remove it. It
// changes no fact, counts as predicted but not as confirmed, and dies with the endpoint's life. It ends
//
//   - two minutes after the last answer that showed it, unless events of the endpoint are lost (Feed.Incomplete): then they
//     will not be repeated, and nothing but answers shows what it holds,
//   - when an event announces its last block: from then on the index knows, and events say when the blocks are removed,
//   - when an answer shows that the engine no longer has the blocks, or
//   - when younger proofs need its place.
//
// It is safe for concurrent use.
type proofs struct {
	n      atomic.Int64 // in queue
	blocks atomic.Int64 // of all proofs that have not ended, each counted by itself
	mu     sync.Mutex
	// byEnd finds a proof by its last block; queue has all of them, oldest first, and those that were replaced.
	byEnd map[lastBlock]*proof
	queue []*proof
}

// proof is that a holder has the blocks up to one.
type proof struct {
	end    lastBlock
	blocks int64
	of     *member
	since  time.Time
	until  time.Time
	guess  *kvindex.Guess // nil once the proof has ended
}

const (
	proofLife = 2 * time.Minute
	// maxProofs bounds the proofs of a pool.
	maxProofs = 4096
)

// kept reports whether a proof outlives its time.
func (p *proof) kept() bool {
	return p.guess != nil && p.of.incomplete.Load() && !p.of.left.Load() && !p.of.removals.clearedSince(p.since)
}

// enter takes a proof that a member has keys.
func (p *proofs) enter(now time.Time, index kvindex.Reader, m *member, keys []kvblock.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byEnd == nil {
		p.byEnd = map[lastBlock]*proof{}
	}
	one := &proof{
		end: lastBlock{m.holder, keys[len(keys)-1]}, blocks: int64(len(keys)), of: m, since: now, until: now.Add(proofLife),
		guess: index.Speculate(m.holder, keys),
	}
	p.end(one.end)
	p.blocks.Add(one.blocks)
	p.byEnd[one.end] = one
	p.queue = append(p.queue, one)
	for len(p.queue) > maxProofs {
		p.pop()
	}
	p.n.Store(int64(len(p.queue)))
}

// endAt ends the proofs whose last block is among a holder's keys.
func (p *proofs) endAt(holder kvindex.Holder, keys []kvblock.Key) {
	if p.n.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range keys {
		p.end(lastBlock{holder, key})
	}
}

// expire ends the proofs that are too old, and gives those that are kept another term.
func (p *proofs) expire(now time.Time) {
	if p.n.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) > 0 && (p.queue[0].guess == nil || now.After(p.queue[0].until)) {
		oldest := p.queue[0]
		if !oldest.kept() {
			p.pop()
			continue
		}
		oldest.until = now.Add(proofLife)
		p.queue[0] = nil
		p.queue = append(p.queue[1:], oldest)
	}
	p.n.Store(int64(len(p.queue)))
}

// pop ends the oldest proof. mu is held.
func (p *proofs) pop() {
	oldest := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	if oldest.guess != nil {
		p.end(oldest.end)
	}
}

// end ends the proof of a block, if there is one. mu is held.
func (p *proofs) end(block lastBlock) {
	if one := p.byEnd[block]; one != nil {
		delete(p.byEnd, block)
		p.blocks.Add(-one.blocks)
		one.guess.Withdraw()
		one.guess = nil
	}
}

// learnFound takes how many tokens of its prompt an answer has found, unless the count can be of other blocks than the
// request's keys. d.mu is held.
func (d *Decision) learnFound(t *Target, promptTokens, cachedTokens int) {
	found := cachedTokens / d.view.spec.BlockTokens
	switch {
	case promptTokens != d.PromptTokens || d.choices > 1:
	case d.class.traits != 0:
		t.member.reloads.found(d.Model, d.keys[:min(found, len(d.keys))])
	default:
		removed := func(key kvblock.Key) bool { return t.member.removals.happened(key, d.picked) }
		t.member.tail.learn(t.Found, found, t.member.grain.keys(), d.keys, removed)
		d.prove(d.now(), t, cachedTokens)
	}
}

// prove compares what an answer has found with what the index has, and keeps what the answer shows beyond it. What was
// removed since the pick is not shown by an answer to it. d.mu is held.
func (d *Decision) prove(now time.Time, t *Target, cachedTokens int) {
	size, grain := d.view.spec.BlockTokens, t.member.grain.keys()
	if len(d.keys) == 0 || d.view.spec.NoEvents || d.view.spec.Policy.SpeculationOff {
		return
	}
	found := min(cachedTokens/size, len(d.keys))
	found -= found % grain
	if t.Found.Speculative > 0 {
		d.view.proofs.endAt(t.member.holder, d.keys[found:]) // the engine did not find them
	}
	if found <= t.Found.Confirmed() {
		return
	}
	keys := d.keys[:found:found]
	if d.announced(t, keys) {
		return
	}
	d.view.proofs.enter(now, d.view.index, t.member, keys)
	if d.announced(t, keys) { // while it was entered, so that no later event ends it
		d.view.proofs.endAt(t.member.holder, keys[found-1:])
	}
}

// announced reports whether events have announced all of keys since the pick, or the removal of the first of them that is not held.
// d.mu is held.
func (d *Decision) announced(t *Target, keys []kvblock.Key) bool {
	var have [1]kvindex.Match
	d.view.index.Match(keys, []kvindex.Holder{t.member.holder}, have[:])
	known := have[0].Confirmed()
	return known >= len(keys) || t.member.removals.happened(keys[known], d.picked)
}

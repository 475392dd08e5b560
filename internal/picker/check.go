package picker

import (
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// checks hold the tokens made in process against what engines tell of the same requests, all the time:
//
//   - the number of prompt tokens in an answer's usage must be ours, and
//   - an engine that has served a prompt of which it did not hold all blocks, and has announced blocks since, must have
//     announced the next one of that prompt by our key, unless it was removed. Reporters tell keys too, so that this
//     holds where token ids stay in the pod.
//
// One answer proves nothing: events may be late, and a block may be gone. A quarter of the last 32 raises doubts, and
// the engines are asked again.
type checks struct {
	mu      sync.Mutex
	waiting []check // guarded by mu, in the order of time
	recent  uint32  // guarded by mu; a bit for each of the last answers, set for those that do not fit
	n       int     // guarded by mu; answers in recent
	stats   Checks  // guarded by mu
}

const (
	// checkGrace is how late the events of a request may be after its end.
	checkGrace = 2 * time.Second
	// maxChecks bounds the requests that wait for their events; further ones are not checked.
	maxChecks = 256
	// checkWindow answers are looked at; doubts need at least doubtEnough of them that do not fit.
	checkWindow = 32
	doubtEnough = 8
)

// Checks counts answers to requests whose tokens were made in process, by whether what the engines tell fits.
type Checks struct{ Fit, Misfit int64 }

// check is a request whose events are to come.
type check struct {
	due, picked time.Time
	member      *member
	keys        []kvblock.Key // up to the first block that the endpoint did not hold at the pick
	stored      uint64        // keys that it had announced then
}

// answered enters whether an answer fits, and tells whether that raises doubts.
func (c *checks) answered(fits bool) (doubt bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.enter(fits)
}

// enter is answered with mu held.
func (c *checks) enter(fits bool) (doubt bool) {
	c.recent <<= 1
	c.n = min(c.n+1, checkWindow)
	if fits {
		c.stats.Fit++
		return false
	}
	c.stats.Misfit++
	c.recent |= 1
	misfits := 0
	for bits := c.recent; bits != 0; bits &= bits - 1 {
		misfits++
	}
	if misfits < doubtEnough {
		return false
	}
	c.recent, c.n = 0, 0
	return true
}

// wait enters a request whose events are to come.
func (c *checks) wait(one check) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) < maxChecks {
		c.waiting = append(c.waiting, one)
	}
}

// settle judges the requests whose time has come. While keys are rotated, nobody can say by which an endpoint announces.
func (c *checks) settle(now time.Time, v *view) (doubt bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v.rotation != nil {
		c.waiting = c.waiting[:0]
	}
	n := 0
	for ; n < len(c.waiting) && !now.Before(c.waiting[n].due); n++ {
		one := &c.waiting[n]
		last := one.keys[len(one.keys)-1]
		if one.member.stored.Load() == one.stored || one.member.doubted.Load() || one.member.removals.happened(last, one.picked) {
			continue // nothing has come that could tell
		}
		var match [1]kvindex.Match
		v.index.Match(one.keys, []kvindex.Holder{one.member.holder}, match[:])
		doubt = c.enter(match[0].Confirmed() == len(one.keys)) || doubt
	}
	if n > 0 {
		c.waiting = append(c.waiting[:0], c.waiting[n:]...)
	}
	return doubt
}

func (c *checks) read() Checks {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// checkLength holds the engine's count of the prompt's tokens against ours. d.mu is held.
func (d *Decision) checkLength(promptTokens int) {
	if d.Tokens == TokensExact && d.counted && d.view.checks.answered(promptTokens == d.PromptTokens) {
		d.view.doubt()
	}
}

// checkBlocks lets the events of a request that has been served be held against its keys. d.mu is held.
func (d *Decision) checkBlocks(now time.Time) {
	if d.Tokens != TokensExact || d.view.spec.NoEvents {
		return
	}
	t := &d.Targets[d.target]
	// The engine's blocks may be several of ours. Behind a match that was speculated nobody knows who has announced what.
	per := int(max(1, t.member.removals.perHash.Load()))
	next := (t.Found.Confirmed()/per + 1) * per
	if d.counted && !d.retried && t.Found.Speculative == 0 && !t.Doubted && next <= len(d.keys) {
		d.view.checks.wait(check{
			due: now.Add(checkGrace), picked: d.picked, member: t.member, keys: d.keys[:next:next], stored: d.stored,
		})
	}
	if d.view.checks.settle(now, d.view) {
		d.view.doubt()
	}
}

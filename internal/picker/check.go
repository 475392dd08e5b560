package picker

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// checks continuously compares the tokens of requests with what engines report about the same requests:
//
//   - the number of prompt tokens in an answer's usage must equal the number made in process, and
//   - an engine that has served a prompt whose blocks it did not hold completely, and has announced blocks since, must have
//     announced the next one of that prompt by our key, unless it was removed. Reporters announce keys too, so that this
//     holds where token ids stay in the pod.
//
// One answer proves nothing: events can be late, and a block can have been removed. If a quarter of the last 32 answers within
// an hour, of one class of requests, do not fit, that class is in doubt. If the tokens were made in process, the
// conformance keeper compares them with the engines again. If an engine rendered them, they are not used for an hour: the
// engine serves such requests with other tokens than it renders. That holds for requests with traits as well, whose tokens the
// keeper cannot compare.
//
// One tenant of several raises no doubt, and neither does one endpoint of three or more: the quarter must be reached for more than half
// of the tenants, and at half of the endpoints or more, among those answers. A tenant that sends more than others displaces only
// its own answers. An endpoint that differs from all others is in doubt by itself (see differing), and what it shows does not
// count against the tokens.
type checks struct {
	// distrusting is whether off has entries.
	distrusting atomic.Bool

	mu        sync.Mutex
	waiting   []check             // guarded by mu, in the order of time
	windows   map[class][]fitting // guarded by mu; the last answers since there were doubts, the oldest first
	off       map[class]disuse    // guarded by mu
	stats     Checks              // guarded by mu
	endpoints differing
}

// disuse is until when the tokens of a class are not used, and by which answers that was decided.
type disuse struct {
	until            time.Time
	misfits, answers int
}

// asker is whose request an answer was to, and which endpoint answered. rendered is the endpoint whose engine made the tokens,
// nil where they were made in process.
type asker struct {
	tenant   uint64
	endpoint *member
	rendered *member
}

// fitting is whether an answer fits.
type fitting struct {
	asker
	fits bool
	at   time.Time
}

const (
	// checkGrace is how late the events of a request can be after its end.
	checkGrace = 2 * time.Second
	// maxChecks bounds the requests that wait for their events; further ones are not checked.
	maxChecks = 256
	// doubtEnough of the last doubtWindow answers must not fit to raise doubts.
	doubtEnough = 8
	doubtWindow = 32
	// distrustFor is how long tokens that engines render for a kind of request are not used after doubts.
	distrustFor = time.Hour
)

// Checks counts the answers to requests whose tokens were compared, by whether the engine's report fits.
type Checks struct{ Fit, Misfit int64 }

// check is a request whose events have not arrived yet.
type check struct {
	class
	asker
	due, picked time.Time
	keys        []kvblock.Key // up to the first block that the endpoint did not hold at the pick
	stored      uint64        // keys that it had announced then
}

// doubts are what answers have changed.
type doubts struct {
	kinds    openai.Kinds // whose tokens are made in process, and must be proven again
	off      []class      // whose tokens are not used any more, for distrustFor
	endpoint []difference // that differ from the others since now, or do not any more
}

// answered enters whether an answer fits, and reports the doubts that it raises or settles.
func (c *checks) answered(now time.Time, of class, by asker, fits bool) (found doubts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enter(now, of, by, fits, &found)
	return found
}

// enter is answered with mu held.
func (c *checks) enter(now time.Time, of class, by asker, fits bool, found *doubts) {
	if c.windows == nil {
		c.windows, c.off = map[class][]fitting{}, map[class]disuse{}
	}
	if fits {
		c.stats.Fit++
	} else {
		c.stats.Misfit++
	}
	if changed := c.endpoints.enter(now, of, by, fits); len(changed) > 0 {
		found.endpoint = append(found.endpoint, changed...)
		c.windows[of] = slices.DeleteFunc(c.windows[of], func(old fitting) bool { return c.endpoints.involve(of, &old.asker) })
	}
	if c.endpoints.involve(of, &by) {
		return
	}
	recent := entered(now, c.windows[of], fitting{by, fits, now})
	misfits, all := misfitsOf(recent), len(recent)
	doubt := !fits && doubtful(recent, misfits)
	if doubt {
		recent = nil
	}
	c.windows[of] = recent
	switch {
	case !doubt:
	case of.source != TokensExact || of.traits != 0:
		c.off[of] = disuse{now.Add(distrustFor), misfits, all}
		c.distrusting.Store(true)
		found.off = append(found.off, of)
	default:
		found.kinds |= openai.KindsOf(of.kind)
	}
}

// entered is a window of answers with another one, without those that are too old, and without one that has no place beside it.
func entered(now time.Time, recent []fitting, one fitting) []fitting {
	recent = slices.DeleteFunc(recent, func(old fitting) bool { return now.Sub(old.at) > trustAge })
	if len(recent) == doubtWindow {
		at := oldestOfMost(recent)
		recent = slices.Delete(recent, at, at+1)
	}
	return append(recent, one)
}

// oldestOfMost is the place of the answer to give up for another one: the oldest of the tenant that has most of them.
func oldestOfMost(recent []fitting) int {
	at, most := 0, 0
	for i := range recent {
		n := 0
		for j := i; j < len(recent); j++ {
			if recent[j].tenant == recent[i].tenant {
				n++
			}
		}
		if n > most {
			at, most = i, n
		}
	}
	return at
}

func misfitsOf(recent []fitting) (n int) {
	for i := range recent {
		if !recent[i].fits {
			n++
		}
	}
	return n
}

// doubtful reports whether enough of some answers do not fit: for more than half of the tenants, and at half of the endpoints or more,
// both of those that served and of those that rendered. With two endpoints nothing says which of them is wrong.
func doubtful(recent []fitting, misfits int) bool {
	if misfits < doubtEnough {
		return false
	}
	tenants, of := misfitting(recent, func(f *fitting) uint64 { return f.tenant })
	if 2*tenants <= of {
		return false
	}
	endpoints, of := misfitting(recent, func(f *fitting) *member { return f.endpoint })
	if 2*endpoints < of {
		return false
	}
	renderers, of := misfitting(recent, func(f *fitting) *member { return f.rendered })
	return 2*renderers >= of
}

// misfitting returns how many groups of some answers have the share of misfits that raises doubts, and how many groups there are.
func misfitting[group comparable](recent []fitting, of func(*fitting) group) (doubtful, all int) {
	type count struct{ all, misfits int }
	groups := map[group]count{}
	for i := range recent {
		g := of(&recent[i])
		c := groups[g]
		c.all++
		if !recent[i].fits {
			c.misfits++
		}
		groups[g] = c
	}
	for _, c := range groups {
		if c.misfits*doubtWindow >= c.all*doubtEnough {
			doubtful++
		}
	}
	return doubtful, len(groups)
}

// distrusts reports whether the tokens of a source are not used at present for a request of some kinds. Doubts about plain
// requests hold for those with traits, too; doubts about requests with traits concern no others.
func (c *checks) distrusts(now time.Time, source TokenSource, kinds openai.Kinds, traits Traits) bool {
	if !c.distrusting.Load() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire(now)
	for of := range c.off {
		if of.source == source && kinds.Has(of.kind) && (of.traits == 0 || of.traits == traits) {
			return true
		}
	}
	return false
}

// expire ends what has lasted for long enough. mu is held.
func (c *checks) expire(now time.Time) {
	for of, off := range c.off {
		if !now.Before(off.until) {
			delete(c.off, of)
		}
	}
	c.distrusting.Store(len(c.off) > 0)
}

// wait adds a request whose events have not arrived yet.
func (c *checks) wait(one check) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) < maxChecks {
		c.waiting = append(c.waiting, one)
	}
}

// settle judges the requests that are due, and returns what is now in doubt. While keys are rotated, the root of
// an endpoint's announcements is unknown.
func (c *checks) settle(now time.Time, v *view) (found doubts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v.rotation != nil {
		c.waiting = c.waiting[:0]
	}
	n := 0
	for ; n < len(c.waiting) && !now.Before(c.waiting[n].due); n++ {
		one := &c.waiting[n]
		last := one.keys[len(one.keys)-1]
		m := one.endpoint
		if m.stored.Load() == one.stored || m.doubted.Load() || m.removals.happened(last, one.picked) {
			continue // no events have arrived that could decide
		}
		var match [1]kvindex.Match
		v.index.Match(one.keys, []kvindex.Holder{m.holder}, match[:])
		c.enter(now, one.class, one.asker, match[0].Confirmed() == len(one.keys), &found)
	}
	if n > 0 {
		c.waiting = append(c.waiting[:0], c.waiting[n:]...)
	}
	return found
}

func (c *checks) read() Checks {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// checked reports whether the request's answer shows whether its tokens are the engine's.
func (d *Decision) checked() bool {
	made := d.Tokens == TokensExact || d.Tokens == TokensEngine || d.Tokens == TokensTokenize
	return made && d.counted && !d.elsewhere
}

// asker is whose request it is, at its present target. d.mu is held.
func (d *Decision) asker() asker {
	return asker{endpoint.Hash(d.caller.name), d.Targets[d.target].member, d.rendered}
}

// checkLength compares the engine's count of the prompt's tokens with the picker's. d.mu is held.
func (d *Decision) checkLength(promptTokens int) {
	if d.checked() {
		d.view.raise(d.view.checks.answered(d.now(), d.class, d.asker(), promptTokens == d.PromptTokens))
	}
}

// checkBlocks lets the events of a request that has been served be compared with its keys. d.mu is held.
func (d *Decision) checkBlocks(now time.Time) {
	if !d.checked() || d.view.spec.NoEvents {
		return
	}
	t := &d.Targets[d.target]
	// The engine's blocks can be several key blocks long. Behind a speculative match, the source of announcements is
	// unknown.
	per := t.member.grain.keys()
	next := (t.Found.Confirmed()/per + 1) * per
	if !d.retried && t.Found.Speculative == 0 && !t.Doubted && next <= len(d.keys) {
		d.view.checks.wait(check{
			class: d.class, asker: d.asker(), due: now.Add(checkGrace), picked: d.picked, keys: d.keys[:next:next], stored: d.stored,
		})
	}
	d.view.raise(d.view.checks.settle(now, d.view))
}

package picker

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
// an hour, of one kind of request, from one token source, do not fit, that kind is in doubt. If the tokens were made in process, the
// conformance keeper compares them with the engines again. If an engine rendered them, they are not used for an hour: the
// engine serves such requests with other tokens than it renders. That holds for unusual requests as well, whose tokens the
// keeper cannot compare.
//
// One tenant of several raises no doubt, and neither does one endpoint of three or more: the quarter must be reached for more than half
// of the tenants, and at half of the endpoints or more, among those answers. A tenant that sends more than others displaces only
// its own answers.
type checks struct {
	// distrusting is whether off has entries.
	distrusting atomic.Bool

	mu      sync.Mutex
	waiting []check               // guarded by mu, in the order of time
	windows map[checked][]fitting // guarded by mu; the last answers since there were doubts, the oldest first
	off     map[checked]time.Time // guarded by mu; when tokens of a source and kind can be used again
	stats   Checks                // guarded by mu
}

// checked is what answers are counted by.
type checked struct {
	source  TokenSource
	kind    openai.Kind
	unusual bool
}

// asker is whose request an answer was to, and which endpoint answered.
type asker struct {
	tenant   uint64
	endpoint kvindex.Holder
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
	checked
	asker
	due, picked time.Time
	member      *member
	keys        []kvblock.Key // up to the first block that the endpoint did not hold at the pick
	stored      uint64        // keys that it had announced then
}

// answered enters whether an answer fits, and reports whether that raises doubts about tokens made in process.
func (c *checks) answered(now time.Time, of checked, by asker, fits bool) (doubt bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.enter(now, of, by, fits)
}

// enter is answered with mu held.
func (c *checks) enter(now time.Time, of checked, by asker, fits bool) (doubt bool) {
	if c.windows == nil {
		c.windows, c.off = map[checked][]fitting{}, map[checked]time.Time{}
	}
	if fits {
		c.stats.Fit++
	} else {
		c.stats.Misfit++
	}
	recent := slices.DeleteFunc(c.windows[of], func(old fitting) bool { return now.Sub(old.at) > trustAge })
	if len(recent) == doubtWindow {
		at := oldestOfMost(recent)
		recent = slices.Delete(recent, at, at+1)
	}
	recent = append(recent, fitting{by, fits, now})
	if doubt = !fits && doubtful(recent); doubt {
		recent = nil
	}
	c.windows[of] = recent
	if doubt && (of.source != TokensExact || of.unusual) {
		c.off[of] = now.Add(distrustFor)
		c.distrusting.Store(true)
		return false
	}
	return doubt
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

// doubtful reports whether enough of some answers do not fit: for more than half of the tenants, and at half of the endpoints or more.
// With two endpoints nothing says which of them is wrong.
func doubtful(recent []fitting) bool {
	misfits := 0
	for _, f := range recent {
		if !f.fits {
			misfits++
		}
	}
	if misfits < doubtEnough {
		return false
	}
	tenants, of := misfitting(recent, func(f fitting) uint64 { return f.tenant })
	if 2*tenants <= of {
		return false
	}
	endpoints, of := misfitting(recent, func(f fitting) uint64 { return uint64(f.endpoint) })
	return 2*endpoints >= of
}

// misfitting returns how many groups of some answers have the share of misfits that raises doubts, and how many groups there are.
func misfitting(recent []fitting, group func(fitting) uint64) (doubtful, of int) {
	type count struct{ all, misfits int }
	groups := map[uint64]count{}
	for _, f := range recent {
		c := groups[group(f)]
		c.all++
		if !f.fits {
			c.misfits++
		}
		groups[group(f)] = c
	}
	for _, c := range groups {
		if c.misfits*doubtWindow >= c.all*doubtEnough {
			doubtful++
		}
	}
	return doubtful, len(groups)
}

// distrusts reports whether the tokens of a source are not used at present for a request of some kinds. Doubts about unusual
// requests concern no others.
func (c *checks) distrusts(now time.Time, source TokenSource, kinds openai.Kinds, unusual bool) bool {
	if !c.distrusting.Load() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for of, until := range c.off {
		switch {
		case !now.Before(until):
			delete(c.off, of)
		case of.source == source && kinds.Has(of.kind) && (unusual || !of.unusual):
			return true
		}
	}
	c.distrusting.Store(len(c.off) > 0)
	return false
}

// wait adds a request whose events have not arrived yet.
func (c *checks) wait(one check) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) < maxChecks {
		c.waiting = append(c.waiting, one)
	}
}

// settle judges the requests that are due, and returns the kinds that are now in doubt. While keys are rotated, the root of
// an endpoint's announcements is unknown.
func (c *checks) settle(now time.Time, v *view) (doubts openai.Kinds) {
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
			continue // no events have arrived that could decide
		}
		var match [1]kvindex.Match
		v.index.Match(one.keys, []kvindex.Holder{one.member.holder}, match[:])
		if c.enter(now, one.checked, one.asker, match[0].Confirmed() == len(one.keys)) {
			doubts |= openai.KindsOf(one.kind)
		}
	}
	if n > 0 {
		c.waiting = append(c.waiting[:0], c.waiting[n:]...)
	}
	return doubts
}

func (c *checks) read() Checks {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// checked is what the request's answer is counted by; not ok where there is nothing to check.
func (d *Decision) checked() (of checked, ok bool) {
	ok = d.Tokens == TokensExact || d.Tokens == TokensEngine || d.Tokens == TokensTokenize
	return checked{d.Tokens, d.kinds.Main(), d.class.unusual}, ok && d.counted
}

// asker is whose request it is, at its present target. d.mu is held.
func (d *Decision) asker() asker {
	return asker{hash(d.caller.name), d.Targets[d.target].member.holder}
}

// checkLength compares the engine's count of the prompt's tokens with the picker's. d.mu is held.
func (d *Decision) checkLength(promptTokens int) {
	if of, ok := d.checked(); ok && d.view.checks.answered(d.now(), of, d.asker(), promptTokens == d.PromptTokens) {
		d.view.doubt(openai.KindsOf(of.kind))
	}
}

// checkBlocks lets the events of a request that has been served be compared with its keys. d.mu is held.
func (d *Decision) checkBlocks(now time.Time) {
	of, ok := d.checked()
	if !ok || d.view.spec.NoEvents {
		return
	}
	t := &d.Targets[d.target]
	// The engine's blocks can be several key blocks long. Behind a speculative match, the source of announcements is
	// unknown.
	per := t.member.grain.keys()
	next := (t.Found.Confirmed()/per + 1) * per
	if !d.retried && t.Found.Speculative == 0 && !t.Doubted && next <= len(d.keys) {
		d.view.checks.wait(check{
			checked: of, asker: d.asker(), due: now.Add(checkGrace), picked: d.picked, member: t.member, keys: d.keys[:next:next], stored: d.stored,
		})
	}
	if doubts := d.view.checks.settle(now, d.view); doubts != 0 {
		d.view.doubt(doubts)
	}
}

package sim

import (
	"fmt"
	"slices"

	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// check states what holds at all times.
func (w *world) check() {
	for _, p := range w.pods {
		if p.reporter != nil {
			p.reporter.check()
		}
	}
	for _, p := range w.pickers {
		for _, e := range p.ends {
			if e.port != nil {
				e.port.check()
				e.dirty = e.dirty || e.port.dirty
				e.port.dirty = false
			}
			if e.dirty {
				e.dirty = false
				e.check()
			}
		}
		p.check()
	}
}

// check: what waits is bounded.
func (p *port) check() {
	s := p.stream.Stats()
	if got := s.QueuedBytes.Load(); got > int64(p.w.queueBytes) {
		p.w.fail("%s: %d bytes are queued, at most %d may be", p.name, got, p.w.queueBytes)
	}
	if got := s.Orphans.Load(); got > int64(p.w.maxOrphans) && !p.joined {
		p.w.fail("%s: %d orphans, at most %d may be", p.name, got, p.w.maxOrphans)
	}
	if got := s.OrphanBytes.Load(); got > int64(p.w.maxOrphans*400) {
		p.w.fail("%s: orphans of %d bytes, at most %d may be", p.name, got, p.w.maxOrphans*400)
	}
	if s.Orphans.Load() > 0 {
		p.w.counts["steps with orphans"]++
	}
	if n := int(s.Overflows.Load()); n > p.overflows {
		p.w.counts["queue overflowed"] += n - p.overflows
		p.overflows = n
	}
}

func (r *reporter) check() {
	r.port.check()
	s := r.mirror.Stats()
	if s.Orphans > r.w.maxOrphans || s.Ghosts > maxGhosts || s.Blocks+s.Orphans > r.w.maxBlocks {
		r.w.fail("the reporter of %s holds %d blocks, %d orphans and %d ghosts", r.pod.uid, s.Blocks, s.Orphans, s.Ghosts)
	}
	if s.Ghosts > 0 {
		r.w.counts["steps with ghosts"]++
	}
}

// check: holders that have left hold nothing, and memory is bounded.
func (p *picker) check() {
	w := p.w
	for _, e := range p.left {
		if n := p.book.Held(e.holder); n != 0 || e.writer.Len() != 0 {
			w.fail("%s: %s has left and holds %d blocks", p.name, e.pod.uid, n)
		}
	}
	ix, ok := p.book.(*kvindex.Index)
	if !ok {
		return
	}
	ix.Settle()
	if w.budget > 0 {
		if got := ix.Bytes(); got > w.budget+guessRoom {
			w.fail("%s: the index takes %d bytes, its budget is %d", p.name, got, w.budget)
		}
		if ix.Evicted() > 0 {
			w.counts["steps after an eviction"]++
		}
	}
}

// guessRoom is how much guesses, and holders without blocks, can take beyond the budget.
const guessRoom = 256 << 10

// check: what an endpoint is credited with was held by one life of an engine; by the one that its stream has decoded
// last, or that the epoch of its report is about.
func (e *end) check() {
	w := e.w
	lives := ^uint64(0)
	n := 0
	e.writer.Each(func(b kvindex.Block) bool {
		for tier, copies := range b.Copies {
			if copies == 0 {
				continue
			}
			n++
			ever, ok := w.ever[place{b.Key, kvblock.Tier(tier), b.Group}]
			if !ok {
				w.fail("%s: %s is credited with %x, which was never held", e.picker.name, e.pod.uid, b.Key)
			}
			lives &= ever
		}
		return true
	})
	if n == 0 {
		return
	}
	if lives == 0 {
		w.fail("%s: %s is credited with blocks that no single life has held: %s", e.picker.name, e.pod.uid, e.describe())
	}
	life := -1
	if e.owned {
		if of, ok := w.epochs[e.receiver.Status().Epoch]; ok {
			life = of
		}
	} else if e.port != nil {
		life = e.port.life
	}
	if life >= 0 && lives&(1<<life) == 0 {
		w.fail("%s: %s is credited with blocks of a life before %d: %s", e.picker.name, e.pod.uid, life, e.describe())
	}
}

// held is what a writer's holder has.
func held(w kvindex.Writer) map[place]bool {
	out := map[place]bool{}
	w.Each(func(b kvindex.Block) bool {
		for tier, n := range b.Copies {
			if n > 0 {
				out[place{b.Key, kvblock.Tier(tier), b.Group}] = true
			}
		}
		return true
	})
	return out
}

// describe says how an endpoint does.
func (e *end) describe() string {
	if e.owned || e.port == nil {
		s := e.receiver.Status()
		return fmt.Sprintf("reported, %v, proven %v %v ago, divergent %d, told %d, held %d, evicted %d, orphans %d, refused %d, resyncs %v",
			s.State, s.Proven, e.w.now.Sub(s.LastProof), s.Divergent, s.Reported, s.Held, e.writer.Evicted(), s.Orphans, s.Refused, s.Resyncs)
	}
	s := e.port.stream.Stats()
	return fmt.Sprintf("subscribed, %v, life %d, refused %d, orphans dropped %d", e.port.stream.State(), e.port.life, s.Refused.Load(), s.OrphansDropped.Load())
}

// judge states what holds after quiet, for some pods.
func (w *world) judge(of func(*pod) bool) {
	for _, p := range w.pickers {
		for _, e := range p.ends {
			if !of(e.pod) {
				continue
			}
			if e.owned || e.port == nil {
				e.judgeReport()
			} else {
				e.judgeStream()
			}
			e.judgeMatches()
		}
	}
}

// compare reports what is missing and what is too much.
func (e *end) compare(got, want map[place]bool) (missing, surplus int) {
	for at := range want {
		if !got[at] {
			missing++
			e.explain("lacks", at)
		}
	}
	for at := range got {
		if !want[at] {
			surplus++
			e.explain("has too much", at)
		}
	}
	return missing, surplus
}

// explain writes into the trace what is wrong.
func (e *end) explain(what string, at place) {
	if e.w.trace == nil {
		return
	}
	fmt.Fprintf(e.w.trace, "%s: %s %s %+v:", e.picker.name, e.pod.uid, what, at)
	for _, b := range e.pod.engine.order {
		if slices.Contains(e.w.keysOf(b, e.picker.root), at.key) {
			fmt.Fprintf(e.w.trace, " block %x at token %d, salt %q, adapter %q, %d copies", b.hash, b.at, b.salt, b.adapter, e.pod.engine.model.Pool().Copies(b.hash))
			if p := e.pod.engine.below; p != nil {
				fmt.Fprintf(e.w.trace, ", %d below", p.Copies(b.hash))
			}
		}
	}
	fmt.Fprintln(e.w.trace)
	if r := e.pod.reporter; r != nil {
		fmt.Fprintf(e.w.trace, "its reporter: %+v\n", r.mirror.Stats())
	}
}

func (e *end) judgeStream() {
	w, en := e.w, e.pod.engine
	s := e.port.stream.Stats()
	state := e.port.stream.State()
	missing, surplus := e.compare(held(e.writer), en.truth(e.picker.root, e.port.joined))
	whole := s.Refused.Load() == 0 && e.writer.Evicted() == 0
	switch state {
	case events.Synced:
		if surplus > 0 || missing > 0 && whole {
			w.fail("%s: %s lacks %d and has %d too much: %s", e.picker.name, e.pod.uid, missing, surplus, e.describe())
		}
		if whole && en.blockSize == w.blockTokens {
			e.judgeCopies()
		}
		w.counts["judged equal, subscribed"]++
	case events.Unverified:
		if surplus > 0 {
			w.fail("%s: %s has %d too much: %s", e.picker.name, e.pod.uid, surplus, e.describe())
		}
		w.counts["judged a part, subscribed"]++
	case events.Degraded:
		w.counts["judged degraded, subscribed"]++
	default:
		w.fail("%s: %s is %s in the end", e.picker.name, e.pod.uid, e.describe())
	}
	if en.replay && !en.unread && (state == events.Degraded || en.base == 0 && state != events.Synced) {
		w.fail("%s: %s is not whole again: %s", e.picker.name, e.pod.uid, e.describe())
	}
}

// judgeCopies compares how often each block is held.
func (e *end) judgeCopies() {
	en := e.pod.engine
	e.writer.Each(func(b kvindex.Block) bool {
		h := enginemodel.Hash(b.Hash)
		want := map[kvblock.Tier]int{}
		if b.Group > 0 {
			want[kvblock.GPU] = en.second.Copies(h)
		} else {
			want[kvblock.GPU] = en.model.Pool().Copies(h)
			if en.lowerKnown {
				want[en.lowerTier] = en.below.Copies(h)
			}
		}
		for tier, n := range b.Copies {
			if n != want[kvblock.Tier(tier)] {
				e.w.fail("%s: %s holds %d copies of block %x in tier %d, not %d", e.picker.name, e.pod.uid, n, h, tier, want[kvblock.Tier(tier)])
			}
		}
		return true
	})
}

func (e *end) judgeReport() {
	w, en := e.w, e.pod.engine
	s := e.receiver.Status()
	missing, surplus := e.compare(held(e.writer), en.truth(e.picker.root, true))
	whole := s.Orphans == 0 && s.Refused == 0 && s.Reported == s.Held
	switch {
	case s.Proven:
		if surplus > 0 || missing > 0 && whole || s.Divergent != 0 {
			w.fail("%s: %s lacks %d and has %d too much: %s", e.picker.name, e.pod.uid, missing, surplus, e.describe())
		}
		w.counts["judged equal, reported"]++
	case s.State == pb.State_STATE_UNVERIFIED:
		if surplus > 0 {
			w.fail("%s: %s has %d too much: %s", e.picker.name, e.pod.uid, surplus, e.describe())
		}
		w.counts["judged a part, reported"]++
	default:
		w.counts["judged degraded, reported"]++
	}
	if en.replay && !en.unread && (s.State == pb.State_STATE_DEGRADED || en.base == 0 && !s.Proven) {
		w.fail("%s: %s is not whole again: %s", e.picker.name, e.pod.uid, e.describe())
	}
	if !e.owned || !s.Connected || s.KeyID != w.roots[e.picker.root].ID {
		w.fail("%s: %s is not reported in the end: %s", e.picker.name, e.pod.uid, e.describe())
	}
}

// judgeMatches asks the index itself: a match ends at the first block that is not held.
func (e *end) judgeMatches() {
	w := e.w
	have := held(e.writer)
	in := func(key kvblock.Key) bool {
		for tier := range kvblock.Tier(kvblock.NumTiers) {
			for group := range 2 {
				if have[place{key, tier, group}] {
					return true
				}
			}
		}
		return false
	}
	for range 4 {
		keys := w.someChain(e.picker.root)
		n := 0
		for n < len(keys) && in(keys[n]) {
			n++
		}
		var m [1]kvindex.Match
		e.picker.book.Match(keys, []kvindex.Holder{e.holder}, m[:])
		if m[0].Confirmed() < n || m[0].Speculative == 0 && m[0].Confirmed() != n {
			w.fail("%s: %d of %d blocks match at %s, not %d", e.picker.name, m[0].Confirmed(), len(keys), e.pod.uid, n)
		}
	}
}

// close ends everything, and nothing must remain.
func (w *world) close() {
	for _, p := range w.pickers {
		for _, e := range slices.Clone(p.ends) {
			p.leave(e)
		}
		for len(p.guesses) > 0 {
			p.withdraw(0)
		}
		p.turn()
		p.check()
		if distinct, held, speculative := p.book.Size(); distinct+held+speculative != 0 {
			w.fail("%s: %d distinct blocks, %d held, %d speculative remain", p.name, distinct, held, speculative)
		}
		if ix, ok := p.book.(*kvindex.Index); ok && ix.Bytes() > freshIndex+24<<10 {
			w.fail("%s: an empty index takes %d bytes, a fresh one %d", p.name, ix.Bytes(), freshIndex)
		}
	}
}

package sim

import (
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

// picker is one replica: an index, and for each endpoint that it knows of one of two roads.
type picker struct {
	w    *world
	name string
	book kvindex.Book
	ends []*end
	root int
	// left are holders that have left, and the messages that can still arrive for them.
	left    []*end
	guesses []guess
}

// end is an endpoint as a picker knows it: an identity, and an address that another endpoint can have by now.
type end struct {
	w      *world
	picker *picker
	pod    *pod
	addr   string
	direct bool

	holder    kvindex.Holder
	writer    kvindex.Writer
	port      *port // of the direct road, nil while that is closed
	receiver  *cachesync.Receiver
	push      *push
	owned     bool
	releaseAt time.Time
	dirty     bool
}

// guess is the speculation of one request.
type guess struct {
	*kvindex.Guess
	end   *end
	last  kvblock.Key
	until time.Time
}

const maxGuesses = 16

func (w *world) startPicker(name string, root int) *picker {
	p := &picker{w: w, name: name, root: root}
	if w.plain {
		p.book = kvindex.New()
	} else {
		p.book = kvindex.NewIndex(kvindex.Options{Budget: w.budget})
	}
	return p
}

// stop ends the process at once.
func (p *picker) stop() {
	for _, e := range p.ends {
		e.port.close()
		if e.push != nil {
			e.push.cut()
		}
	}
}

// sync takes note of the pods that there are now.
func (p *picker) sync() {
	for _, e := range slices.Clone(p.ends) {
		if e.pod.deleted {
			p.leave(e)
		}
	}
	for _, pod := range p.w.pods {
		if !slices.ContainsFunc(p.ends, func(e *end) bool { return e.pod == pod }) {
			p.join(pod)
		}
	}
}

func (p *picker) join(pod *pod) {
	e := &end{w: p.w, picker: p, pod: pod, addr: pod.addr, direct: pod.direct, holder: p.book.Join()}
	e.writer = p.book.Writer(e.holder)
	e.receiver = cachesync.NewReceiver(e.writer, cachesync.ReceiverOptions{
		Roots: p.w.roots[p.root : p.root+1], MaxBlocks: p.w.maxBlocks, OnStored: e.confirm, OnOwn: e.own, Batch: 5 * time.Millisecond,
	})
	p.ends = append(p.ends, e)
	e.open()
}

// own gives the endpoint to its reporter: the picker's own stream stops first.
func (e *end) own() {
	e.port.close()
	e.port, e.owned = nil, true
	e.w.count("reporter took over")
}

// open opens the direct road, if there is one.
func (e *end) open() {
	if !e.direct {
		return
	}
	w := e.w
	feed := events.Feed{
		Endpoint: e.pod.endpoint(), Engine: e.pod.release.engine, Writer: e.writer, OnStored: e.confirm,
		Keys: events.Keys{Model: w.roots[e.picker.root].Model, Seed: w.roots[e.picker.root].Seed, BlockTokens: w.blockTokens},
	}
	addr := e.addr
	e.port = w.newPort(e.picker.name+" of "+e.pod.uid, func() *engine { return w.at(addr) }, &feed)
}

// leave forgets an endpoint. Guesses about it are withdrawn later, when their requests end.
func (p *picker) leave(e *end) {
	if e.port != nil {
		e.port.deliver(1 << 10) // in the queue, but not applied yet
		e.port.close()
	}
	if e.push != nil {
		e.push.cut()
	}
	p.book.Leave(e.holder)
	p.ends = slices.DeleteFunc(p.ends, func(o *end) bool { return o == e })
	p.left = append(p.left, e)
	if len(p.left) > 4 {
		p.left = p.left[1:]
	}
}

// turn does what a picker does by itself.
func (p *picker) turn() {
	w := p.w
	for _, e := range slices.Clone(p.ends) {
		if !e.releaseAt.IsZero() && !w.now.Before(e.releaseAt) && e.push == nil && e.owned {
			e.receiver.Release()
			e.owned, e.releaseAt = false, time.Time{}
			e.open()
			w.count("given back by its reporter")
		}
	}
	for i := 0; i < len(p.guesses); i++ {
		if g := &p.guesses[i]; w.now.After(g.until) {
			p.withdraw(i)
			i--
		}
	}
	for _, e := range p.left {
		if e.port != nil {
			e.port.stalled = 0
			e.port.work(2) // a goroutine that has not noticed
		}
	}
}

// rotate changes the root of the picker's keys.
func (p *picker) rotate(root int) {
	if p.root == root {
		return
	}
	w := p.w
	roots := []cachesync.Root{w.roots[root], w.roots[p.root]}
	p.root = root
	w.count("root rotated")
	for _, e := range p.ends {
		if e.port != nil {
			e.port.close()
			e.open()
		}
		m := e.receiver.SetRoots(roots)
		if e.push != nil {
			e.push.back = append(e.push.back, overWire(w, m))
		}
	}
}

// confirm ends the guesses whose last block was announced.
func (e *end) confirm(keys []kvblock.Key) {
	p := e.picker
	for i := 0; i < len(p.guesses); i++ {
		if g := &p.guesses[i]; g.end == e && slices.Contains(keys, g.last) {
			e.w.count("guess confirmed")
			p.withdraw(i)
			i--
		}
	}
}

// speculate picks an endpoint for a request, as a pick does.
func (p *picker) speculate() {
	w := p.w
	if len(p.ends) == 0 || len(p.guesses) >= maxGuesses {
		return
	}
	keys := w.someChain(p.root)
	if len(keys) == 0 {
		return
	}
	e := p.ends[w.rng.IntN(len(p.ends))]
	var g guess
	refused := p.unguessed()
	p.unchanged("speculation", keys, func() {
		g = guess{p.book.Speculate(e.holder, keys), e, keys[len(keys)-1], w.now.Add(time.Duration(w.rng.IntN(3000)) * time.Millisecond)}
	})
	// Guesses have a part of a budget. Beyond it the index makes none, and counts that.
	if now := p.unguessed(); now != refused {
		if w.budget == 0 || now != refused+1 {
			w.fail("%s: %d guesses were refused, the budget is %d", p.name, now-refused, w.budget)
		}
		w.count("guess refused")
		return
	}
	p.guesses = append(p.guesses, g)
	var m [1]kvindex.Match
	p.book.Match(keys, []kvindex.Holder{e.holder}, m[:])
	if m[0].Blocks() != len(keys) {
		w.fail("%s: a guess of %d blocks matches %d", p.name, len(keys), m[0].Blocks())
	}
	w.count("speculated")
}

// unguessed is how many guesses the index has refused.
func (p *picker) unguessed() uint64 {
	if ix, ok := p.book.(*kvindex.Index); ok {
		return ix.Unguessed()
	}
	return 0
}

func (p *picker) withdraw(i int) {
	g := p.guesses[i]
	p.guesses = slices.Delete(p.guesses, i, i+1)
	p.unchanged("a withdrawal", []kvblock.Key{g.last}, g.Withdraw)
}

// unchanged does something that must not change any confirmed block, of any holder.
func (p *picker) unchanged(what string, keys []kvblock.Key, do func()) {
	holders := make([]kvindex.Holder, len(p.ends))
	for i, e := range p.ends {
		holders[i] = e.holder
	}
	before, after := make([]kvindex.Match, len(holders)), make([]kvindex.Match, len(holders))
	p.book.Match(keys, holders, before)
	thorough := p.w.rng.IntN(4) == 0
	var held []uint64
	if thorough {
		held = p.digests()
	}
	do()
	p.book.Match(keys, holders, after)
	for i := range before {
		if before[i].Tiers[0] > after[i].Tiers[0] || before[i].Confirmed() > after[i].Confirmed() {
			p.w.fail("%s: %s turns %+v of %s into %+v", p.name, what, before[i], p.ends[i].pod.uid, after[i])
		}
	}
	if thorough && !slices.Equal(held, p.digests()) {
		p.w.fail("%s: %s changes what is confirmed", p.name, what)
	}
}

// digests are sums over what each endpoint holds.
func (p *picker) digests() (sums []uint64) {
	for _, e := range p.ends {
		for tier := range kvblock.Tier(kvblock.NumTiers) {
			for group := range 2 {
				d := e.writer.Digest(tier, group)
				sum := d.Blocks
				for i, s := range d.Sums {
					sum += s * uint64(2*i+1)
				}
				sums = append(sums, sum)
			}
		}
	}
	return sums
}

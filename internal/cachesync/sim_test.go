package cachesync

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
	"github.com/kvasir-dev/kvasir/test/race"
)

var (
	simSeeds = flag.Uint64("sim.seeds", seedsOf(20), "how many seeds the simulation runs")
	simSeed  = flag.Int64("sim.seed", -1, "run this one seed")
)

// seedsOf is how many of n seeds a test with one goroutine plays: a tenth under the race detector.
func seedsOf(n uint64) uint64 {
	if race.Enabled {
		return max(1, n/10)
	}
	return n
}

// faults of a simulation, each one in so many.
type faults struct {
	lose, repeat, cut           int // messages
	picker, reporter            int // restarts, in steps
	engine, resync, rotate, lie int
	find                        int // seconds at most until a picker is found; meanwhile it borrows
}

// world is an engine, its reporter and some pickers in virtual time.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	faults  faults
	seed    uint64
	now     time.Time
	engine  *truth
	mirror  *Mirror
	pickers []*simPicker
	ids     uint64
	// everHeld are the keys that the engine has had in this life.
	everHeld map[place]bool
}

type simPicker struct {
	book     kvindex.Book
	holder   kvindex.Holder
	writer   kvindex.Writer
	receiver *Receiver
	roots    []Root
	owned    int

	sender      *Sender
	wake        time.Time
	toPicker    []*pb.ReporterMessage
	fromPicker  []*pb.PickerMessage
	reconnected int

	found time.Time    // when the reporter finds it
	loan  *pb.Position // what it has borrowed of its lender
}

const testSettle = 5 * time.Second

var simRoots = []Root{testRoot("a", 8), testRoot("b", 8), testRoot("c", 8)}

func newWorld(t *testing.T, seed uint64, f faults) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 7)), faults: f, seed: seed, now: time.Unix(1000, 0), everHeld: map[place]bool{}}
	w.engine = newTruth(seed, []int{4, 8, 16}[seed%3])
	w.mirror = w.newMirror()
	w.mirror.Begin(false)
	w.mirror.Mark(events.Position{}, events.Synced)
	for i := range 2 {
		p := &simPicker{roots: simRoots[:1]}
		if (seed+uint64(i))%2 == 0 {
			p.book = kvindex.New()
		} else {
			p.book = kvindex.NewIndex(kvindex.Options{})
		}
		w.startPicker(p)
		w.pickers = append(w.pickers, p)
	}
	return w
}

func (w *world) newMirror() *Mirror {
	// A short log, so that pickers fall out of it.
	return NewMirror(Options{LogBytes: 4 << 10, NewID: func() uint64 { w.ids++; return w.ids }}, nil)
}

// startPicker begins a process of a picker that knows nothing.
func (w *world) startPicker(p *simPicker) {
	if p.receiver != nil {
		p.receiver.Lost()
		p.book.Leave(p.holder)
	}
	p.holder = p.book.Join()
	p.writer = p.book.Writer(p.holder)
	p.owned = 0
	p.receiver = NewReceiver(p.writer, ReceiverOptions{Roots: p.roots, OnOwn: func() { p.owned++ }})
	if p.loan = nil; w.faults.find > 0 {
		if p.sender != nil {
			p.sender.Close()
		}
		p.sender, p.found = nil, w.now.Add(time.Duration(w.rng.IntN(1000*w.faults.find))*time.Millisecond)
		p.toPicker, p.fromPicker = nil, nil
		return
	}
	w.connect(p)
}

// borrow lets a picker that is not found yet take what another has, and give it back when that one cannot vouch for it.
func (w *world) borrow(p *simPicker) {
	for _, lender := range w.pickers {
		if lender == p {
			continue
		}
		if p.loan != nil {
			if !lender.receiver.Vouches(p.loan) && p.receiver.Return() {
				p.loan = nil
				if n := p.writer.Len(); n > 0 {
					w.t.Fatalf("seed %d: %d blocks stay of what was given back", w.seed, n)
				}
			}
			return
		}
		at, changes := lender.receiver.Lend(p.roots[0].ID)
		if at == nil {
			continue
		}
		for i := range changes {
			changes[i] = overWire(changes[i])
		}
		taken, err := p.receiver.Borrow(overWire(at), changes)
		if err != nil || !taken {
			w.t.Fatalf("seed %d: not borrowed: %v", w.seed, err)
		}
		p.loan = at
		compare(w.t, fmt.Sprintf("seed %d: borrowed", w.seed), heldBy(p.writer), heldBy(lender.writer))
		w.check(p)
	}
}

// connect opens a stream and shakes hands.
func (w *world) connect(p *simPicker) {
	if p.sender != nil {
		p.sender.Close()
		p.receiver.Lost()
	}
	p.reconnected++
	p.toPicker, p.fromPicker = nil, nil
	p.sender = NewSender(w.mirror, "pod", 0)
	p.wake = w.now
	out, _ := p.sender.Next(w.now)
	if len(out) != 1 || out[0].GetHello().GetPod() != "pod" {
		w.t.Fatalf("a stream begins with %v", out)
	}
	if err := p.sender.Handle(overWire(p.receiver.Welcome(w.now))); err != nil {
		w.t.Fatalf("seed %d: the welcome: %v", w.seed, err)
	}
}

// overWire is what arrives of a message: a copy.
func overWire[M proto.Message](m M) M {
	data, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	out := m.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(data, out); err != nil {
		panic(err)
	}
	return out.(M)
}

func (w *world) one(in int) bool { return in > 0 && w.rng.IntN(in) == 0 }

// exchange lets a picker and its sender speak for a while.
func (w *world) exchange(p *simPicker, busy bool) {
	if p.sender == nil {
		if w.now.Before(p.found) {
			w.borrow(p)
			return
		}
		w.connect(p)
	}
	out, wake := p.sender.Next(w.now)
	p.wake = wake
	for _, m := range out {
		if w.one(w.faults.lose) {
			continue
		}
		p.toPicker = append(p.toPicker, overWire(m))
		if w.one(w.faults.repeat) {
			p.toPicker = append(p.toPicker, overWire(m))
		}
	}
	for n := len(p.toPicker); n > 0 && (!busy || w.rng.IntN(4) > 0); n-- {
		m := p.toPicker[0]
		p.toPicker = p.toPicker[1:]
		err := p.receiver.Handle(w.now, m, func(reply *pb.PickerMessage) {
			if !w.one(w.faults.lose) {
				p.fromPicker = append(p.fromPicker, overWire(reply))
			}
		})
		if err != nil {
			if w.faults.lose+w.faults.repeat == 0 && !p.outlived(m) {
				w.t.Fatalf("seed %d: the picker: %v", w.seed, err)
			}
			w.connect(p)
			return
		}
		w.check(p)
	}
	for n := len(p.fromPicker); n > 0 && (!busy || w.rng.IntN(4) > 0); n-- {
		m := p.fromPicker[0]
		p.fromPicker = p.fromPicker[1:]
		if err := p.sender.Handle(m); err != nil {
			w.t.Fatalf("seed %d: the sender: %v", w.seed, err)
		}
	}
	if busy && w.one(w.faults.cut) {
		w.connect(p)
	}
}

// outlived reports whether a message begins with keys that were rotated away while it was on its way.
func (p *simPicker) outlived(m *pb.ReporterMessage) bool {
	key := m.GetBegin().GetAt().GetKeyId()
	return key != "" && !slices.ContainsFunc(p.roots, func(r Root) bool { return r.ID == key })
}

// check states what holds at all times: nothing is held in the present epoch that the engine has never had in it.
func (w *world) check(p *simPicker) {
	s := p.receiver.Status()
	if s.Epoch != w.mirror.epoch || w.faults.lie > 0 || w.faults.repeat > 0 {
		return
	}
	root := rootOf(s.KeyID)
	for at := range heldBy(p.writer) {
		if !w.everHeld[place{Key: at.Key ^ kvblock.Key(rootTag(root)), Tier: at.Tier, Group: at.Group}] {
			w.t.Fatalf("seed %d: %v is held, which the engine never had in this life", w.seed, at)
		}
	}
}

func rootOf(id string) *Root {
	for i := range simRoots {
		if simRoots[i].ID == id {
			return &simRoots[i]
		}
	}
	return &simRoots[0]
}

// rootTag keeps keys of different roots apart in everHeld.
func rootTag(r *Root) uint64 {
	for i := range simRoots {
		if simRoots[i].ID == r.ID {
			return uint64(i) << 60
		}
	}
	return 0
}

func (w *world) remember() {
	for i := range simRoots {
		for at := range w.engine.keys(simRoots[i]) {
			at.Key ^= kvblock.Key(rootTag(&simRoots[i]))
			w.everHeld[at] = true
		}
	}
}

// step lets the engine work, and perhaps something fail.
func (w *world) step() {
	w.mirror.Apply(w.engine.step(), events.Position{})
	w.remember()
	switch {
	case w.one(w.faults.engine):
		w.engine = newTruth(w.rng.Uint64(), w.engine.size)
		w.everHeld = map[place]bool{}
		w.mirror.Begin(false)
		w.mirror.Mark(events.Position{}, events.Synced)
	case w.one(w.faults.resync):
		w.mirror.Begin(true)
		w.mirror.Apply(w.engine.history(), events.Position{})
		if w.one(2) { // pickers can connect in between
			w.speak(true)
		}
		w.mirror.Mark(events.Position{}, events.Synced)
	case w.one(w.faults.reporter):
		var file bytes.Buffer
		if err := w.mirror.Save(&file); err != nil {
			w.t.Fatal(err)
		}
		w.mirror = w.newMirror()
		if w.one(2) { // its memory was lost
			w.mirror.Begin(false)
			w.mirror.Apply(w.engine.history(), events.Position{})
			w.everHeld = map[place]bool{}
			w.remember()
		} else if _, err := w.mirror.Load(&file); err != nil {
			w.t.Fatal(err)
		}
		w.mirror.Mark(events.Position{}, events.Synced)
		for _, p := range w.pickers {
			if p.sender != nil { // the process has gone
				p.receiver.Lost()
			}
			p.sender = nil
			w.connect(p)
		}
	}
	for _, p := range w.pickers {
		if w.one(w.faults.picker) {
			w.startPicker(p)
		}
		if w.one(w.faults.rotate) {
			w.rotate()
		}
		if w.one(w.faults.lie) {
			// The index changes behind the receiver's back, as memory errors and bugs do.
			key := kvblock.Key(w.rng.Uint64() | 1)
			p.writer.Store(kvblock.GPU, 0, kvindex.Parent{}, hashesOf(key), []kvblock.Key{key})
			for at := range heldBy(p.writer) {
				p.writer.Drop(at.Tier, at.Group, hashesOf(at.Key))
				break
			}
		}
	}
}

// rotate gives all pickers, one after the other, the same other root.
func (w *world) rotate() {
	next := simRoots[w.rng.IntN(len(simRoots))]
	for _, p := range w.pickers {
		p.roots = []Root{next, p.roots[0]}
		if m := p.receiver.SetRoots(p.roots); p.sender != nil && p.sender.Handle(overWire(m)) != nil {
			w.connect(p)
		}
	}
}

func (w *world) speak(busy bool) {
	for _, p := range w.pickers {
		w.exchange(p, busy)
	}
}

// settle lets nothing happen for some seconds.
func (w *world) settle(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(10 * time.Millisecond) {
		w.speak(false)
	}
}

func TestPickersEndUpWithTheTruth(t *testing.T) {
	for name, f := range map[string]faults{
		"nothing fails":           {},
		"streams break":           {cut: 30},
		"messages are lost":       {lose: 20},
		"messages are repeated":   {repeat: 10},
		"pickers restart":         {picker: 80},
		"reporters restart":       {reporter: 60},
		"engines restart":         {engine: 60},
		"histories are replayed":  {resync: 30},
		"roots rotate":            {rotate: 60},
		"indices go wrong":        {lie: 40},
		"pickers borrow":          {picker: 60, find: 3},
		"of engines that restart": {picker: 60, find: 3, engine: 60, rotate: 100, resync: 100},
		"everything at once":      {cut: 60, picker: 200, reporter: 150, engine: 150, resync: 100, rotate: 150, find: 2},
		"and loses messages too":  {lose: 100, repeat: 100, cut: 60, picker: 200, reporter: 150, engine: 150, resync: 100, rotate: 150},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range *simSeeds {
				if *simSeed >= 0 {
					seed = uint64(*simSeed)
				}
				simulate(t, seed, f)
				if *simSeed >= 0 {
					break
				}
			}
		})
	}
}

func simulate(t *testing.T, seed uint64, f faults) {
	w := newWorld(t, seed, f)
	for range 250 {
		w.step()
		w.now = w.now.Add(time.Duration(w.rng.IntN(60)) * time.Millisecond)
		w.speak(true)
		w.now = w.now.Add(time.Duration(w.rng.IntN(8)) * time.Millisecond)
	}
	w.faults.lose, w.faults.repeat = 0, 0
	w.settle(8 * time.Second)
	if f.lose == 0 {
		// Where nothing is lost in a stream, five seconds suffice.
		for range 20 {
			w.step()
		}
		w.settle(5 * time.Second)
	}
	for i, p := range w.pickers {
		what := fmt.Sprintf("seed %d picker %d", seed, i)
		s := p.receiver.Status()
		if !s.Proven || s.Divergent != 0 || s.KeyID != p.roots[0].ID || s.Epoch != w.mirror.epoch || p.owned != 1 && f.find == 0 {
			t.Fatalf("%s: %+v, owned %d times", what, s, p.owned)
		}
		want := w.engine.keys(p.roots[0])
		compare(t, what, heldBy(p.writer), want)
		if s.Held != uint64(len(want)) || s.Reported != s.Held {
			t.Fatalf("%s: told of %d, holds %d, should %d", what, s.Reported, s.Held, len(want))
		}
		w.match(what, p)
	}
}

// match queries the index itself, for complete prefixes.
func (w *world) match(what string, p *simPicker) {
	root := p.roots[0]
	want := w.engine.keys(root)
	for _, b := range w.engine.blocks {
		if b.group != 0 {
			continue
		}
		keys := b.chain(root)
		n := 0
		for n < len(keys) && (anyTier(want, keys[n])) {
			n++
		}
		var out [1]kvindex.Match
		p.book.Match(keys, []kvindex.Holder{p.holder}, out[:])
		if out[0].Confirmed() != n {
			w.t.Fatalf("%s: %d of %d blocks match, should %d", what, out[0].Confirmed(), len(keys), n)
		}
	}
}

func anyTier(held map[place]bool, key kvblock.Key) bool {
	for tier := range kvblock.Tier(kvblock.NumTiers) {
		for group := range 2 {
			if held[place{tier, group, key}] {
				return true
			}
		}
	}
	return false
}

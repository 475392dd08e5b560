package cachesync

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// followed is a mirror and a picker that follows it.
type followed struct {
	t        *testing.T
	mirror   *Mirror
	sender   *Sender
	receiver *Receiver
	index    *kvindex.Index
	holder   kvindex.Holder
	root     Root
	now      time.Time
	// old: the picker is of a release that does not know windows.
	old bool
	// ahead counts reports of hashes that cover tokens after the block.
	ahead int
}

func newFollowed(t *testing.T, old bool) *followed {
	w := &followed{t: t, mirror: NewMirror(Options{}, nil), root: testRoot("a", 4), now: time.Unix(1e9, 0), old: old}
	w.mirror.Begin(false)
	w.mirror.Mark(events.Position{}, events.Synced)
	w.restart()
	return w
}

// restart begins with a picker that knows nothing.
func (w *followed) restart() {
	w.index = kvindex.NewIndex(kvindex.Options{})
	w.holder = w.index.Join()
	w.receiver = NewReceiver(w.index.Writer(w.holder), ReceiverOptions{Roots: []Root{w.root}, OnLookahead: func() { w.ahead++ }})
	w.connect()
}

func (w *followed) connect() {
	if w.sender != nil {
		w.sender.Close()
	}
	w.sender = NewSender(w.mirror, "p", 0)
	w.sender.Next(w.now)
	welcome := w.receiver.Welcome(w.now)
	if w.old {
		welcome.GetWelcome().Windows = false
	}
	w.handle(welcome)
	w.pump()
}

func (w *followed) handle(m *pb.PickerMessage) {
	if err := w.sender.Handle(m); err != nil {
		w.t.Fatal(err)
	}
}

// pump lets both speak for some digests.
func (w *followed) pump() {
	w.t.Helper()
	for range 6 {
		w.now = w.now.Add(time.Second)
		out, _ := w.sender.Next(w.now)
		for _, m := range out {
			if w.old && windowsIn(m) {
				w.t.Fatalf("a picker that knows no windows received one: %v", m)
			}
			if err := w.receiver.Handle(w.now, m, w.handle); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	if s := w.receiver.Status(); !s.Proven {
		w.t.Errorf("the picker does not have what the mirror has: %+v", s)
	}
	checkMirror(w.t, w.mirror)
}

// windowsIn reports whether a message speaks of group 1 or carries a window.
func windowsIn(m *pb.ReporterMessage) bool {
	changes := append(m.GetChanges().GetChanges(), m.GetSnapshot().GetChanges()...)
	return slices.ContainsFunc(changes, func(c *pb.Change) bool { return c.GetWindow() != nil || c.GetGroup() == 1 }) ||
		slices.ContainsFunc(m.GetDigest().GetSections(), func(s *pb.Section) bool { return s.GetWindow() != nil || s.GetGroup() == 1 })
}

func (w *followed) apply(events ...kvevent.Event) {
	apply(w.mirror, events...)
	w.pump()
}

func (w *followed) match(hashes ...kvevent.Hash) int {
	var keys []kvblock.Key
	for i := range hashes {
		keys = append(keys, keyOf(w.root, hashes[:i+1]...))
	}
	var out [1]kvindex.Match
	w.index.Match(keys, []kvindex.Holder{w.holder}, out[:])
	return out[0].Blocks()
}

// windowed makes an event one of group 1, a sliding window that needs two blocks, and of some of the event's blocks only.
func windowed(e kvevent.Event, hashes ...kvevent.Hash) kvevent.Event {
	e.Group, e.Hashes = 1, hashes
	if e.Kind == kvevent.Stored {
		e.Tail = 7
	}
	return e
}

// hybridSteps are those of package events's test of the same name: both ways must lead to the same matches.
var hybridSteps = []struct {
	events []kvevent.Event
	want   int
	full   int // by full attention alone
}{
	{[]kvevent.Event{windowed(chainEvent(0, 1, 2, 3, 4), 1, 3, 4), chainEvent(0, 1, 2, 3, 4)}, 4, 4},
	{[]kvevent.Event{windowed(removedEvent(), 3)}, 1, 4},                              // block 1 begins the prompt
	{[]kvevent.Event{windowed(chainEvent(2, 3), 3), removedEvent(4)}, 1, 3},           // block 3 would need block 2
	{[]kvevent.Event{windowed(chainEvent(1, 2), 2)}, 3, 3},                            //
	{[]kvevent.Event{chainEvent(3, 4)}, 4, 4},                                         // the window has kept its block
	{[]kvevent.Event{windowed(chainEvent(0, 1, 2, 3, 4), 1, 2, 3, 4)}, 4, 4},          // a report of what is cached
	{[]kvevent.Event{windowed(removedEvent(), 4), windowed(removedEvent(), 1)}, 3, 4}, // adds no copies
	{[]kvevent.Event{{Kind: kvevent.Cleared}}, 0, 0},
}

func TestReportedWindowsDecideWhereHitsEnd(t *testing.T) {
	w := newFollowed(t, false)
	for i, step := range hybridSteps {
		w.apply(step.events...)
		if got := w.match(1, 2, 3, 4); got != step.want {
			t.Errorf("step %d: %d blocks match, not %d", i, got, step.want)
		}
	}
}

func TestAPickerThatKnowsNoWindowsIsToldOfNone(t *testing.T) {
	w := newFollowed(t, true)
	for i, step := range hybridSteps[:7] {
		w.apply(step.events...)
		if got := w.match(1, 2, 3, 4); got != step.full {
			t.Errorf("step %d: %d blocks match, not %d", i, got, step.full)
		}
		if s := w.receiver.Status(); s.Unindexable == 0 {
			t.Errorf("step %d: nothing says that blocks are not told of", i)
		}
	}
	w.old = false // upgraded: its blocks are adopted, and missing ones sent
	w.connect()
	if got := w.match(1, 2, 3, 4); got != 3 {
		t.Errorf("after the upgrade %d blocks match, not 3", got)
	}
	if s := w.receiver.Status(); s.Unindexable != 0 || s.Resyncs[Adopted] != 1 {
		t.Errorf("after the upgrade: %+v", s)
	}
}

func TestAModelOfWindowsAloneIsReported(t *testing.T) {
	w := newFollowed(t, false)
	w.apply(windowed(chainEvent(0, 1, 2, 3), 1, 2, 3))
	w.apply(windowed(removedEvent(), 1, 2), windowed(chainEvent(3, 4), 4))
	if got := w.match(1, 2, 3, 4); got != 4 {
		t.Errorf("%d blocks match, not 4", got)
	}
	if got := w.match(1, 2, 3); got != 0 {
		t.Errorf("%d blocks match without block 2, not 0", got)
	}
}

// TestLookaheadReachesThePicker: with digests, also a picker that comes later, and until the engine's next life.
func TestLookaheadReachesThePicker(t *testing.T) {
	w := newFollowed(t, false)
	if w.apply(chainEvent(0, 1)); w.ahead != 0 {
		t.Errorf("reported %d times without a reason", w.ahead)
	}
	e := chainEvent(1, 2)
	e.Lookahead = true
	if w.apply(e, chainEvent(0, 3)); w.ahead == 0 {
		t.Error("not reported")
	}
	w.ahead = 0
	if w.restart(); w.ahead == 0 {
		t.Error("not reported to another picker")
	}
	w.mirror.Begin(false)
	w.mirror.Mark(events.Position{}, events.Synced)
	w.pump()
	w.ahead = 0
	if w.apply(chainEvent(0, 1)); w.ahead != 0 {
		t.Errorf("reported %d times in the next life", w.ahead)
	}
}

func TestWindowsAreNotLent(t *testing.T) {
	w := newFollowed(t, false)
	w.apply(chainEvent(0, 1, 2))
	if at, _ := w.receiver.Lend(w.root.ID); at == nil {
		t.Fatal("nothing is lent of a model without windows")
	}
	w.apply(windowed(chainEvent(0, 1, 2), 1, 2))
	if at, changes := w.receiver.Lend(w.root.ID); at != nil {
		t.Errorf("lent: %v", changes)
	}
}

// engineWithWindow is the obvious model of an engine with a group of full attention and one with a window of two blocks.
type engineWithWindow struct{ held [2]map[kvevent.Hash]int }

func newEngineWithWindow() *engineWithWindow {
	return &engineWithWindow{held: [2]map[kvevent.Hash]int{{}, {}}}
}

// hit is how many blocks of a prompt it finds.
func (e *engineWithWindow) hit(prompt []kvevent.Hash) int {
	for n := len(prompt); n > 0; n-- {
		ok := true
		for i, hash := range prompt[:n] {
			ok = ok && e.held[0][hash] > 0 && (i < n-2 || e.held[1][hash] > 0)
		}
		if ok {
			return n
		}
	}
	return 0
}

// random makes a change and returns its events. Prompts are paths in a binary tree: the block below n has the name 2n or
// 2n+1.
func (e *engineWithWindow) random(rng *rand.Rand) (events []kvevent.Event) {
	if rng.IntN(40) == 0 {
		*e = *newEngineWithWindow()
		return []kvevent.Event{{Kind: kvevent.Cleared}}
	}
	if rng.IntN(2) == 0 { // evict something
		group := rng.IntN(2)
		all := slices.Sorted(maps.Keys(e.held[group]))
		if len(all) == 0 {
			return nil
		}
		hash := all[rng.IntN(len(all))]
		if e.held[group][hash]--; e.held[group][hash] == 0 {
			delete(e.held[group], hash)
		}
		removed := removedEvent(hash)
		removed.Group = group
		return []kvevent.Event{removed}
	}
	prompt := randomPath(rng)
	n := rng.IntN(len(prompt))
	for n > 0 && e.held[0][prompt[n-1]] == 0 { // a block follows those that are held
		n--
	}
	parent := kvevent.Hash(0)
	if n > 0 {
		parent = prompt[n-1]
	}
	full := chainEvent(parent, prompt[n:]...)
	first := max(n, len(prompt)-1-rng.IntN(3))
	window := full
	window.Group, window.Tail, window.Hashes = 1, 7, prompt[first:]
	if n == 0 && slices.IndexFunc(window.Hashes[max(0, len(window.Hashes)-2):], func(h kvevent.Hash) bool { return e.held[1][h] == 0 }) < 0 {
		return nil // it would look like a report of cached blocks
	}
	for _, hash := range prompt[n:] {
		e.held[0][hash]++
	}
	for _, hash := range window.Hashes {
		e.held[1][hash]++
	}
	return []kvevent.Event{window, full}
}

func randomPath(rng *rand.Rand) (prompt []kvevent.Hash) {
	for at := kvevent.Hash(1); len(prompt) < 1+rng.IntN(6); {
		at = 2*at + kvevent.Hash(rng.IntN(2))
		prompt = append(prompt, at)
	}
	return prompt
}

// TestReportedMatchesAreThoseOfTheEngine plays random changes, with restarts of the picker, the stream and the reporter.
func TestReportedMatchesAreThoseOfTheEngine(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			w, e := newFollowed(t, false), newEngineWithWindow()
			for range 60 {
				w.apply(e.random(rng)...)
				switch rng.IntN(12) {
				case 0:
					w.restart()
				case 1:
					w.connect()
				case 2:
					w.reload()
				}
				for range 4 {
					prompt := randomPath(rng)
					if got, want := w.match(prompt...), e.hit(prompt); got != want {
						t.Fatalf("%d blocks of %v match, not %d", got, prompt, want)
					}
				}
			}
		})
	}
}

// reload replaces the mirror by what it saves.
func (w *followed) reload() {
	var file bytes.Buffer
	if err := w.mirror.Save(&file); err != nil {
		w.t.Fatal(err)
	}
	w.mirror = NewMirror(Options{}, nil)
	if _, err := w.mirror.Load(&file); err != nil {
		w.t.Fatal(err)
	}
	w.mirror.Mark(events.Position{}, events.Synced)
	w.sender = nil
	w.connect()
}

func TestWindowsThatCannotBeAreRefused(t *testing.T) {
	for name, window := range map[string]*pb.Window{
		"no keys": {Blocks: 1}, "no blocks": {Keys: 1}, "too many keys": {Keys: maxWindowKeys + 1, Blocks: 1},
		"full blocks of too many": {Keys: 1, Blocks: 1, FullKeys: maxWindowKeys + 1}, "too many blocks": {Keys: 1, Blocks: maxWindowBlocks + 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHolding(kvindex.New().Writer(0))
			if err := h.apply(&pb.Change{Kind: pb.Change_KIND_STORED, Keys: []uint64{1}, Window: window}, 10); err == nil || len(h.windows) > 0 {
				t.Errorf("error %v, windows %v", err, h.windows)
			}
			d := &pb.Digest{Sections: []*pb.Section{{Sums: make([]uint64, kvindex.DigestBuckets), Window: window}}}
			if _, _, err := readDigest(d); err == nil {
				t.Error("a digest with it is taken")
			}
		})
	}
}

package events

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/test/race"
)

// packed writes MessagePack.
type packed []byte

func (p packed) array(n int) packed { return binary.BigEndian.AppendUint32(append(p, 0xdd), uint32(n)) }
func (p packed) number(n int) packed {
	return binary.BigEndian.AppendUint64(append(p, 0xcf), uint64(n))
}
func (p packed) text(s string) packed { return append(p.bare(0xdb, len(s)), s...) }
func (p packed) none() packed         { return append(p, 0xc0) }
func (p packed) bare(kind byte, n int) packed {
	return binary.BigEndian.AppendUint32(append(p, kind), uint32(n))
}

// zeros is a list of n numbers of a byte each.
func (p packed) zeros(n int) packed { return append(p.array(n), make([]byte, n)...) }

// batchOf begins a batch of n events.
func batchOf(n int) packed { return packed(nil).array(2).number(1).array(n) }

// stored adds blocks with numbers from first on.
func (p packed) stored(first, blocks, parent int, adapter string) packed {
	p = p.array(8).text("BlockStored").array(blocks)
	for i := range blocks {
		p = p.number(first + i)
	}
	if parent == 0 {
		p = p.none()
	} else {
		p = p.number(parent)
	}
	if p = p.zeros(blocks * blockTokens).number(blockTokens).none().none(); adapter == "" {
		return p.none()
	}
	return p.text(adapter)
}

func (p packed) removedZeros(blocks int) packed { return p.array(2).text("BlockRemoved").zeros(blocks) }

// hostileEngines are what engines publish that want the picker to hold as much as possible.
var hostileEngines = map[string]func(round int) packed{
	"blocks without parents": func(n int) packed { return batchOf(1).stored(1+n<<20, 5_000, 1<<60+n, "") },
	"adapters' blocks":       func(n int) packed { return batchOf(1).stored(1+n<<20, 15_000, 0, fmt.Sprint("adapter ", n)) },
	"adapters with long names": func(n int) packed {
		return batchOf(1).stored(1+n<<20, 2000, 0, strings.Repeat("a", 100_000+n))
	},
	"blocks again and again": func(n int) packed { return batchOf(2).stored(1+n<<20, 5_000, 0, "").stored(1+n<<20, 5_000, 0, "") },
	"a few large events":     func(n int) packed { return batchOf(n + 1).removedMany(n).removedZeros(1 << 19) },
	"many small events":      func(int) packed { return batchOf(20_000).removedMany(20_000) },
	"large tokens":           func(n int) packed { return batchOf(1).stored(1+n<<20, 1<<16, 1<<60, "") },
}

func (p packed) removedMany(n int) packed {
	for range n {
		p = p.removedZeros(1)
	}
	return p
}

// Hostile engines, whatever they publish, make the picker hold no more than the room that all streams have together, what is each
// stream's own, and the index. Engines beside them are followed as always. Everything is back once the streams are closed.
func TestAllStreamsTogetherDrawOnOneRoom(t *testing.T) {
	all := []string{}
	for name := range hostileEngines {
		t.Run(name, func(t *testing.T) { attackStreams(t, name, name, name, name) })
		all = append(all, name, name)
	}
	t.Run("all of them", func(t *testing.T) { attackStreams(t, all...) })
}

func attackStreams(t *testing.T, kinds ...string) {
	const limit, index = 8 << 20, 2 << 20
	rounds := 12
	if race.Enabled { // there is one goroutine
		rounds = 4
	}
	room, book := budget.NewRoom(limit), kvindex.NewIndex(kvindex.Options{Budget: index})
	stream := func(pod int) *Stream {
		return NewStream(Feed{
			Endpoint: endpoint.Endpoint{ID: endpoint.ID{Pod: fmt.Sprint(pod)}, EventsAddress: "a:1"},
			Keys:     Keys{Model: "m", Seed: seed, BlockTokens: blockTokens}, Writer: book.Writer(book.Join()),
		}, Config{Room: room})
	}
	publish := func(s *Stream, n int, p packed, applied bool) {
		s.Take([][]byte{nil, binary.BigEndian.AppendUint64(nil, uint64(n)), p})
		for applied && s.Work() {
		}
		if held := room.Held(); held > limit {
			t.Fatalf("%d bytes of %d are held", held, limit)
		}
	}
	honest, hostile := stream(0), make([]*Stream, len(kinds))
	before := heap()
	for i := range hostile {
		hostile[i] = stream(1 + i)
		hostile[i].Up(t.Context())
	}
	honest.Up(t.Context())
	for n := range rounds {
		for i, s := range hostile {
			publish(s, n, hostileEngines[kinds[i]](n), n < rounds*3/4) // those of the last rounds wait
		}
		publish(honest, n, batchOf(1).stored(1+100*n, 100, 0, ""), true)
	}
	if s := honest.Stats(); honest.State() != Synced || s.Stored.Load() != uint64(100*rounds) || s.Overflows.Load() != 0 || s.DecodeErrors.Load() != 0 {
		t.Errorf("a stream beside hostile ones is %v, with %d blocks stored, %d overflows and %d errors", honest.State(), s.Stored.Load(),
			s.Overflows.Load(), s.DecodeErrors.Load())
	}
	most := uint64(limit + index + len(kinds)*(2*ownBytes+100<<10))
	if grown := heap() - before; grown > most*3/2 {
		t.Errorf("the heap has grown by %d bytes, and %d are planned", grown, most)
	}
	for _, s := range append(hostile, honest) {
		s.Close()
	}
	if held := room.Held(); held != 0 {
		t.Errorf("%d bytes are held by closed streams", held)
	}
	runtime.KeepAlive(book)
}

// heap is what the process holds, after a collection.
func heap() uint64 {
	var m runtime.MemStats
	for range 2 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Streams that keep as many notes as they can leave room for the next message: large pools with many adapters are followed.
func TestNotesLeaveRoomForMessages(t *testing.T) {
	const streams, rounds, blocks = 20, 40, 200
	room, book := budget.NewRoom(2<<20), kvindex.New()
	var all []*Stream
	for i := range streams {
		s := NewStream(Feed{
			Endpoint: endpoint.Endpoint{ID: endpoint.ID{Pod: fmt.Sprint(i)}, EventsAddress: "a:1"},
			Keys:     Keys{Model: "m", Seed: seed, BlockTokens: blockTokens}, Writer: book.Writer(book.Join()),
		}, Config{Room: room})
		defer s.Close()
		s.Up(t.Context())
		all = append(all, s)
	}
	for n := range rounds {
		for i, s := range all {
			s.Take([][]byte{nil, binary.BigEndian.AppendUint64(nil, uint64(n)), batchOf(1).stored(1+i<<32+n<<20, blocks, 0, fmt.Sprint("adapter ", n))})
			for s.Work() {
			}
		}
	}
	for i, s := range all {
		stats := s.Stats()
		if s.State() != Synced || stats.Overflows.Load() != 0 || stats.DecodeErrors.Load() != 0 {
			t.Errorf("stream %d is %v, with %d overflows and %d errors", i, s.State(), stats.Overflows.Load(), stats.DecodeErrors.Load())
		}
	}
	if held := room.Held(); held < 1<<20 {
		t.Errorf("%d bytes are held: the room is not short", held)
	}
}

// What a stream holds is given back as it goes: the room is as empty after a life, a replay and an end of each as before.
func TestAStreamGivesBackWhatItHeld(t *testing.T) {
	room := budget.NewRoom(64 << 20)
	share := room.Share(0)
	f := testFeed(newFakeIndex())
	book := kvindex.New()
	f.Writer = book.Writer(book.Join())
	c := Config{}.withDefaults()
	m := newMirror(&f, &c, share, &Stats{})
	batch := func(adapter string, parent kvevent.Hash, hashes ...kvevent.Hash) *kvevent.Batch {
		return &kvevent.Batch{Events: []kvevent.Event{{Kind: kvevent.Stored, Hashes: hashes, Parent: parent, HasParent: parent != 0,
			Tokens: make([]uint32, blockTokens*len(hashes)), BlockSize: blockTokens, Adapter: adapter}}}
	}
	fill := func() {
		for _, b := range []*kvevent.Batch{batch("", 0, 1, 2), batch("", 0, 1, 2), batch("", 99, 5, 6), batch("a", 0, 3, 4), batch("a", 0, 13, 4)} {
			m.Apply(b, Position{})
		}
	}
	m.Begin(false)
	fill()
	one := share.Held()
	if one == 0 {
		t.Fatal("nothing is held")
	}
	for _, step := range []struct {
		what string
		do   func()
		want int
	}{
		{"the same in a shadow", func() { m.Begin(true); fill() }, 2 * one},
		{"the shadow is discarded", func() { m.Revert() }, one},
		{"a shadow that replaces it", func() { m.Begin(true); fill(); m.Mark(Position{}, Synced) }, one},
		{"removed", func() {
			m.Apply(&kvevent.Batch{Events: []kvevent.Event{{Kind: kvevent.Removed, Hashes: []kvevent.Hash{4, 13}}}}, Position{})
			m.Apply(&kvevent.Batch{Events: []kvevent.Event{{Kind: kvevent.Removed, Hashes: []kvevent.Hash{4, 5, 6}}}}, Position{})
		}, -1},
		{"a new life", func() { m.Begin(false) }, 0},
		{"filled and cleared", func() { fill(); m.Apply(&kvevent.Batch{Events: []kvevent.Event{{Kind: kvevent.Cleared}}}, Position{}) }, 0},
	} {
		step.do()
		if held := share.Held(); held != step.want && (step.want >= 0 || held >= one) {
			t.Errorf("%s: %d bytes are held, want %d", step.what, held, step.want)
		}
	}
}

package events

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
)

const blockTokens = 4

var seed = func() kvblock.Seed {
	s, err := kvblock.NewSeed([]byte(strings.Repeat("s", kvblock.MinSeedBytes)))
	if err != nil {
		panic(err)
	}
	return s
}()

// place is a block in a tier.
type place struct {
	Tier kvblock.Tier
	Key  kvblock.Key
}

// fakeIndex is an index of one holder that other goroutines can read. It writes to the plain index and to the fast one, and
// compares the two at every read.
type fakeIndex struct {
	kvindex.Writer // the plain one

	mu     sync.Mutex
	fast   kvindex.Writer
	clears int
	writes int
	of     *fakeIndex // whose shadow it is
	// shadows begun, and those of them that were committed.
	shadows, commits int
	wrong            []string
}

func newFakeIndex() *fakeIndex {
	table, index := kvindex.New(), kvindex.NewIndex(kvindex.Options{})
	return &fakeIndex{Writer: table.Writer(table.Join()), fast: index.Writer(index.Join())}
}

// both does the same to both indexes, which must answer alike.
func (x *fakeIndex) both(what string, do func(w kvindex.Writer) int) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.writes++
	plain, fast := do(x.Writer), do(x.fast)
	if plain != fast {
		x.wrong = append(x.wrong, fmt.Sprintf("%s: %d of the plain index, %d of the fast one", what, plain, fast))
	}
	return plain
}

func (x *fakeIndex) Store(tier kvblock.Tier, group int, parent kvindex.Parent, hashes []kvevent.Hash, keys []kvblock.Key) int {
	return x.both("store", func(w kvindex.Writer) int { return w.Store(tier, group, parent, hashes, keys) })
}

func (x *fakeIndex) StoreWindow(tier kvblock.Tier, group int, rule kvindex.Window, hashes []kvevent.Hash, keys []kvblock.Key) int {
	return x.both("store window", func(w kvindex.Writer) int { return w.StoreWindow(tier, group, rule, hashes, keys) })
}

func (x *fakeIndex) Copy(tier kvblock.Tier, group int, hashes []kvevent.Hash) int {
	return x.both("copy", func(w kvindex.Writer) int { return w.Copy(tier, group, hashes) })
}

func (x *fakeIndex) Drop(tier kvblock.Tier, group int, hashes []kvevent.Hash) int {
	return x.both("drop", func(w kvindex.Writer) int { return w.Drop(tier, group, hashes) })
}

func (x *fakeIndex) Clear() {
	x.both("clear", func(w kvindex.Writer) int { w.Clear(); return 0 })
	x.mu.Lock()
	defer x.mu.Unlock()
	x.clears++
}

// Shadow makes a life of its own of both indexes.
func (x *fakeIndex) Shadow() kvindex.Writer {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.shadows++
	return &fakeIndex{Writer: x.Writer.Shadow(), fast: x.fast.Shadow(), of: x}
}

// Commit is a shadow's.
func (x *fakeIndex) Commit() {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.of.commits++
	x.of.wrong = append(x.of.wrong, x.wrong...)
	x.Writer.Commit()
	x.fast.Commit()
}

// Discard is a shadow's.
func (x *fakeIndex) Discard() {
	x.both("discard", func(w kvindex.Writer) int { w.Discard(); return 0 })
}

func (x *fakeIndex) ClearTier(tier kvblock.Tier) {
	x.both("clear tier", func(w kvindex.Writer) int { w.ClearTier(tier); return 0 })
}

func (x *fakeIndex) Key(group int, hash kvevent.Hash) (kvblock.Key, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.Writer.Key(group, hash)
}

func (x *fakeIndex) Len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.Writer.Len()
}

// snapshot counts, by place, the hashes that have a copy there.
func (x *fakeIndex) snapshot() map[place]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	plain, fast := placesOf(x.Writer), placesOf(x.fast)
	if !maps.Equal(plain, fast) {
		x.wrong = append(x.wrong, fmt.Sprintf("the plain index has %v, the fast one %v", plain, fast))
	}
	return plain
}

func placesOf(w kvindex.Writer) map[place]int {
	places := map[place]int{}
	w.Each(func(b kvindex.Block) bool {
		for tier, n := range b.Copies {
			if n > 0 {
				places[place{kvblock.Tier(tier), b.Key}]++
			}
		}
		return true
	})
	return places
}

// jsonDecoder reads batches that encode wrote.
type jsonDecoder struct{}

var errGarbage = errors.New("garbage")

func (jsonDecoder) Limit(func(bytes int) bool) {}

func (jsonDecoder) Decode(payload []byte, into *kvevent.Batch) error {
	*into = kvevent.Batch{}
	if json.Unmarshal(payload, into) != nil {
		return errGarbage
	}
	return nil
}

// clock gives every batch its own time, as engines do.
var clock atomic.Int64

func encode(events ...kvevent.Event) []byte {
	b, err := json.Marshal(kvevent.Batch{Time: float64(clock.Add(1)), Events: events, Rank: -1})
	if err != nil {
		panic(err)
	}
	return b
}

// fakeEngine is a publisher without sockets. It is a Source for one address.
type fakeEngine struct {
	mu      sync.Mutex
	history [][]byte // payloads, by sequence number from base
	base    uint64
	keep    int // most payloads kept; 0 is all
	next    uint64
	subs    map[chan [][]byte]func() // with what cuts the connection
	down    bool                     // nothing can connect
	// replayFails reports whether the n-th replay fails, after how many replies.
	replayFails func(n int) (after int, fails bool)
	replays     int
	// drops, if set, reports whether the n-th replay leaves out a batch.
	drops func(n int, seq uint64) bool
	// deaf reports whether a replay from a number fails at once; nil for none.
	deaf func(from uint64) bool
	// stuck, if not 0, is how long a replay socket says nothing before it is given up.
	stuck time.Duration
	// replaying, if set, is called before each reply.
	replaying func(n int)
	dials     []string // addresses subscribed to
}

func newFakeEngine() *fakeEngine { return &fakeEngine{subs: map[chan [][]byte]func(){}} }

var errCut = errors.New("connection cut")

func (e *fakeEngine) Subscribe(ctx context.Context, addr string, up func(), each func([][]byte) error) error {
	e.mu.Lock()
	e.dials = append(e.dials, addr)
	if e.down {
		e.mu.Unlock()
		return errCut
	}
	link, cut := context.WithCancel(ctx)
	defer cut()
	messages := make(chan [][]byte, 1<<14)
	e.subs[messages] = cut
	up()
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(e.subs, messages)
		e.mu.Unlock()
	}()
	for {
		select {
		case m := <-messages:
			if err := each(m); err != nil {
				return err
			}
		case <-link.Done():
			return errCut
		}
	}
}

// asked is how often a replay was asked for.
func (e *fakeEngine) asked() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.replays
}

func (e *fakeEngine) Replay(ctx context.Context, _ string, from uint64, each func(uint64, []byte) error) error {
	e.mu.Lock()
	e.replays++
	after, fails := 0, false
	if e.replayFails != nil {
		after, fails = e.replayFails(e.replays)
	}
	if e.deaf != nil && e.deaf(from) {
		after, fails = 0, true
	}
	history, base, stuck, replaying := slices.Clone(e.history), e.base, e.stuck, e.replaying
	n, drops := e.replays, e.drops
	e.mu.Unlock()
	if stuck > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(stuck):
			return errCut
		}
	}
	for i, payload := range history {
		if base+uint64(i) < from || drops != nil && drops(n, base+uint64(i)) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if fails && after == 0 {
			return errCut
		}
		after--
		if replaying != nil {
			replaying(i)
		}
		if err := each(base+uint64(i), slices.Clone(payload)); err != nil {
			return err
		}
	}
	if fails {
		return errCut
	}
	return ctx.Err()
}

// publish puts a batch into the history and delivers it times times.
func (e *fakeEngine) publish(payload []byte, times int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	seq := e.next
	e.next++
	e.history = append(e.history, payload)
	if e.keep > 0 && len(e.history) > e.keep {
		e.history = e.history[1:]
		e.base++
	}
	for range times {
		e.deliver(seq, payload)
	}
}

// repeat delivers an earlier batch again.
func (e *fakeEngine) repeat(seq uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if seq >= e.base && seq < e.next {
		e.deliver(seq, e.history[seq-e.base])
	}
}

func (e *fakeEngine) deliver(seq uint64, payload []byte) {
	e.raw([]byte("topic"), binary.BigEndian.AppendUint64(nil, seq), payload)
}

// raw delivers frames as they are.
func (e *fakeEngine) raw(frames ...[]byte) {
	for messages := range e.subs {
		messages <- frames
	}
}

func (e *fakeEngine) cut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, cut := range e.subs {
		cut()
	}
}

// restart forgets everything; whether the connections are cut too is the caller's.
func (e *fakeEngine) restart() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.history, e.base, e.next = nil, 0, 0
}

func (e *fakeEngine) subscribers() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.subs)
}

// testFeed is a feed of a fake engine, with a replay socket.
func testFeed(x *fakeIndex) Feed {
	return Feed{
		Endpoint: endpoint.Endpoint{ID: endpoint.ID{Pod: "pod"}, EventsAddress: "pod:5557", ReplayAddress: "pod:5558"},
		Keys:     Keys{Model: "m", Seed: seed, BlockTokens: blockTokens},
		Writer:   x,
	}
}

func testConfig(e Source) Config {
	return Config{Source: e, NewDecoder: func(string) Decoder { return jsonDecoder{} }}
}

// only is the status of the one stream of the pool "p".
func only(t *testing.T, m *Manager) Status {
	t.Helper()
	all := m.Status("p")
	if len(all) != 1 {
		t.Fatalf("%d streams, want 1", len(all))
	}
	return all[0]
}

// truth is what a simulated engine holds, and speaks of: physical copies of chained blocks.
type truth struct {
	rng    *rand.Rand
	blocks map[kvevent.Hash]*physical
	hashes []kvevent.Hash // of blocks, in a stable order
}

type physical struct {
	key    kvblock.Key
	parent kvevent.Hash // 0 is none
	tokens []uint32
	copies [kvblock.NumTiers]int
}

func newTruth(rng *rand.Rand) *truth {
	return &truth{rng: rng, blocks: map[kvevent.Hash]*physical{}}
}

func (w *truth) clear() {
	w.blocks, w.hashes = map[kvevent.Hash]*physical{}, nil
}

func (w *truth) places() map[place]int {
	out := map[place]int{}
	for _, b := range w.blocks {
		for tier, n := range b.copies {
			if n > 0 {
				out[place{kvblock.Tier(tier), b.key}]++
			}
		}
	}
	return out
}

// act changes the truth at random and returns what the engine says about it.
func (w *truth) act() []kvevent.Event {
	var events []kvevent.Event
	for range 1 + w.rng.IntN(3) {
		switch n := w.rng.IntN(100); {
		case n < 50 || len(w.hashes) == 0:
			events = append(events, w.store())
		case n < 60:
			// The same blocks computed twice at a time: a second copy.
			hash := w.any()
			b := w.blocks[hash]
			b.copies[kvblock.GPU]++
			e := kvevent.Event{Kind: kvevent.Stored, Hashes: []kvevent.Hash{hash}, Tokens: b.tokens, BlockSize: blockTokens}
			if b.parent != 0 {
				e.Parent, e.HasParent = b.parent, true
			}
			events = append(events, e)
		case n < 70:
			hash := w.any()
			w.blocks[hash].copies[kvblock.CPU]++
			events = append(events, kvevent.Event{Kind: kvevent.Stored, Hashes: []kvevent.Hash{hash}, Medium: "CPU"})
		case n < 99:
			events = append(events, w.remove())
		default:
			w.clear()
			events = append(events, kvevent.Event{Kind: kvevent.Cleared})
		}
	}
	return events
}

func (w *truth) any() kvevent.Hash { return w.hashes[w.rng.IntN(len(w.hashes))] }

func (w *truth) store() kvevent.Event {
	e := kvevent.Event{Kind: kvevent.Stored, BlockSize: blockTokens}
	parent := kvevent.Hash(0)
	key := seed.Root("m", "")
	if len(w.hashes) > 0 && w.rng.IntN(4) > 0 {
		parent = w.any()
		key = w.blocks[parent].key
		e.Parent, e.HasParent = parent, true
	}
	for range 1 + w.rng.IntN(3) {
		hash := kvevent.Hash(w.rng.Uint64())
		b := &physical{parent: parent}
		for range blockTokens {
			b.tokens = append(b.tokens, w.rng.Uint32())
		}
		key = kvblock.Next(key, b.tokens, 0)
		b.key = key
		b.copies[kvblock.GPU] = 1
		w.blocks[hash], w.hashes = b, append(w.hashes, hash)
		e.Hashes, e.Tokens = append(e.Hashes, hash), append(e.Tokens, b.tokens...)
		parent = hash
	}
	return e
}

func (w *truth) remove() kvevent.Event {
	i := w.rng.IntN(len(w.hashes))
	hash := w.hashes[i]
	b := w.blocks[hash]
	e := kvevent.Event{Kind: kvevent.Removed, Hashes: []kvevent.Hash{hash}}
	tier := kvblock.GPU
	if b.copies[tier] == 0 {
		tier, e.Medium = kvblock.CPU, "CPU"
	}
	if b.copies[tier]--; b.copies[kvblock.GPU]+b.copies[kvblock.CPU] == 0 {
		delete(w.blocks, hash)
		w.hashes = slices.Delete(w.hashes, i, i+1)
	}
	return e
}

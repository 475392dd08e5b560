package replicas

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/routinghistory"
)

// Bounds of the pending updates.
const (
	// maxOutboxBytes bounds the assumptions that were not sent to the slowest peer yet.
	maxOutboxBytes = 8 << 20
	// MaxKeys bounds the keys of an assumption; of longer prompts the beginning is sent.
	MaxKeys = 1 << 14
	// assumptionBytes is about what an assumption takes besides its keys, eventBytes what its end takes.
	assumptionBytes = 256
	eventBytes      = 16
)

// Assumption is that an endpoint will hold the blocks of a request that it was just given.
type Assumption struct {
	// Pool is namespace/name.
	Pool     string
	Endpoint endpoint.ID
	// KeyID is the id of the keys' root, BlockTokens the size of their blocks.
	KeyID       string
	BlockTokens int
	// Keys from the request's first block on. They must not change.
	Keys []kvblock.Key
	// Until is when it ends at the latest.
	Until time.Time

	id     uint64
	number uint64 // of the event that added it
	ended  bool   // guarded by the outbox's mu
}

// Outbox is what a picker has to send to its peers. It is safe for concurrent use; a nil one sends nothing.
type Outbox struct {
	incarnation uint64
	senders     atomic.Pointer[[]*Sender] // replaced under mu
	place       atomic.Uint64             // of the picker among its replicas, bits of a float64

	mu     sync.Mutex // guards what follows
	events []event    // numbered from first on
	first  uint64
	bytes  int
	lastID uint64
}

// Routed is that a request was sent to an endpoint, and the names of the chunks that its text begins with. It is sent once.
type Routed struct {
	// Pool is namespace/name.
	Pool     string
	Endpoint endpoint.ID
	// KeyID is the id of the root of the names. ChunkBytes and MostChunks are how the text is cut.
	KeyID                  string
	ChunkBytes, MostChunks int
	// Chunks from the text's first one on. They must not change.
	Chunks []routinghistory.Chunk
}

// event is that an assumption is made, or that it has ended; or that a request was routed.
type event struct {
	*Assumption
	end    bool
	routed *Routed
}

func (e *event) size() int {
	switch {
	case e.routed != nil:
		return assumptionBytes + 8*len(e.routed.Chunks)
	case e.end:
		return eventBytes
	}
	return assumptionBytes + 8*len(e.Keys)
}

// NewOutbox makes the outbox of a life of a picker: incarnation is a random number, not 0.
func NewOutbox(incarnation uint64) *Outbox {
	o := &Outbox{incarnation: incarnation, first: 1}
	o.senders.Store(&[]*Sender{})
	return o
}

// Incarnation is the picker's life.
func (o *Outbox) Incarnation() uint64 { return o.incarnation }

// Place is the picker's among itself and the peers that it hears: from 0 for the least incarnation, in equal steps, to below 1. It is
// 0 without an Inbox that keeps it up to date (UpdatePlaceOf).
func (o *Outbox) Place() float64 {
	if o == nil {
		return 0
	}
	return math.Float64frombits(o.place.Load())
}

// Alone reports whether there are no peers.
func (o *Outbox) Alone() bool { return o == nil || len(*o.senders.Load()) == 0 }

// Changed records that the load of some endpoint has changed.
func (o *Outbox) Changed() {
	if o == nil {
		return
	}
	for _, s := range *o.senders.Load() {
		s.ring()
	}
}

// Assume announces an assumption. It keeps a, which must then be withdrawn, until it was sent to the peers; without peers
// it has no effect.
func (o *Outbox) Assume(a *Assumption) {
	if o.Alone() || len(a.Keys) == 0 {
		return
	}
	a.Keys = a.Keys[:min(len(a.Keys), MaxKeys)]
	o.mu.Lock()
	o.lastID++
	a.id, a.number = o.lastID, o.first+uint64(len(o.events))
	o.append(event{Assumption: a})
	o.mu.Unlock()
	o.Changed()
}

// Route announces that a request was routed. Without peers it has no effect.
func (o *Outbox) Route(r *Routed) {
	if o.Alone() || len(r.Chunks) == 0 {
		return
	}
	r.Chunks = r.Chunks[:min(len(r.Chunks), MaxKeys)]
	o.mu.Lock()
	o.append(event{routed: r})
	o.mu.Unlock()
	o.Changed()
}

// Withdraw ends an assumption. Further calls, and calls for nil, do nothing.
func (o *Outbox) Withdraw(a *Assumption) {
	if o == nil || a == nil {
		return
	}
	o.mu.Lock()
	told := a.id != 0 && !a.ended
	if told {
		a.ended = true
		o.append(event{Assumption: a, end: true})
	}
	o.mu.Unlock()
	if told {
		o.Changed()
	}
}

// append enters an event. If there are too many, a peer that has not received the oldest ones misses them. mu is held.
func (o *Outbox) append(e event) {
	o.events = append(o.events, e)
	o.bytes += e.size()
	n := 0
	for bytes := o.bytes; bytes > maxOutboxBytes; n++ {
		bytes -= o.events[n].size()
	}
	o.forget(n)
}

// forget drops the first n events. mu is held.
func (o *Outbox) forget(n int) {
	for i := range n {
		o.bytes -= o.events[i].size()
		o.events[i] = event{}
	}
	o.events = o.events[n:]
	o.first += uint64(n)
	if len(o.events) == 0 {
		o.events = nil
	}
}

// trim drops the events that were sent to all peers. mu is held.
func (o *Outbox) trim() {
	least := o.first + uint64(len(o.events))
	for _, s := range *o.senders.Load() {
		least = min(least, s.next)
	}
	if least > o.first {
		o.forget(int(least - o.first))
	}
}

// enter adds a sender, leave takes it out.
func (o *Outbox) enter(s *Sender) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.next = o.first
	list := append(slices.Clone(*o.senders.Load()), s)
	o.senders.Store(&list)
}

func (o *Outbox) leave(s *Sender) {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*o.senders.Load()), func(other *Sender) bool { return other == s })
	o.senders.Store(&list)
	o.trim()
}

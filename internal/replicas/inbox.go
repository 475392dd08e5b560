package replicas

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
	pb "github.com/kvasir-dev/kvasir/internal/peerpb"
	"github.com/kvasir-dev/kvasir/internal/routinghistory"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// MaxPeers bounds the peers of a picker.
const MaxPeers = 64

// Pools is where the updates of peers are applied.
type Pools interface {
	// Tracker of an endpoint of a pool (namespace/name); nil for one that is not known here.
	Tracker(pool string, id endpoint.ID) *load.Tracker
	// Assume makes a guess of what a peer assumes, unless it is refused; the guess ends at a.Until, which Assume can
	// bring nearer.
	Assume(a *Assumption) (*kvindex.Guess, Refusal)
	// Sessions of a pool (namespace/name); nil for one that is not known here.
	Sessions(pool string) *routinghistory.Sessions
	// Routed records what a peer has routed, unless the endpoint is unknown or the text is cut otherwise here.
	Routed(r *Routed)
}

// Tenants is where the updates of peers about tenants are applied. peer is a peer's life.
type Tenants interface {
	// Spent takes what a peer has let a tenant of a pool use.
	Spent(now time.Time, pool string, peer uint64, name string, u tenant.Usage)
	// Lost records that nothing of a peer is under way any more.
	Lost(peer uint64)
}

// Refusal is why an assumption was not taken.
type Refusal int

// The refusals.
const (
	// Taken: it was.
	Taken Refusal = iota
	// Unknown: the endpoint is not known here.
	Unknown
	// OtherKeys: the keys are of another root, or of blocks of another size.
	OtherKeys
	// Off: the pool's policy does not speculate.
	Off
	// NoRoom: the peer assumes too much.
	NoRoom
	NumRefusals int = iota
)

// String is the value of the metric label.
func (r Refusal) String() string {
	return [...]string{"taken", "unknown_endpoint", "other_keys", "off", "no_room"}[r]
}

// Inbox is the state that a picker has received from its peers. It is safe for concurrent use.
type Inbox struct {
	pools   Pools
	tenants Tenants // nil: updates about them are ignored
	self    uint64

	messages, passedOver, expired atomic.Uint64
	assumptions                   [NumRefusals]atomic.Uint64

	room   *budget.Room // of all guesses together
	placed *Outbox      // whose place is kept up to date; nil for none

	mu    sync.Mutex
	peers map[uint64]*Receiver // guarded by mu, by incarnation
}

// Reasons to refuse a peer.
var (
	// ErrSelf is returned for the picker's own incarnation.
	ErrSelf = errors.New("this is the picker itself")
	// ErrTooMany is returned when there are MaxPeers.
	ErrTooMany = errors.New("too many peers")
)

// NewInbox returns an inbox without peers. self is the picker's own incarnation.
func NewInbox(pools Pools, self uint64) *Inbox {
	return &Inbox{pools: pools, self: self, peers: map[uint64]*Receiver{}}
}

// Limit bounds the assumptions of all peers together, in bytes. Call it before Open.
func (b *Inbox) Limit(bytes int64) { b.room = budget.NewRoom(bytes) }

// Meter makes the inbox apply what peers send about tenants. Call it before Open.
func (b *Inbox) Meter(t Tenants) { b.tenants = t }

// UpdatePlaceOf keeps the place of the picker's outbox among its replicas up to date. Call it before Open.
func (b *Inbox) UpdatePlaceOf(o *Outbox) { b.placed = o }

// updatePlace sets the picker's place by the peers that are there. mu is held.
func (b *Inbox) updatePlace() {
	if b.placed == nil {
		return
	}
	before := 0
	for incarnation := range b.peers {
		if incarnation < b.self {
			before++
		}
	}
	b.placed.place.Store(math.Float64bits(float64(before) / float64(len(b.peers)+1)))
}

// Open begins a stream of updates: m is its first message, the hello. Everything that the same incarnation has sent over
// another stream is forgotten, and that stream cannot be used any more. The receiver must be closed when the stream has
// ended.
func (b *Inbox) Open(now time.Time, m *pb.PeerMessage) (*Receiver, error) {
	hello := m.GetHello()
	switch {
	case hello == nil:
		return nil, errors.New("the first message is no hello")
	case !Understood(hello.GetProtocol(), hello.GetOldest()):
		return nil, errors.New("the peer speaks another version")
	case hello.GetIncarnation() == 0:
		return nil, errors.New("the peer has no incarnation")
	case hello.GetIncarnation() == b.self:
		return nil, ErrSelf
	}
	b.Expire(now)
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.peers[hello.GetIncarnation()]
	if before == nil && len(b.peers) >= MaxPeers {
		return nil, ErrTooMany
	}
	if before != nil {
		before.Close()
	}
	r := newReceiver(b, hello.GetIncarnation())
	r.peer.Receive(now)
	b.peers[hello.GetIncarnation()] = r
	b.updatePlace()
	return r, nil
}

// Expire drops the state of peers without an update for load.PeerFresh, and ends assumptions that last too long. Call it
// now and then; the loads of silent peers stop counting without it.
func (b *Inbox) Expire(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for incarnation, r := range b.peers {
		switch fresh := r.peer.Fresh(now); {
		case r.expire(now, fresh):
			b.expired.Add(1)
			fallthrough
		case !fresh && r.ended():
			delete(b.peers, incarnation)
		}
	}
	b.updatePlace()
}

// Stats are what an inbox has seen.
type Stats struct {
	// Fresh is the number of peers with a recent update; Staleness is the age of the oldest update among them.
	Fresh     int
	Staleness time.Duration
	// Messages were taken; PassedOver of them were duplicates; Expired counts the peers that were dropped.
	Messages, PassedOver, Expired uint64
	// Assumptions by what became of them, and how many guesses are there now, with the bytes that they are counted with.
	Assumptions    [NumRefusals]uint64
	Guesses, Bytes int
}

// Stats reads the counters.
func (b *Inbox) Stats(now time.Time) Stats {
	s := Stats{Messages: b.messages.Load(), PassedOver: b.passedOver.Load(), Expired: b.expired.Load()}
	for i := range s.Assumptions {
		s.Assumptions[i] = b.assumptions[i].Load()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.peers {
		if r.peer.Fresh(now) {
			s.Fresh++
			s.Staleness = max(s.Staleness, now.Sub(r.peer.LastReceived()))
		}
		r.mu.Lock()
		s.Guesses += len(r.guesses)
		s.Bytes += r.bytes
		r.mu.Unlock()
	}
	return s
}

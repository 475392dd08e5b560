package replicas

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/load"
	pb "github.com/kvasir-dev/kvasir/internal/peerpb"
	"github.com/kvasir-dev/kvasir/internal/routinghistory"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// Protocol is the version of both sides.
const Protocol = 1

// Oldest is the oldest protocol that this side also speaks. A release that raises Protocol keeps the one before it, and says so in
// the field oldest of its first message, so that neighbouring releases work together in every order. Both sides then use the
// newest protocol that both speak.
const Oldest = 1

// Understood reports whether a peer that speaks protocol, and all before it down to oldest (0 for none), can be understood.
func Understood(protocol, oldest uint32) bool {
	if oldest == 0 {
		oldest = protocol
	}
	return oldest <= Protocol && protocol >= Oldest
}

const (
	// Gather is the least time between two updates while a picker has few peers. From gatherPeers on it grows with their
	// number, up to maxGather, so that the cost of the updates does not.
	Gather      = 5 * time.Millisecond
	gatherPeers = 4
	maxGather   = 50 * time.Millisecond
	// Beat is the most time between two full updates.
	Beat = 500 * time.Millisecond
	// maxUpdate is about how many bytes of assumptions there are in one update.
	maxUpdate = 256 << 10
)

// Loads calls f for every endpoint of every pool (namespace/name).
type Loads func(f func(pool string, id endpoint.ID, t *load.Tracker))

// Meters calls f for every pool (namespace/name) that has tenants or a queue.
type Meters func(f func(pool string, m *tenant.Meters))

// Homes calls f for every pool (namespace/name): where the requests of its sessions went.
type Homes func(f func(pool string, s *routinghistory.Sessions))

// maxUsages bounds the tenants in one update, maxHomes the sessions, with about 28 bytes each.
const (
	maxUsages = 1024
	maxHomes  = 4096
)

// Sender sends one peer what an outbox has. It has no clock and no socket. It is safe for concurrent use.
type Sender struct {
	outbox *Outbox
	loads  Loads
	meters Meters // nil without
	homes  Homes  // nil without
	bell   chan struct{}
	dirty  atomic.Bool

	next uint64 // next event to send, guarded by the outbox's mu

	mu        sync.Mutex // guards what follows
	hello     bool       // was said
	seq       uint64
	sent      time.Time // last update
	full      time.Time // when the next full one is due
	closed    bool
	published map[*load.Tracker]uint64 // versions of shares
	spent     map[*tenant.Meters]progress
	put       map[*routinghistory.Sessions]homesProgress
}

// homesProgress is that of the sessions of a pool. What was learned from other peers is sent too if it is not later than the
// change known, the last one when the stream began.
type homesProgress struct {
	progress
	known uint64
}

// progress is the last change of a pool's meters or sessions that was sent to a peer. fulls are its values at the
// last two full updates, the older one first: later changes are sent again, in case an update was lost.
type progress struct {
	upTo  uint64
	fulls [2]uint64
}

// rewind goes back to the full update before the last one.
func (p *progress) rewind() { p.upTo, p.fulls = p.fulls[0], [2]uint64{p.fulls[1], p.upTo} }

// NewSender returns a sender for a stream that has just been opened. It must be closed.
func NewSender(o *Outbox, loads Loads) *Sender {
	s := &Sender{outbox: o, loads: loads, bell: make(chan struct{}, 1), published: map[*load.Tracker]uint64{}}
	o.enter(s)
	return s
}

// SendMeters makes the sender send the state of tenants too. Call it before Next.
func (s *Sender) SendMeters(meters Meters) { s.meters, s.spent = meters, map[*tenant.Meters]progress{} }

// SendHomes makes the sender send the homes of sessions too. Call it before Next.
func (s *Sender) SendHomes(homes Homes) {
	s.homes, s.put = homes, map[*routinghistory.Sessions]homesProgress{}
}

// Close releases what the sender uses. Next returns nothing afterwards.
func (s *Sender) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.outbox.leave(s)
	}
}

// Bell holds a token when Next might have a message before the time that it returned.
func (s *Sender) Bell() <-chan struct{} { return s.bell }

func (s *Sender) ring() {
	if s.dirty.Swap(true) {
		return
	}
	select {
	case s.bell <- struct{}{}:
	default:
	}
}

// Next returns the message to send now, nil for none, and when to call again even if the bell does not ring.
func (s *Sender) Next(now time.Time) (m *pb.PeerMessage, wake time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	full := !now.Before(s.full)
	switch {
	case s.closed:
		return nil, now.Add(Beat)
	case !s.hello:
		s.hello = true
		return &pb.PeerMessage{Kind: &pb.PeerMessage_Hello{Hello: &pb.Hello{Protocol: Protocol, Incarnation: s.outbox.incarnation}}}, now
	case !full && !s.dirty.Load():
		return nil, s.full
	}
	if next := s.sent.Add(s.outbox.gather()); !full && now.Before(next) {
		return nil, next
	}
	s.dirty.Store(false)
	u := &pb.Update{Seq: s.seq + 1, Full: full}
	s.addLoads(u, now)
	more := s.addUsages(u)
	more = s.addHomes(u, now) || more
	if s.outbox.take(s, u, now) || more {
		s.dirty.Store(true)
	}
	if full {
		s.full = now.Add(Beat)
	} else if len(u.Loads)+len(u.Assumptions)+len(u.Withdrawn)+len(u.Usages)+len(u.Homes)+len(u.Routed) == 0 && !u.Forget {
		return nil, s.full
	}
	s.seq, s.sent = u.Seq, now
	wake = s.full
	if s.dirty.Load() {
		wake = now.Add(s.outbox.gather())
	}
	return &pb.PeerMessage{Kind: &pb.PeerMessage_Update{Update: u}}, wake
}

// gather is the least time between two updates of one sender.
func (o *Outbox) gather() time.Duration {
	n := (len(*o.senders.Load()) + gatherPeers - 1) / gatherPeers
	return min(maxGather, Gather*time.Duration(max(1, n)))
}

// addLoads adds the shares that were not sent to the peer yet; all shares that are not idle if the update is full.
func (s *Sender) addLoads(u *pb.Update, now time.Time) {
	told := s.published
	if u.Full {
		told = make(map[*load.Tracker]uint64, len(s.published)) // without removed ones
	}
	s.loads(func(pool string, id endpoint.ID, t *load.Tracker) {
		share, version := t.Share(now)
		before, known := s.published[t]
		told[t] = version
		if u.Full && share.Idle() || !u.Full && known && before == version || !known && share.Idle() {
			return
		}
		u.Loads = append(u.Loads, loadMessage(pool, id, &share, now))
	})
	s.published = told
}

// addUsages adds what tenants have used since the last update to the peer. It returns whether there is more.
func (s *Sender) addUsages(u *pb.Update) (more bool) {
	if s.meters == nil {
		return false
	}
	s.meters(func(pool string, m *tenant.Meters) {
		at := s.spent[m]
		if u.Full {
			at.rewind()
		}
		upTo, rest := m.Since(at.upTo, maxUsages-len(u.Usages), func(name string, use tenant.Usage) {
			u.Usages = append(u.Usages, &pb.Usage{
				Pool: pool, Tenant: name, Requests: use.Requests, Tokens: use.Tokens, UnderWay: uint32(max(0, use.UnderWay)),
				RequestsLeft: use.RequestsLeft, TokensLeft: use.TokensLeft, Queued: queuedMessages(use.Queued),
			})
		})
		at.upTo, more = upTo, more || rest
		s.spent[m] = at
	})
	return more
}

func queuedMessages(list []tenant.Queued) (out []*pb.Queued) {
	for _, x := range list {
		out = append(out, &pb.Queued{Level: int32(x.Level), Served: x.Served, Waiting: x.Waiting})
	}
	return out
}

// addHomes adds where the requests of sessions went since the last update to the peer. It returns whether there is more.
func (s *Sender) addHomes(u *pb.Update, now time.Time) (more bool) {
	if s.homes == nil {
		return false
	}
	put, left := make(map[*routinghistory.Sessions]homesProgress, len(s.put)), maxHomes // without removed pools
	s.homes(func(pool string, sessions *routinghistory.Sessions) {
		at, begun := s.put[sessions]
		if !begun {
			at.known = sessions.Changes()
		}
		if u.Full {
			at.rewind()
		}
		h := &pb.Homes{Pool: pool}
		upTo, rest := sessions.Since(at.upTo, at.known, left, now, func(session uint64, home routinghistory.Home) {
			idle := min(max(0, now.Sub(home.Used)), maxIdle)
			h.Sessions, h.Endpoints = append(h.Sessions, session), append(h.Endpoints, home.Endpoint)
			h.IdleMilliseconds, h.Stamps = append(h.IdleMilliseconds, uint32(idle.Milliseconds())), append(h.Stamps, home.Stamp)
		})
		if len(h.Sessions) > 0 {
			u.Homes = append(u.Homes, h)
			left -= len(h.Sessions)
		}
		at.upTo, more = upTo, more || rest
		put[sessions] = at
	})
	s.put = put
	return more
}

func loadMessage(pool string, id endpoint.ID, s *load.Share, now time.Time) *pb.Load {
	return &pb.Load{
		Pool: pool, Pod: id.Pod, Rank: uint32(id.Rank),
		InFlight: uint32(s.InFlight), Decoding: uint32(s.Decoding),
		PendingTokens: uint64(s.PendingTokens), HeadTokens: uint64(s.HeadTokens),
		HeadAgeMicroseconds: age(now, s.HeadStart), EndAgeMicroseconds: age(now, s.LastEnd),
		Pending: workMessage(s.Pending), Head: workMessage(s.Head), DecodingTokens: uint64(max(0, s.DecodingTokens)),
	}
}

// workMessage is nil for no work.
func workMessage(w load.Work) *pb.Work {
	if w == (load.Work{}) {
		return nil
	}
	return &pb.Work{Tokens: uint64(w.Tokens), Pairs: w.Pairs, Context: uint64(w.Context)}
}

// age in microseconds, at least 1; 0 for never.
func age(now, then time.Time) uint64 {
	if then.IsZero() {
		return 0
	}
	return uint64(max(1, now.Sub(then).Microseconds()))
}

// take adds what was assumed and withdrawn since the sender was asked last. It returns whether there is more.
func (o *Outbox) take(s *Sender, u *pb.Update, now time.Time) (more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s.next < o.first {
		u.Forget, s.next = true, o.first
	}
	start, end, bytes := s.next, o.first+uint64(len(o.events)), 0
	for ; s.next < end && bytes < maxUpdate; s.next++ {
		e := &o.events[s.next-o.first]
		switch {
		case e.routed != nil:
			u.Routed = append(u.Routed, e.routed.Message())
			bytes += e.size()
		case e.end && e.number < start:
			u.Withdrawn = append(u.Withdrawn, e.id)
		case !e.end && !e.ended && e.Until.After(now):
			u.Assumptions = append(u.Assumptions, e.message(now))
			bytes += e.size()
		}
	}
	o.trim()
	return s.next < end
}

// Message is r for peers.
func (r *Routed) Message() *pb.Routed {
	chunks := make([]uint64, len(r.Chunks))
	for i, chunk := range r.Chunks {
		chunks[i] = uint64(chunk)
	}
	return &pb.Routed{
		Pool: r.Pool, KeyId: r.KeyID, ChunkBytes: uint32(r.ChunkBytes), MostChunks: uint32(r.MostChunks),
		Pod: r.Endpoint.Pod, Rank: uint32(r.Endpoint.Rank), Chunks: chunks,
	}
}

func (a *Assumption) message(now time.Time) *pb.Assumption {
	keys := make([]uint64, len(a.Keys))
	for i, key := range a.Keys {
		keys[i] = uint64(key)
	}
	return &pb.Assumption{
		Id: a.id, Pool: a.Pool, KeyId: a.KeyID, BlockTokens: uint32(a.BlockTokens), Pod: a.Endpoint.Pod, Rank: uint32(a.Endpoint.Rank),
		Keys: keys, LifeMilliseconds: uint32(min(a.Until.Sub(now), maxLife).Milliseconds()) + 1,
	}
}

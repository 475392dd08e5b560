package replicas

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
	pb "github.com/kvasir-dev/kvasir/internal/peerpb"
	"github.com/kvasir-dev/kvasir/internal/routinghistory"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// Bounds on what a peer can send.
const (
	// maxLoads bounds the endpoints in an update, maxName the bytes of a name.
	maxLoads = 1 << 16
	maxName  = 512
	maxRank  = 1 << 16
	// maxRequests, maxTokens and maxPairs bound the counters of one endpoint, maxAge the ages.
	maxRequests = 1 << 24
	maxTokens   = 1 << 40
	maxPairs    = 1 << 60
	maxAge      = time.Hour
	// maxLife bounds how long something can be assumed, maxGuessBytes what one peer can assume at a time.
	maxLife       = time.Hour
	maxGuessBytes = 16 << 20
	// maxIdle bounds how long ago a session's last request was sent.
	maxIdle = 24 * time.Hour
	// sweepEvery is the precision of the end of assumptions that are not withdrawn.
	sweepEvery = 250 * time.Millisecond
)

// ErrClosed is returned when the same peer has opened another stream.
var ErrClosed = errors.New("the peer has opened another stream")

// Receiver applies what one peer sends over one stream. It is safe for concurrent use.
type Receiver struct {
	inbox *Inbox
	peer  *load.Peer
	life  uint64

	mu      sync.Mutex // guards what follows
	seq     uint64
	named   map[name]naming
	guesses map[uint64]guess
	bytes   int // of the guesses
	swept   time.Time
	metered bool // an update of tenants arrived
	lost    bool // the stream has ended
	closed  bool // and nothing is left of it
}

// name of an endpoint in a pool.
type name struct {
	pool string
	id   endpoint.ID
}

// naming is an endpoint that the peer has given something, and in which update it was said last.
type naming struct {
	tracker *load.Tracker
	seq     uint64
}

type guess struct {
	*kvindex.Guess
	until time.Time
	bytes int
}

func newReceiver(b *Inbox, life uint64) *Receiver {
	return &Receiver{inbox: b, life: life, peer: &load.Peer{}, named: map[name]naming{}, guesses: map[uint64]guess{}}
}

// Handle takes a message. An error means that the stream cannot be used any more.
func (r *Receiver) Handle(now time.Time, m *pb.PeerMessage) error {
	u := m.GetUpdate()
	if u == nil {
		return errors.New("not an update")
	}
	if err := check(u); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	r.inbox.messages.Add(1)
	if u.GetSeq() <= r.seq {
		r.inbox.passedOver.Add(1)
		return nil
	}
	r.seq = u.GetSeq()
	r.peer.Receive(now)
	r.takeLoads(now, u)
	r.takeUsages(now, u)
	r.takeHomes(now, u)
	r.takeRouted(u)
	if u.GetForget() {
		r.withdrawAll()
	}
	for _, id := range u.GetWithdrawn() {
		r.withdraw(id)
	}
	for _, a := range u.GetAssumptions() {
		r.inbox.assumptions[r.assume(now, a)].Add(1)
	}
	r.sweep(now)
	return nil
}

// check refuses what no picker sends.
func check(u *pb.Update) error {
	if len(u.GetLoads()) > maxLoads {
		return fmt.Errorf("%d loads in an update", len(u.GetLoads()))
	}
	for _, l := range u.GetLoads() {
		switch {
		case len(l.GetPool()) > maxName || len(l.GetPod()) > maxName || l.GetRank() > maxRank:
			return errors.New("a load of no endpoint")
		case l.GetInFlight() > maxRequests || l.GetDecoding() > l.GetInFlight() || l.GetPendingTokens() > maxTokens ||
			l.GetHeadTokens() > l.GetPendingTokens():
			return errors.New("an impossible load")
		case impossible(l.GetPending()) || impossible(l.GetHead()) || l.GetDecodingTokens() > maxTokens:
			return errors.New("impossible work")
		}
	}
	if len(u.GetUsages()) > maxUsages {
		return fmt.Errorf("%d tenants in an update", len(u.GetUsages()))
	}
	for _, x := range u.GetUsages() {
		if len(x.GetPool()) > maxName || len(x.GetTenant()) > tenant.MaxName || x.GetUnderWay() > maxRequests ||
			math.IsNaN(x.GetRequestsLeft()) || math.IsNaN(x.GetTokensLeft()) || len(x.GetQueued()) > tenant.MaxQueued {
			return errors.New("an impossible usage")
		}
	}
	homes := 0
	for _, h := range u.GetHomes() {
		n := len(h.GetSessions())
		stamps := len(h.GetStamps())
		if len(h.GetPool()) > maxName || len(h.GetEndpoints()) != n || len(h.GetIdleMilliseconds()) != n || stamps != 0 && stamps != n {
			return errors.New("homes of no sessions")
		}
		homes += n
	}
	if homes > maxHomes {
		return fmt.Errorf("%d sessions in an update", homes)
	}
	for _, x := range u.GetRouted() {
		if err := checkRouted(x); err != nil {
			return err
		}
	}
	for _, a := range u.GetAssumptions() {
		if len(a.GetPool()) > maxName || len(a.GetPod()) > maxName || a.GetRank() > maxRank || len(a.GetKeyId()) > maxName ||
			len(a.GetKeys()) > MaxKeys || a.GetId() == 0 {
			return errors.New("an impossible assumption")
		}
	}
	return nil
}

// impossible reports whether no prefills ask that of an engine.
func impossible(w *pb.Work) bool {
	return w.GetTokens() > maxTokens || w.GetContext() > maxTokens || !(w.GetPairs() >= 0 && w.GetPairs() <= maxPairs)
}

// takeLoads replaces the earlier counters with those of the update. mu is held.
func (r *Receiver) takeLoads(now time.Time, u *pb.Update) {
	for _, l := range u.GetLoads() {
		at := name{l.GetPool(), endpoint.ID{Pod: l.GetPod(), Rank: int(l.GetRank())}}
		tracker := r.inbox.pools.Tracker(at.pool, at.id)
		before, known := r.named[at]
		if known && before.tracker != tracker {
			before.tracker.Merge(r.peer, load.Share{})
			delete(r.named, at)
		}
		if tracker == nil {
			continue // it will be sent again
		}
		share := shareOf(now, l)
		tracker.Merge(r.peer, share)
		if share.Idle() {
			delete(r.named, at)
		} else {
			r.named[at] = naming{tracker, u.GetSeq()}
		}
	}
	if !u.GetFull() {
		return
	}
	for at, n := range r.named {
		if n.seq != u.GetSeq() {
			n.tracker.Merge(r.peer, load.Share{})
			delete(r.named, at)
		}
	}
}

// takeUsages passes on the usage of tenants. mu is held.
func (r *Receiver) takeUsages(now time.Time, u *pb.Update) {
	if r.inbox.tenants == nil {
		return
	}
	for _, x := range u.GetUsages() {
		r.metered = true
		r.inbox.tenants.Spent(now, x.GetPool(), r.life, x.GetTenant(), tenant.Usage{
			Requests: x.GetRequests(), Tokens: x.GetTokens(), UnderWay: int(x.GetUnderWay()),
			RequestsLeft: x.GetRequestsLeft(), TokensLeft: x.GetTokensLeft(), Queued: queuedOf(x.GetQueued()),
		})
	}
}

func queuedOf(list []*pb.Queued) (out []tenant.Queued) {
	for _, x := range list {
		out = append(out, tenant.Queued{Level: int(x.GetLevel()), Served: x.GetServed(), Waiting: x.GetWaiting()})
	}
	return out
}

// takeHomes passes on where requests of sessions went. mu is held.
func (r *Receiver) takeHomes(now time.Time, u *pb.Update) {
	for _, h := range u.GetHomes() {
		sessions := r.inbox.pools.Sessions(h.GetPool())
		if sessions == nil {
			continue
		}
		for i, session := range h.GetSessions() {
			idle := min(maxIdle, time.Duration(h.GetIdleMilliseconds()[i])*time.Millisecond)
			home := routinghistory.Home{Endpoint: h.GetEndpoints()[i], Used: now.Add(-idle)}
			if len(h.GetStamps()) > 0 {
				home.Stamp = h.GetStamps()[i]
			}
			sessions.Learn(session, home)
		}
	}
}

// takeRouted passes on which texts went where. mu is held.
func (r *Receiver) takeRouted(u *pb.Update) {
	for _, x := range u.GetRouted() {
		r.inbox.pools.Routed(routedOf(x))
	}
}

// RoutedOf is what a message says. It fails for one that no picker sends.
func RoutedOf(x *pb.Routed) (*Routed, error) {
	if err := checkRouted(x); err != nil {
		return nil, err
	}
	return routedOf(x), nil
}

func checkRouted(x *pb.Routed) error {
	if len(x.GetPool()) > maxName || len(x.GetPod()) > maxName || x.GetRank() > maxRank || len(x.GetKeyId()) > maxName ||
		len(x.GetChunks()) > MaxKeys {
		return errors.New("a request that cannot have been routed")
	}
	return nil
}

func routedOf(x *pb.Routed) *Routed {
	chunks := make([]routinghistory.Chunk, len(x.GetChunks()))
	for i, chunk := range x.GetChunks() {
		chunks[i] = routinghistory.Chunk(chunk)
	}
	return &Routed{
		Pool: x.GetPool(), Endpoint: endpoint.ID{Pod: x.GetPod(), Rank: int(x.GetRank())}, KeyID: x.GetKeyId(),
		ChunkBytes: int(x.GetChunkBytes()), MostChunks: int(x.GetMostChunks()), Chunks: chunks,
	}
}

func shareOf(now time.Time, l *pb.Load) load.Share {
	pending, head := workOf(l.GetPending()), workOf(l.GetHead())
	// The oldest request is one of those that are pending: progress with it must not be taken for progress with the work of others.
	head.Tokens, head.Pairs = min(head.Tokens, pending.Tokens), min(head.Pairs, pending.Pairs)
	head.Context = min(head.Context, pending.Context)
	return load.Share{
		InFlight: int(l.GetInFlight()), Decoding: int(l.GetDecoding()),
		PendingTokens: int(l.GetPendingTokens()), HeadTokens: int(l.GetHeadTokens()),
		HeadStart: ago(now, l.GetHeadAgeMicroseconds()), LastEnd: ago(now, l.GetEndAgeMicroseconds()),
		Pending: pending, Head: head, DecodingTokens: float64(l.GetDecodingTokens()),
	}
}

func workOf(w *pb.Work) load.Work {
	return load.Work{Tokens: float64(w.GetTokens()), Pairs: w.GetPairs(), Context: float64(w.GetContext())}
}

// ago returns the time so many microseconds ago; zero for 0.
func ago(now time.Time, microseconds uint64) time.Time {
	if microseconds == 0 {
		return time.Time{}
	}
	return now.Add(-time.Duration(min(microseconds, uint64(maxAge.Microseconds()))) * time.Microsecond)
}

// assume makes a guess of an assumption. mu is held.
func (r *Receiver) assume(now time.Time, in *pb.Assumption) Refusal {
	bytes := assumptionBytes + 8*len(in.GetKeys())
	if _, known := r.guesses[in.GetId()]; known || r.bytes+bytes > maxGuessBytes || !r.inbox.room.Take(bytes, r.bytes) {
		return NoRoom
	}
	a := &Assumption{
		Pool: in.GetPool(), Endpoint: endpoint.ID{Pod: in.GetPod(), Rank: int(in.GetRank())},
		KeyID: in.GetKeyId(), BlockTokens: int(in.GetBlockTokens()), Keys: make([]kvblock.Key, len(in.GetKeys())),
		Until: now.Add(min(maxLife, time.Duration(in.GetLifeMilliseconds())*time.Millisecond)),
	}
	for i, key := range in.GetKeys() {
		a.Keys[i] = kvblock.Key(key)
	}
	g, refusal := r.inbox.pools.Assume(a)
	if refusal != Taken {
		r.inbox.room.Put(bytes)
		return refusal
	}
	r.guesses[in.GetId()] = guess{g, a.Until, bytes}
	r.bytes += bytes
	return Taken
}

// withdraw ends a guess, if it is there. mu is held.
func (r *Receiver) withdraw(id uint64) {
	if g, ok := r.guesses[id]; ok {
		g.Withdraw()
		r.bytes -= g.bytes
		r.inbox.room.Put(g.bytes)
		delete(r.guesses, id)
	}
}

func (r *Receiver) withdrawAll() {
	for id := range r.guesses {
		r.withdraw(id)
	}
}

// sweep ends the guesses that have expired. mu is held.
func (r *Receiver) sweep(now time.Time) {
	if now.Before(r.swept.Add(sweepEvery)) {
		return
	}
	r.swept = now
	for id, g := range r.guesses {
		if now.After(g.until) {
			r.withdraw(id)
		}
	}
}

// expire sweeps, and drops the peer's state unless the peer is fresh. It returns whether there was something.
func (r *Receiver) expire(now time.Time, fresh bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if fresh {
		r.sweep(now)
		return false
	}
	return r.forget()
}

// forget removes all state of the peer. It returns whether there was something. mu is held.
func (r *Receiver) forget() bool {
	some := len(r.named)+len(r.guesses) > 0
	if r.metered {
		r.metered = false
		r.inbox.tenants.Lost(r.life)
	}
	for at, n := range r.named {
		n.tracker.Merge(r.peer, load.Share{})
		delete(r.named, at)
	}
	r.withdrawAll()
	return some
}

// Lost records that the stream has broken. Its state counts until the peer is no longer fresh, unless it reconnects
// earlier.
func (r *Receiver) Lost() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = true
}

// Close records that the peer has ended the stream: its state is forgotten.
func (r *Receiver) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget()
	r.lost, r.closed = true, true
}

func (r *Receiver) ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost
}

package load

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/monotonic"
)

// PeerFresh is how long the counters of a peer remain valid after its last update: those of a peer that has
// died or cannot be reached expire after this time. Peers send several updates in this time.
const PeerFresh = 2 * time.Second

// Peer is another picker, in one of its lives, that sends its counters. It is safe for concurrent use.
//
// Nothing here needs a network or a real clock. To run several pickers in virtual time, give each a Tracker for each
// endpoint, and a Peer for each of the others. After every change of a tracker at time t take its Share(t); at t + the
// link's delay call Hear and then Merge at the same endpoint's tracker of each other picker. A live simulated picker
// must send at least one update in PeerFresh, even without changes. (Package peer does that with the messages of the
// wire, which gather changes for some milliseconds.)
type Peer struct {
	received atomic.Int64 // of the monotonic clock; 0 for never
}

// Receive records that the peer is alive, and that its last counters are still valid.
func (p *Peer) Receive(now time.Time) { p.received.Store(monotonic.Of(now)) }

// Fresh reports whether the peer's counters count.
func (p *Peer) Fresh(now time.Time) bool {
	received := p.received.Load()
	return received != 0 && monotonic.Of(now)-received <= int64(PeerFresh)
}

// LastReceived is the time of the peer's last update.
func (p *Peer) LastReceived() time.Time { return monotonic.Time(p.received.Load()) }

// Share is what one picker has assigned to an endpoint. All values are absolute, so the last message is enough.
type Share struct {
	InFlight, Decoding int
	// PendingTokens are the uncached prompt tokens of the requests whose prefill has not ended, with the pairs that
	// attention compares by what they cost in tokens.
	PendingTokens int
	// HeadTokens is the part of the oldest of these requests, HeadStart its time.
	HeadTokens int
	HeadStart  time.Time
	// Pending and Head are the same work as it is, and DecodingTokens the prompts of the requests that decode. Older pickers send
	// none of them.
	Pending, Head  Work
	DecodingTokens float64
	// LastEnd is when a prefill ended last.
	LastEnd time.Time
}

// Idle reports whether the picker has given the endpoint nothing.
func (s *Share) Idle() bool { return s.InFlight == 0 && s.Decoding == 0 && s.PendingTokens == 0 }

// work that is pending, and that of the oldest request.
func (s *Share) work() (pending, head Work) {
	if s.Pending == (Work{}) {
		return Work{Tokens: float64(s.PendingTokens)}, Work{Tokens: float64(s.HeadTokens)}
	}
	return s.Pending, s.Head
}

// peerShare is the share of a peer. A tracker has one at most for each.
type peerShare struct {
	peer *Peer
	Share
}

// Share is this picker's own share, for its peers, and its version: when that has not changed, nor has the share.
func (t *Tracker) Share(now time.Time) (Share, uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	s := Share{
		InFlight: t.inFlight, Decoding: t.inFlight - len(t.prefilling), PendingTokens: t.asTokens(t.pending), LastEnd: t.lastEnd,
		Pending: t.pending, DecodingTokens: t.decoding,
	}
	for _, b := range t.prefilling {
		if !b.taught {
			s.HeadTokens, s.HeadStart, s.Head = t.asTokens(b.work), b.start, b.work
			break
		}
	}
	return s, t.version
}

// asTokens is work in tokens: as many as take as long.
func (t *Tracker) asTokens(w Work) int {
	speed := t.rate.speed()
	return int(math.Round(speed.Seconds(w) / speed.PerToken))
}

// Merge replaces a peer's previous share. Times in it are by this picker's clock. An idle share leaves nothing behind.
func (t *Tracker) Merge(p *Peer, s Share) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.LastEnd.After(t.peersEnd) {
		t.peersEnd = s.LastEnd
	}
	received := p.LastReceived()
	if s.PendingTokens > 0 && len(t.prefilling) == 0 && !t.peersPrefill(received) && s.HeadStart.After(t.progressed) {
		t.progressed = s.HeadStart // as in Book
	}
	for i := range t.peers {
		if t.peers[i].peer != p {
			continue
		}
		if s.Decoding < t.peers[i].Decoding && received.After(t.progressed) {
			t.progressed = received // an answer has ended
		}
		if s.Idle() {
			last := len(t.peers) - 1
			t.peers[i], t.peers[last] = t.peers[last], peerShare{}
			t.peers = t.peers[:last]
		} else {
			t.peers[i].Share = s
		}
		return
	}
	if !s.Idle() {
		t.peers = append(t.peers, peerShare{p, s})
	}
}

// peersPrefill reports whether a peer waits for a first token of the endpoint.
func (t *Tracker) peersPrefill(now time.Time) bool {
	for i := range t.peers {
		if s := &t.peers[i]; s.PendingTokens > 0 && s.peer.Fresh(now) {
			return true
		}
	}
	return false
}

// peerView sums up the requests of the peers with a recent update.
func (t *Tracker) peerView(now time.Time) (v PeerView) {
	for i := range t.peers {
		if s := &t.peers[i]; s.peer.Fresh(now) {
			v.InFlight += s.InFlight
			v.Decoding += s.Decoding
			v.DecodingTokens += s.DecodingTokens
			if s.DecodingTokens <= 0 {
				v.OfUnknownContext += s.Decoding
			}
		}
	}
	return v
}

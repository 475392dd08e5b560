package h2stream

import (
	"maps"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/kvasir-dev/kvasir/internal/gateway/accept"
)

// Floods: frames that cost the sender nothing and the server something. Every connection has credit for such frames, which
// grows with time and with the bytes of messages in both directions; a connection without credit is closed. A new connection has little
// of its own, and draws more from the savings of its address: so a client that connects again gets no more than one that stays. Gateways
// send messages, which earn more than they spend, and need no savings. In IPv6, the address is a network of 64 bits (budget.Client).
//
// Streams that a client opens and resets at once ("rapid reset", CVE-2023-44487), or makes the server reset ("made you reset",
// CVE-2025-8671), are counted as Envoy does since 1.27.1, and for all connections of an address together. While most streams of an
// address are reset, each of its connections ends as soon as most of its own streams are, after fewer streams than otherwise. The
// connection of a gateway at the same address stays, because most of its streams are not reset.

const (
	// firstCredit is what a connection begins with, maxCredit the most that it, and its address, save up; creditPerSecond and creditPerData
	// are what a connection, and its address, gets each second, and a connection for each frame of a message.
	firstCredit     = 1000
	maxCredit       = 10_000
	creditPerSecond = 100
	creditPerData   = 20
	// lateCost is what a header costs, or data below lateData bytes, of a stream that is over. What a client has sent before it knew
	// that is mostly in full frames.
	lateCost, lateData = 10, 1 << 10
	// walkShare of the streams that a setting concerns are paid for.
	walkShare = 16
	// A header costs manyCost for each field beyond accept.FreeFields: a field takes as little as a byte of the connection, and some hundred
	// nanoseconds of the server. Gateways send about 20.
	manyCost = 4

	// prematureLife is how long a stream must live, or be answered, not to count as reset prematurely. When of at least
	// fewResets streams that have ended more than half did, the connection is.
	prematureLife = time.Second
	fewResets     = 500
	// fewOwnResets replaces fewResets for the connections of an address that has sent a flood. livesForget is how long it takes to
	// forget half of an address's streams.
	fewOwnResets = 20
	livesForget  = 10 * time.Second
)

var errFlood = http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)

// credit is what a connection can still send of frames that bring nothing. Only the reading goroutine spends.
type credit struct {
	left    int
	at      time.Time // when time was last counted
	savings *savings
	network string
}

// spend pays for a frame, and fails when the client has nothing left.
func (c *credit) spend(n int) error {
	if c.left -= n; c.left >= 0 {
		return nil
	}
	now := time.Now()
	if more := int(now.Sub(c.at).Seconds() * creditPerSecond); more > 0 {
		c.left, c.at = min(maxCredit, c.left+more), now
	}
	if c.left < 0 {
		c.left += c.savings.draw(c.network, firstCredit-c.left, now)
	}
	if c.left < 0 {
		return errFlood
	}
	return nil
}

// earn is for frames that bring something.
func (c *credit) earn(n int) { c.left = min(maxCredit, c.left+n) }

// addresses is what is kept of a bounded number of addresses.
type addresses[T any] struct {
	mu    sync.Mutex
	of    map[string]T // guarded by mu
	most  int          // of addresses
	swept time.Time    // guarded by mu
}

// mostAddresses bounds the addresses in a table, sweepEvery how often a full table is searched for some to forget.
const (
	mostAddresses = 4096
	sweepEvery    = 10 * time.Second
)

func newAddresses[T any]() addresses[T] { return addresses[T]{of: map[string]T{}, most: mostAddresses} }

// room reports whether there is room for another address, once those are forgotten that are over. mu is held.
func (a *addresses[T]) room(now time.Time, over func(T) bool) bool {
	if len(a.of) >= a.most && now.Sub(a.swept) >= sweepEvery {
		a.swept = now
		maps.DeleteFunc(a.of, func(_ string, one T) bool { return over(one) })
	}
	return len(a.of) < a.most
}

// savings are the credits of addresses, from which their connections draw. An address that is not in it has maxCredit, or
// none while there is no room for it. It is safe for concurrent use.
type savings struct{ addresses[saved] }

type saved struct {
	left int
	at   time.Time
}

func newSavings() *savings { return &savings{newAddresses[saved]()} }

// draw takes up to n of an address's credit, and returns how much.
func (s *savings) draw(network string, n int, now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, known := s.of[network]
	if !known {
		if !s.room(now, func(other saved) bool { return other.grown(now) == maxCredit }) {
			return 0
		}
		one = saved{maxCredit, now}
	}
	have := one.grown(now)
	n = min(n, have)
	if n > 0 {
		s.of[network] = saved{have - n, now}
	}
	return n
}

// grown is the credit at now.
func (s saved) grown(now time.Time) int {
	return min(maxCredit, s.left+int(now.Sub(s.at).Seconds()*creditPerSecond))
}

// lives counts the streams that have ended, and those of them that were reset prematurely.
type lives struct{ ended, premature int }

// flood reports whether too many of at least few streams were reset prematurely.
func (l *lives) flood(few int) bool { return l.ended >= few && 2*l.premature > l.ended }

// end notes a stream that has ended. What was long ago counts less and less.
func (l *lives) end() {
	if l.ended++; l.ended >= 4*fewResets {
		l.halve()
	}
}

func (l *lives) halve() { l.ended, l.premature = l.ended/2, l.premature/2 }

// neighbors are the lives of the streams of addresses. Those of an address are not counted while there is no room for it. It is safe for
// concurrent use.
type neighbors struct{ addresses[*addressLives] }

type addressLives struct {
	lives
	at time.Time // half was forgotten
}

func newNeighbors() *neighbors { return &neighbors{newAddresses[*addressLives]()} }

// end notes a stream of an address that has ended.
func (n *neighbors) end(network string, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	one := n.of[network]
	if one == nil {
		if !n.room(now, func(other *addressLives) bool { return other.forget(now).ended == 0 }) {
			return
		}
		one = &addressLives{at: now}
		n.of[network] = one
	}
	one.forget(now).end()
}

// reset notes that a stream of an address that has ended was reset prematurely, and reports whether too many were.
func (n *neighbors) reset(network string, now time.Time) (flood bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	one := n.of[network]
	if one == nil {
		return false
	}
	one.forget(now).premature++
	return one.flood(fewResets)
}

// forget halves the counts as often as it was due.
func (a *addressLives) forget(now time.Time) *addressLives {
	for ; now.Sub(a.at) >= livesForget; a.at = a.at.Add(livesForget) {
		if a.ended == 0 {
			a.premature, a.at = 0, now
			break
		}
		a.halve()
	}
	return a
}

// endLife notes a stream that has ended. mu is held.
func (c *connection) endLife() {
	c.lives.end()
	c.server.neighbors.end(c.network, time.Now())
}

// resetLife notes that a stream that has ended was reset prematurely, by the client or because of it, and reports whether too many
// were. mu is held.
func (c *connection) resetLife() (flood bool) {
	c.lives.premature++
	few := fewResets
	if c.server.neighbors.reset(c.network, time.Now()) {
		few = fewOwnResets
	}
	return c.lives.flood(few)
}

// costOf is what a frame costs that brings nothing, besides what it has the server do. For one that brings something it is
// negative.
func costOf(f http2.Frame) int {
	switch f := f.(type) {
	case *http2.DataFrame:
		if len(f.Data()) > 0 {
			return -creditPerData
		}
		return 1
	case *http2.SettingsFrame:
		return 10
	case *http2.MetaHeadersFrame:
		return manyCost * max(0, len(f.Fields)-accept.FreeFields)
	}
	return 1 // ping, priority, window, reset, and unknown types
}

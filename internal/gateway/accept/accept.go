// Package accept bounds the connections of a listener, so that clients leave descriptors and memory for others.
package accept

import (
	"crypto/tls"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/overload"
)

// Cost is about what a connection takes while it is idle, in bytes: buffers, a goroutine and its stack.
const Cost = 16 << 10

// Listener bounds connections: to a number (one network can have as many as are free), and to what the budget has memory for. Without
// it clients could use up the descriptors that health checks and connections to engines need. If there is no room for a new connection,
// idle ones of networks that have more are closed for it (shed.go). If none can be closed, the new connection
// is closed at once.
//
// A network is what budget.Client says: an IPv4 address, or 64 bits of IPv6.
type Listener struct {
	net.Listener
	most   int
	budget *budget.Budget // nil for none
	// headers: connections account for the headers of HTTP requests.
	headers bool
	// each is how many bytes the headers of one connection can take; 0 for no limit.
	each int64
	// shedsBusy: connections at work are closed, too, if none is idle.
	shedsBusy bool
	// overloaded reports whether new connections are closed; nil for never. port counts what is closed.
	overloaded *overload.Manager
	port       *overload.Port
	// handshakes and config are those of TLS; nil without.
	handshakes *Handshakes
	config     *tls.Config

	// arrivals is how many connections were accepted: the clock by which connections are idle.
	arrivals atomic.Int64

	mu       sync.Mutex
	conns    map[*Conn]struct{}
	networks map[string]*network // that have connections
	// inVain is when there was last nothing to shed.
	inVain time.Time
	// pacers are the credits of networks that have connections, or debt; all is that of all networks together.
	pacers map[string]*pacer
	all    pacer
}

// network is what a Listener knows of the connections of a network.
type network struct {
	conns int
	// inVain is when there was last nothing to shed for it.
	inVain time.Time
}

// Limit accepts at most so many connections of l at once. Each takes Cost bytes of the budget, unless that is nil.
func Limit(l net.Listener, most int, b *budget.Budget) *Listener {
	return &Listener{Listener: l, most: most, budget: b, port: new(overload.Port), conns: map[*Conn]struct{}{},
		networks: map[string]*network{}, pacers: map[string]*pacer{}, all: pacer{times: allAddresses}}
}

// LimitHTTP is Limit for a server of HTTP. The headers of requests draw on the budget, too: while they arrive by what is read of
// them, and then by Conn.Begin.
func LimitHTTP(l net.Listener, most int, b *budget.Budget) *Listener {
	limited := Limit(l, most, b)
	limited.headers = b != nil
	return limited
}

// During closes new connections while a manager says so.
func (l *Listener) During(m *overload.Manager) *Listener {
	l.overloaded = m
	return l
}

// Counting counts in p what is closed because there was no room; nil for no count.
func (l *Listener) Counting(p *overload.Port) *Listener {
	if p != nil {
		l.port = p
	}
	return l
}

// Dividing gives each connection the same part of a budget that is the listener's alone, of so many bytes: so none can take what another
// needs.
func (l *Listener) Dividing(bytes int64) *Listener {
	l.each = max(1, bytes/int64(l.most)-Cost)
	return l
}

// SheddingBusy lets connections at work be closed for new ones, too, if none is idle: for servers whose answers take little time.
func (l *Listener) SheddingBusy() *Listener {
	l.shedsBusy = true
	return l
}

// Accept waits for a connection for which there is room.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if admitted := l.admit(conn); admitted != nil {
			return admitted, nil
		}
		_ = conn.Close()
	}
}

// admit counts a connection; nil when there is no room for it.
func (l *Listener) admit(conn net.Conn) *Conn {
	if l.overloaded.Refuses(overload.Connections) { // which counts it
		return nil
	}
	address := conn.RemoteAddr().String()
	owner := budget.Client(address)
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.networks[owner]
	if n == nil {
		n = new(network)
	}
	if n.conns >= l.most-len(l.conns) && !l.makeRoom(owner, n) {
		l.port.TurnAway()
		return nil
	}
	c := &Conn{Conn: conn, listener: l, owner: owner, address: address, headers: l.headers, reading: l.headers,
		closed: make(chan struct{}), pacer: l.pacerOf(owner), all: &l.all}
	if l.budget != nil {
		c.account = l.budget.Open(budget.Connections, owner, address, nil)
		if !c.account.Take(l.cost()) {
			c.account.Close()
			l.port.TurnAway()
			return nil
		}
	}
	if l.handshakes != nil {
		l.secure(c)
	}
	c.used.Store(l.arrivals.Add(1))
	l.conns[c] = struct{}{}
	n.conns++
	l.networks[owner] = n
	return c
}

// cost of a connection, in bytes.
func (l *Listener) cost() int64 {
	if l.handshakes != nil {
		return Cost + SecureCost
	}
	return Cost
}

// forget stops counting a connection. l.mu is held.
func (l *Listener) forget(c *Conn) {
	if _, counted := l.conns[c]; !counted {
		return
	}
	delete(l.conns, c)
	close(c.closed)
	c.account.Close()
	n := l.networks[c.owner]
	if n.conns--; n.conns == 0 {
		delete(l.networks, c.owner)
	}
}

// manyPacers is how many credits there are at least before those without connections are looked through.
const manyPacers = 256

// pacerOf returns the credit of a network. l.mu is held.
func (l *Listener) pacerOf(owner string) *pacer {
	if p := l.pacers[owner]; p != nil {
		return p
	}
	if len(l.pacers) > 2*len(l.networks)+manyPacers {
		now := time.Now()
		maps.DeleteFunc(l.pacers, func(owner string, p *pacer) bool { return l.networks[owner] == nil && p.even(now) })
	}
	p := &pacer{times: 1}
	l.pacers[owner] = p
	return p
}

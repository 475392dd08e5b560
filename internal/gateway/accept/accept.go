// Package accept bounds the connections of a listener, so that clients leave descriptors and memory for others.
package accept

import (
	"maps"
	"net"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/overload"
)

// Cost is about what a connection takes while it is idle, in bytes: buffers, a goroutine and its stack.
const Cost = 16 << 10

// Listener closes connections for which there is no room at once: more than a number (one address can have as many as
// are free), or more than the budget has memory for. Without it clients could use up the descriptors that health checks
// and connections to engines need.
type Listener struct {
	net.Listener
	most   int
	budget *budget.Budget // nil for none
	// headers: connections account for the headers of HTTP requests.
	headers bool
	// overloaded reports whether new connections are closed; nil for never.
	overloaded *overload.Manager

	mu    sync.Mutex
	open  int
	hosts map[string]int // connections by address
	// pacers are the credits of addresses that have connections, or debt; all is that of all addresses together.
	pacers map[string]*pacer
	all    pacer
	// turnedAway is how many connections were closed.
	turnedAway int
}

// Limit accepts at most so many connections of l at once. Each takes Cost bytes of the budget, unless that is nil.
func Limit(l net.Listener, most int, b *budget.Budget) *Listener {
	return &Listener{Listener: l, most: most, budget: b, hosts: map[string]int{}, pacers: map[string]*pacer{}, all: pacer{times: allAddresses}}
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
	address := conn.RemoteAddr().String()
	host := budget.Host(address)
	short := l.overloaded.Refuses(overload.Connections)
	l.mu.Lock()
	defer l.mu.Unlock()
	if short || l.hosts[host] >= l.most-l.open {
		l.turnedAway++
		return nil
	}
	var account *budget.Account
	if l.budget != nil {
		account = l.budget.Open(budget.Connections, host, address, nil)
		if !account.Take(Cost) {
			account.Close()
			l.turnedAway++
			return nil
		}
	}
	l.open++
	l.hosts[host]++
	closed := make(chan struct{})
	leave := sync.OnceFunc(func() {
		close(closed)
		account.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open--
		if l.hosts[host]--; l.hosts[host] == 0 {
			delete(l.hosts, host)
		}
	})
	return &Conn{Conn: conn, account: account, headers: l.headers, reading: l.headers, closed: closed, pacer: l.pacerOf(host), all: &l.all,
		leave: leave}
}

// manyPacers is how many credits there are at least before those without connections are looked through.
const manyPacers = 256

// pacerOf returns the credit of an address. l.mu is held.
func (l *Listener) pacerOf(host string) *pacer {
	if p := l.pacers[host]; p != nil {
		return p
	}
	if len(l.pacers) > 2*len(l.hosts)+manyPacers {
		now := time.Now()
		maps.DeleteFunc(l.pacers, func(host string, p *pacer) bool { return l.hosts[host] == 0 && p.even(now) })
	}
	p := &pacer{times: 1}
	l.pacers[host] = p
	return p
}

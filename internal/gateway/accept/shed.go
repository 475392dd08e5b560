package accept

import (
	"cmp"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// A connection is at work while a request or stream of it is under way, and idle otherwise: before its first request is complete, and
// between requests. If there is no room for a new connection, the listener closes idle ones. It begins with the network that has the
// most connections, and in it with the address that has the most. Of that address, it closes the connection that has been idle for the
// longest time. Networks that have no more connections than the network of the new one keep theirs, so that a client gains nothing from
// connecting again and again.

const (
	// shedPart of all connections is closed at once, so that a flood of new ones pays for the search.
	shedPart = 32
	// searchCost is the time that a search for something to shed takes for each connection, generously. After one that found nothing
	// there is none for as long as it has cost.
	searchCost = time.Microsecond
)

// Follow is for http.Server.ConnState. It notes whether a request of a connection is under way.
func Follow(nc net.Conn, state http.ConnState) {
	c, ok := nc.(*Conn)
	if !ok {
		return
	}
	switch state {
	case http.StateActive:
		c.active.Store(true) // at work from Begin on: what has begun can be half a preface
	case http.StateIdle:
		c.rest()
	}
}

// Work notes whether requests or streams of a connection are under way. It is for servers that do not call Begin.
func (c *Conn) Work(under bool) {
	if under {
		c.active.Store(true)
		c.begun.Store(true)
	} else {
		c.rest()
	}
}

// rest notes that the connection is idle from now on.
func (c *Conn) rest() {
	c.used.Store(c.listener.arrivals.Load())
	c.active.Store(false)
	c.begun.Store(false)
}

func (c *Conn) atWork() bool { return c.active.Load() && c.begun.Load() }

// Stream notes that a stream of the connection from an address is under way, until end is called. Servers that do not show their
// connections use it in place of Work.
func (l *Listener) Stream(remote net.Addr) (end func()) {
	address := remote.String()
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		if c.address != address {
			continue
		}
		c.streams++
		c.Work(true)
		return func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if c.streams--; c.streams == 0 {
				c.rest()
			}
		}
	}
	return func() {}
}

// makeRoom sheds connections for a new one of a network, and reports whether there is room for it. l.mu is held.
func (l *Listener) makeRoom(owner string, n *network) bool {
	now := time.Now()
	pause := time.Duration(l.most) * searchCost
	if now.Sub(l.inVain) < pause || now.Sub(n.inVain) < pause {
		return false
	}
	candidates := l.rank(func(c *Conn) bool { return !c.atWork() })
	victims := fair(candidates, owner, n.conns)
	if len(victims) == 0 && l.shedsBusy {
		candidates = l.rank(func(*Conn) bool { return true })
		victims = fair(candidates, owner, n.conns)
	}
	switch {
	case len(candidates) == 0:
		l.inVain = now
	case len(victims) == 0:
		n.inVain = now
	}
	victims = victims[:min(len(victims), max(1, l.most/shedPart))]
	for _, v := range victims {
		l.forget(v.conn)
		v.conn.cut()
		l.port.Shed()
	}
	return len(victims) > 0
}

// cut closes the socket, without waiting for a client that reads nothing. The server then closes the rest.
func (c *Conn) cut() {
	if encrypted, ok := c.Conn.(*tls.Conn); ok {
		_ = encrypted.NetConn().Close()
		return
	}
	_ = c.Conn.Close()
}

// candidate is a connection that can be shed. ofHost and ofNetwork are how many connections its address and network have once those are
// shed that come before it there.
type candidate struct {
	conn                    *Conn
	used, ofHost, ofNetwork int64
}

// rank returns connections in the order in which they are shed. l.mu is held.
func (l *Listener) rank(sheddable func(*Conn) bool) (all []candidate) {
	hosts := map[string]int64{}
	for c := range l.conns {
		hosts[budget.Host(c.address)]++
		if sheddable(c) {
			all = append(all, candidate{conn: c, used: c.used.Load()})
		}
	}
	oldest := func(a, b candidate) int { return cmp.Compare(a.used, b.used) }
	slices.SortFunc(all, oldest)
	for i := range all {
		host := budget.Host(all[i].conn.address)
		all[i].ofHost = hosts[host]
		hosts[host]--
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(b.ofHost, a.ofHost) })
	shed := map[string]int64{}
	for i := range all {
		owner := all[i].conn.owner
		all[i].ofNetwork = int64(l.networks[owner].conns) - shed[owner]
		shed[owner]++
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Or(cmp.Compare(b.ofNetwork, a.ofNetwork), oldest(a, b)) })
	return all
}

// fair returns those of the candidates that are shed for a connection of a network which has conns: its own, and those of networks that
// keep at least conns.
func fair(candidates []candidate, owner string, conns int) (victims []candidate) {
	for _, c := range candidates {
		if c.conn.owner == owner || c.ofNetwork > int64(conns) {
			victims = append(victims, c)
		}
	}
	return victims
}

package accept

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// from is a connection from an address.
type from struct {
	net.Conn
	address string
	closed  bool
}

func (f *from) RemoteAddr() net.Addr { return address(f.address) }
func (f *from) Close() error         { f.closed = true; return nil }

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// port is a listener whose searches are never paused.
type port struct {
	*Listener
	n int
}

func newPort(most int) *port { return &port{Listener: Limit(nil, most, budget.New(1<<30, time.Now))} }

// connect has a host connect; nil if it is turned away.
func (p *port) connect(host string) *Conn {
	p.n++
	p.inVain = time.Time{}
	for _, n := range p.networks {
		n.inVain = time.Time{}
	}
	return p.admit(&from{address: net.JoinHostPort(host, fmt.Sprint(p.n))})
}

func (c *Conn) gone() bool { return c.Conn.(*from).closed }

// TestAFullPortShedsWhatIsIdle: a host is served however many others hold idle connections.
func TestAFullPortShedsWhatIsIdle(t *testing.T) {
	for _, most := range []int{8, 128, 256} {
		for _, hosts := range []int{1, 8, 14, 600} {
			p := newPort(most)
			var all []*Conn
			for i := range 4 * most {
				if c := p.connect(fmt.Sprintf("10.0.%d.%d", i%hosts/250, i%hosts%250)); c != nil {
					all = append(all, c)
				}
			}
			for i := range 20 {
				c := p.connect("192.0.2.1")
				if c == nil {
					t.Fatalf("%d connections, %d hosts: the %dth connection of another is turned away", most, hosts, i+1)
				}
				_ = c.Close()
			}
			if len(p.conns) > most {
				t.Errorf("%d connections of %d are open", len(p.conns), most)
			}
			for _, c := range all {
				_ = c.Close()
			}
			if held := p.budget.Stats().Held; held != 0 || len(p.conns) != 0 || len(p.networks) != 0 {
				t.Errorf("%d bytes of %d connections are left", held, len(p.conns))
			}
		}
	}
}

// TestWhatIsAtWorkStays: and then new connections are turned away, and counted.
func TestWhatIsAtWorkStays(t *testing.T) {
	p := newPort(8)
	var working []*Conn
	for i := range 8 {
		c := p.connect(fmt.Sprint("10.0.0.", i))
		c.Work(true)
		working = append(working, c)
	}
	if p.connect("192.0.2.1") != nil || p.port.TurnedAway() != 1 {
		t.Errorf("a connection at work was closed for another; %d turned away", p.port.TurnedAway())
	}
	for i, want := range []int{3, 5} {
		working[want].Work(false)
		c := p.connect(fmt.Sprint("192.0.2.", i))
		if c == nil || !working[want].gone() {
			t.Fatalf("connection %d is not closed for another", want)
		}
		c.Work(true)
	}
	for i, c := range working {
		if c.gone() != (i == 3 || i == 5) {
			t.Errorf("connection %d is gone: %v", i, c.gone())
		}
	}
	p.SheddingBusy()
	if p.connect("192.0.2.9") == nil {
		t.Error("a server whose answers take little time turns a connection away")
	}
}

// TestTheNetworkWithTheMostIsShedFirst: however many addresses it has, and of it the address with the most. A host gains nothing from
// connecting more often than others.
func TestTheNetworkWithTheMostIsShedFirst(t *testing.T) {
	p := newPort(9)
	var many []*Conn
	for i := range 4 {
		many = append(many, p.connect(fmt.Sprint("2001:db8::", i+1)))
	}
	many = append(many, p.connect("2001:db8::2"))
	for _, host := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.2"} {
		p.connect(host).Work(host == "10.0.0.1")
	}
	p.connect("10.0.0.3")
	p.connect("10.0.0.4")
	if !many[1].gone() {
		t.Error("the oldest connection of the address with the most, of the network with the most, is open")
	}
	p.connect("10.0.0.5")
	if !many[0].gone() {
		t.Error("the oldest connection of the network with the most is open")
	}
	for range 20 {
		p.connect("192.0.2.1")
	}
	for _, host := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"} {
		if p.networks[host] == nil {
			t.Errorf("%s has lost all its connections to a host with more", host)
		}
	}
}

// TestConnectionsOfAServer: net/http says which are at work, and what has sent half a header, or half a preface, is not.
func TestConnectionsOfAServer(t *testing.T) {
	p := newPort(8)
	c := p.connect("10.0.0.1")
	for i, step := range []struct {
		do   func()
		want bool
	}{
		{func() { Follow(c, http.StateNew) }, false},
		{func() { Follow(c, http.StateActive) }, false},
		{func() { _, _ = c.Begin(request(1, 1)) }, true},
		{func() { Follow(c, http.StateIdle) }, false},
		{func() { _, _ = c.Begin(request(2, 1)) }, false}, // of a stream that was reset before
		{func() { Follow(c, http.StateActive) }, true},
		{func() { Follow(c, http.StateIdle) }, false},
	} {
		if step.do(); c.atWork() != step.want {
			t.Errorf("step %d: at work: %v", i, c.atWork())
		}
	}
	first, second := p.Stream(c.RemoteAddr()), p.Stream(c.RemoteAddr())
	if first(); !c.atWork() {
		t.Error("a stream is under way, and the connection is idle")
	}
	if second(); c.atWork() {
		t.Error("no stream is under way, and the connection is at work")
	}
}

// TestShedsAreFair under random clients: what is closed is idle, and of a network that keeps at least as many connections as the one has
// that connects.
func TestShedsAreFair(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		most := 4 + rng.IntN(40)
		p := newPort(most)
		var all []*Conn
		for range 200 {
			host := fmt.Sprint("10.0.0.", rng.IntN(1+rng.IntN(12)))
			before, working := map[string]int{}, map[*Conn]bool{}
			for c := range p.conns {
				before[c.owner]++
				working[c] = c.atWork()
			}
			idle := slices.Contains(slices.Collect(maps.Values(working)), false)
			c := p.connect(host)
			if c == nil && idle && before[host] == 0 {
				t.Fatal("a host without connections is turned away while others are idle")
			}
			for v, busy := range working {
				if !v.gone() {
					continue
				}
				if busy {
					t.Fatal("a connection at work is closed")
				}
				if left := p.networks[v.owner]; v.owner != host && (left == nil && before[host] > 0 || left != nil && left.conns < before[host]) {
					t.Fatalf("%s had %d connections, and one of %s was closed for it", host, before[host], v.owner)
				}
			}
			if c != nil {
				c.Work(rng.IntN(2) == 0)
				all = append(all, c)
			}
			if len(p.conns) > most {
				t.Fatalf("%d of %d connections", len(p.conns), most)
			}
			if i := rng.IntN(len(all) + 1); i < len(all) && !all[i].gone() {
				all[i].Work(rng.IntN(2) == 0)
			}
		}
	}
}

// TestNoConnectionTakesAnothersPart: headers of all others, as large as they can be, leave room for one's.
func TestNoConnectionTakesAnothersPart(t *testing.T) {
	const most, memory = 16, 1 << 20
	p := &port{Listener: LimitHTTP(nil, most, budget.NewDivided(memory, time.Now)).Dividing(memory)}
	begin := func(host string) (begun int, c *Conn) {
		c = p.connect(host)
		for range 10_000 {
			if _, room := c.Begin(request(2, 20)); !room {
				break
			}
			begun++
		}
		return begun, c
	}
	for i := range most - 1 {
		if n, c := begin(fmt.Sprint("10.0.0.", i)); n == 10_000 || c.held.Load() > memory/most {
			t.Fatalf("a connection holds %d bytes of the headers of %d requests", c.held.Load(), n)
		}
	}
	if n, _ := begin("192.0.2.1"); n == 0 {
		t.Error("there is no room for another connection's header")
	}
}

// BenchmarkFlood: a flood of connections to a full port pays little for each.
func BenchmarkFlood(b *testing.B) {
	for _, busy := range []bool{false, true} {
		b.Run(fmt.Sprint("busy=", busy), func(b *testing.B) {
			p := Limit(nil, 16<<10, nil)
			for i := range b.N + 16<<10 {
				if i == 16<<10 {
					b.ResetTimer()
				}
				if c := p.admit(&from{address: fmt.Sprintf("10.0.%d.%d:1", i>>8&255, i&255)}); c != nil {
					c.Work(busy)
				}
			}
		})
	}
}

package rpc

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/replicas"
	"github.com/kvasir-dev/kvasir/internal/routinghistory"
	"github.com/kvasir-dev/kvasir/test/dns"
)

// replica is what of a picker takes part in the exchange, on a real socket.
type replica struct {
	t       *testing.T
	addr    string
	outbox  *replicas.Outbox
	inbox   *replicas.Inbox
	service *PeerService
	mesh    *Mesh
	server  *Server
	tracker load.Tracker // of one endpoint
	index   *kvindex.Table
	holder  kvindex.Holder
	// sessions of the pool.
	sessions *routinghistory.Sessions

	stop func()
}

const meshPool = "default/m"

var meshEndpoint = endpoint.ID{Pod: "uid-1"}

func (r *replica) each(f func(string, endpoint.ID, *load.Tracker)) {
	f(meshPool, meshEndpoint, &r.tracker)
}

// Tracker implements replicas.Pools.
func (r *replica) Tracker(pool string, id endpoint.ID) *load.Tracker {
	if pool == meshPool && id == meshEndpoint {
		return &r.tracker
	}
	return nil
}

func (r *replica) homes(f func(string, *routinghistory.Sessions)) { f(meshPool, r.sessions) }

// Routed implements replicas.Pools.
func (r *replica) Routed(*replicas.Routed) {}

// Sessions implements replicas.Pools.
func (r *replica) Sessions(pool string) *routinghistory.Sessions {
	if pool == meshPool {
		return r.sessions
	}
	return nil
}

// Assume implements replicas.Pools.
func (r *replica) Assume(a *replicas.Assumption) (*kvindex.Guess, replicas.Refusal) {
	return r.index.Speculate(r.holder, a.Keys), replicas.Taken
}

func (r *replica) book() *load.Booking {
	b := r.tracker.Book(time.Now(), load.WorkOf(100, 0), true)
	r.outbox.Changed()
	return b
}

func (r *replica) release(b *load.Booking) {
	b.Release(time.Now())
	r.outbox.Changed()
}

func (r *replica) view() load.View { return r.tracker.View(time.Now()) }

// incarnations of the test's replicas.
var incarnations = struct {
	sync.Mutex
	last uint64
}{}

// newReplica listens, and serves what it receives. It sends nothing before join.
func newReplica(t *testing.T, auth Authenticator, o ServerOptions) *replica {
	t.Helper()
	incarnations.Lock()
	incarnations.last++
	r := &replica{t: t, outbox: replicas.NewOutbox(incarnations.last), index: kvindex.New(), sessions: routinghistory.NewSessions(100, time.Hour)}
	incarnations.Unlock()
	r.holder = r.index.Join()
	r.inbox = replicas.NewInbox(r, r.outbox.Incarnation())
	r.service = &PeerService{Auth: auth, Inbox: r.inbox, Incarnation: r.outbox.Incarnation()}
	o.Peers = r.service
	r.server = NewServer(o)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	var served sync.WaitGroup
	served.Go(func() {
		if err := r.server.Serve(l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { r.server.Close(); served.Wait() })
	return r
}

// join sends updates to the replicas at the addresses.
func (r *replica) join(dial DialOptions, addrs ...string) { r.joinFound(dial, List(addrs...)) }

// joinFound sends updates to the replicas that are found.
func (r *replica) joinFound(dial DialOptions, find Finder) {
	r.mesh = NewMesh(MeshOptions{
		Find: find, FindEvery: 20 * time.Millisecond, Dial: dial, Outbox: r.outbox, Loads: r.each, Inbox: r.inbox, Homes: r.homes,
		MinBackoff: 5 * time.Millisecond, MaxBackoff: 50 * time.Millisecond,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.mesh.Run(ctx) })
	r.stop = func() { cancel(); running.Wait() }
	r.t.Cleanup(r.stop)
}

// newMesh are n replicas that all know all addresses, their own too.
func newMesh(t *testing.T, n int) []*replica {
	var all []*replica
	var addrs []string
	for range n {
		r := newReplica(t, Anybody{}, ServerOptions{})
		all, addrs = append(all, r), append(addrs, r.addr)
	}
	for _, r := range all {
		r.join(DialOptions{}, addrs...)
	}
	eventually(t, "all know all others", func() bool {
		for _, r := range all {
			if r.mesh.Stats().Connected != n-1 || r.inbox.Stats(time.Now()).Fresh != n-1 {
				return false
			}
		}
		return true
	})
	return all
}

func TestReplicasSeeEachOthersCounters(t *testing.T) {
	all := newMesh(t, 3)
	var open []*load.Booking
	for i, r := range all {
		for range i + 1 {
			open = append(open, r.book())
		}
	}
	for _, r := range all {
		eventually(t, "six requests are seen", func() bool { v := r.view(); return v.InFlight == 6 && v.PendingTokens == 600 })
	}
	n := 0
	for i, r := range all {
		for range i + 1 {
			r.release(open[n])
			n++
		}
	}
	for _, r := range all {
		eventually(t, "none is seen", func() bool { v := r.view(); return v.InFlight == 0 && v.PendingTokens == 0 })
	}
	if s := all[0].inbox.Stats(time.Now()); s.PassedOver != 0 || s.Expired != 0 {
		t.Errorf("%+v", s)
	}
	sent := all[1].mesh.Stats()
	if received, refused := all[0].service.Received(); received == 0 || refused != 0 || sent.Messages == 0 || sent.Bytes == 0 {
		t.Errorf("received %d bytes, refused %d streams, sent %+v", received, refused, sent)
	}
}

func TestReplicasShareWhatTheyAssume(t *testing.T) {
	all := newMesh(t, 2)
	a := &replicas.Assumption{Pool: meshPool, Endpoint: meshEndpoint, Keys: []kvblock.Key{1, 2, 3}, Until: time.Now().Add(time.Hour)}
	all[0].outbox.Assume(a)
	guesses := func() int { _, _, n := all[1].index.Size(); return n }
	eventually(t, "the other assumes it too", func() bool { return guesses() == 3 })
	all[0].outbox.Withdraw(a)
	eventually(t, "the other has withdrawn it", func() bool { return guesses() == 0 })
}

// A replica whose process dies says nothing; its sockets close, or not even that. One that ends takes leave.
func TestTheCountersOfAReplicaGoWithIt(t *testing.T) {
	for name, end := range map[string]func(*replica){
		"killed": func(r *replica) {
			for _, l := range r.mesh.links { // the streams are not closed
				_ = l.client.conn.Close()
			}
			r.server.grpc.Stop()
		},
		"ended": func(r *replica) { r.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			all := newMesh(t, 3)
			for range 5 {
				all[0].book()
			}
			mine := all[1].book()
			for _, r := range all[1:] {
				eventually(t, "all requests are seen", func() bool { return r.view().InFlight == 6 })
			}
			end(all[0])
			for _, r := range all[1:] {
				eventually(t, "only those of the living are seen", func() bool { return r.view().InFlight == 1 })
			}
			all[1].release(mine)
			eventually(t, "none is seen", func() bool { return all[2].view().InFlight == 0 })
		})
	}
}

// TestPeersGoOnWithoutTheNameService: updates are exchanged with the known ones, and those that are gone are forgotten, while it
// fails or gives no answer at all; afterwards new ones are found.
func TestPeersGoOnWithoutTheNameService(t *testing.T) {
	names := dns.New(t)
	names.Set("peers.test.", "127.0.0.1")
	look, err := Lookup(names.Resolver(), "peers.test.:9004")
	if err != nil {
		t.Fatal(err)
	}
	var all []*replica
	for range 3 {
		all = append(all, newReplica(t, Anybody{}, ServerOptions{}))
	}
	var mu sync.Mutex
	known := []string{all[0].addr, all[1].addr, all[2].addr} // behind the name; guarded by mu
	for _, r := range all {
		r.joinFound(DialOptions{}, func(ctx context.Context) ([]string, error) {
			if _, err := look(ctx); err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(known), nil
		})
	}
	eventually(t, "all are connected", func() bool {
		return !slices.ContainsFunc(all, func(r *replica) bool { return r.mesh.Stats().Connected != 2 })
	})
	for _, fault := range []dns.Fault{dns.Failing, dns.Empty, dns.Silent} {
		names.Break(fault)
		asked := names.Asked()
		eventually(t, "all have asked", func() bool { return names.Asked() >= asked+3 })
		b := all[1].book()
		eventually(t, "a request is seen", func() bool { return all[0].view().InFlight == 1 && all[2].view().InFlight == 1 })
		all[1].release(b)
		eventually(t, "its end is seen", func() bool { return all[0].view().InFlight == 0 && all[2].view().InFlight == 0 })
	}
	all[2].book()
	eventually(t, "the last request is seen", func() bool { return all[0].view().InFlight == 1 })
	for _, l := range all[2].mesh.links { // killed: the streams are not closed
		_ = l.client.conn.Close()
	}
	all[2].server.grpc.Stop()
	eventually(t, "its state is dropped", func() bool { return all[0].inbox.Stats(time.Now()).Expired == 1 })

	another := newReplica(t, Anybody{}, ServerOptions{})
	another.join(DialOptions{})
	mu.Lock()
	known = append(known, another.addr)
	mu.Unlock()
	names.Break(dns.None)
	another.book()
	eventually(t, "a new one is found", func() bool { return another.inbox.Stats(time.Now()).Fresh >= 2 })
}

// TestDeadPeersExpireDuringALookup: a look-up that does not end keeps nothing of peers that are gone.
func TestDeadPeersExpireDuringALookup(t *testing.T) {
	a, b := newReplica(t, Anybody{}, ServerOptions{}), newReplica(t, Anybody{}, ServerOptions{})
	a.joinFound(DialOptions{}, func(ctx context.Context) ([]string, error) { <-ctx.Done(); return nil, ctx.Err() })
	b.join(DialOptions{}, a.addr)
	b.book()
	eventually(t, "a request is seen", func() bool { return a.view().InFlight == 1 })
	for _, l := range b.mesh.links {
		_ = l.client.conn.Close()
	}
	a.server.grpc.Stop()
	eventually(t, "its state is dropped", func() bool { return a.inbox.Stats(time.Now()).Expired == 1 })
}

func TestAReplicaIsToldOnceAndNeverItself(t *testing.T) {
	a, b := newReplica(t, Anybody{}, ServerOptions{}), newReplica(t, Anybody{}, ServerOptions{})
	_, port, err := net.SplitHostPort(b.addr)
	if err != nil {
		t.Fatal(err)
	}
	a.join(DialOptions{}, a.addr, b.addr, "localhost:"+port)
	eventually(t, "the other replica is connected", func() bool { return a.mesh.Stats().Connected == 1 })
	a.book()
	eventually(t, "it sees the request", func() bool { return b.view().InFlight == 1 })
	if s := a.inbox.Stats(time.Now()); s.Fresh != 0 || a.view().InFlight != 1 {
		t.Errorf("it hears itself: %+v", s)
	}
	if s := b.inbox.Stats(time.Now()); s.Fresh != 1 || b.view().InFlight != 1 {
		t.Errorf("the other hears it twice: %+v", s)
	}
}

func TestWhoIsNoPeerIsNotHeard(t *testing.T) {
	secret := func(text string) func() ([]byte, error) {
		return func() ([]byte, error) { return []byte(strings.Repeat(text, MinSecret)), nil }
	}
	r := newReplica(t, SharedSecret{Read: secret("a")}, ServerOptions{})
	wrong, without, right := newReplica(t, Anybody{}, ServerOptions{}), newReplica(t, Anybody{}, ServerOptions{}), newReplica(t, Anybody{}, ServerOptions{})
	wrong.join(DialOptions{Token: secret("b"), TokenInClear: true}, r.addr)
	without.join(DialOptions{}, r.addr)
	eventually(t, "both are refused", func() bool { _, n := r.service.Received(); return n >= 4 })
	right.join(DialOptions{Token: secret("a"), TokenInClear: true}, r.addr)
	eventually(t, "the third replica is received", func() bool { return r.inbox.Stats(time.Now()).Fresh == 1 })
	if wrong.mesh.Stats().Connected+without.mesh.Stats().Connected != 0 {
		t.Error("refused replicas count as connected")
	}
}

// TestPeersShowTheirCertificates: with one CA for replicas and reporters, a reporter's certificate does not make a peer.
func TestPeersShowTheirCertificates(t *testing.T) {
	const name = "demo-picker-peers.default.svc"
	a := newAuthority(t)
	a.make(&x509.Certificate{
		DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, "picker")
	a.client("uid-1")
	own := Files{Cert: a.path("picker.crt"), Key: a.path("picker.key"), CA: a.path("ca.crt")}
	transport, err := ServerTLS(own, false)
	if err != nil {
		t.Fatal(err)
	}
	r := newReplica(t, PeerName(name), ServerOptions{Credentials: transport})
	dial := func(f Files) DialOptions {
		c, err := ClientTLS(f, name)
		if err != nil {
			t.Fatal(err)
		}
		return DialOptions{Credentials: c}
	}
	for i, f := range []Files{a.clientFiles(), {CA: own.CA}} {
		other := newReplica(t, Anybody{}, ServerOptions{})
		other.join(dial(f), r.addr)
		eventually(t, fmt.Sprint("refused ", i), func() bool { _, n := r.service.Received(); return n > 2*uint64(i+1) })
		other.stop()
	}
	peer := newReplica(t, Anybody{}, ServerOptions{})
	peer.join(dial(own), r.addr)
	eventually(t, "a replica is received", func() bool { return r.inbox.Stats(time.Now()).Fresh == 1 })
}

// TestManyChangesComeTogether: however many requests there are in a moment, the peer gets few messages.
func TestManyChangesComeTogether(t *testing.T) {
	all := newMesh(t, 2)
	before := all[0].mesh.Stats().Messages
	began := time.Now()
	for range 5000 {
		all[0].release(all[0].book())
	}
	all[0].book()
	eventually(t, "the last one is seen", func() bool { return all[1].view().InFlight == 1 })
	most := uint64(time.Since(began)/replicas.Gather) + 5
	if n := all[0].mesh.Stats().Messages - before; n > most {
		t.Errorf("%d messages for 10,001 changes, want at most %d", n, most)
	}
}

// moody is an authenticator that refuses everybody until it changes its mind.
type moody struct{ kind atomic.Bool }

// Authenticate implements Authenticator.
func (m *moody) Authenticate(context.Context) (Identity, error) {
	if m.kind.Load() {
		return Identity{Any: true}, nil
	}
	return Identity{}, errors.New("not now")
}

// TestWhoIsHeardIsLookedFor: a replica that has just started and dials another is notified by that one at once, not at its
// next search for peers, and not after the wait that follows a failed attempt.
func TestWhoIsHeardIsLookedFor(t *testing.T) {
	for name, known := range map[string]bool{"known, and not reached before": true, "not known before": false} {
		t.Run(name, func(t *testing.T) {
			auth := &moody{}
			old, fresh := newReplica(t, Anybody{}, ServerOptions{}), newReplica(t, auth, ServerOptions{})
			var found atomic.Bool
			found.Store(known)
			old.mesh = NewMesh(MeshOptions{
				Find: func(context.Context) ([]string, error) {
					if found.Load() {
						return []string{old.addr, fresh.addr}, nil
					}
					return []string{old.addr}, nil
				},
				FindEvery: time.Hour, MinBackoff: time.Hour, MaxBackoff: time.Hour, SelfPause: time.Hour,
				Outbox: old.outbox, Loads: old.each, Inbox: old.inbox,
			})
			old.service.OnPeer = old.mesh.Look
			ctx, cancel := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { old.mesh.Run(ctx) })
			defer running.Wait()
			defer cancel()
			old.book()
			eventually(t, "all attempts have failed", func() bool { s := old.mesh.Stats(); return s.Tried && s.Connected == 0 })
			auth.kind.Store(true)
			found.Store(true)
			fresh.join(DialOptions{}, fresh.addr, old.addr)
			eventually(t, "the new replica is notified", func() bool {
				s := fresh.mesh.Stats()
				return s.Tried && s.Connected == 1 && fresh.inbox.Stats(time.Now()).Fresh == 1 && fresh.view().InFlight == 1
			})
		})
	}
}

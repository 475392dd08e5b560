package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/fault"
	pb "github.com/kvasir-dev/kvasir/internal/peerpb"
	"github.com/kvasir-dev/kvasir/internal/replicas"
)

// MeshOptions of a Mesh. Zero values take the defaults where one is named.
type MeshOptions struct {
	// Find finds all replicas, the picker itself perhaps among them. FindEvery is how often; default 2 s.
	Find      Finder
	FindEvery time.Duration
	Dial      DialOptions
	// Outbox and Loads are sent to the peers, Inbox receives from them.
	Outbox *replicas.Outbox
	Loads  replicas.Loads
	Meters replicas.Meters // nil without tenants
	Homes  replicas.Homes  // nil without
	Inbox  *replicas.Inbox
	// Borrow, if set, is called for each peer that is found, and is to return when ctx ends: (*Server).Borrow.
	Borrow func(ctx context.Context, c *Client)
	// Recall is the same for what peers remember: (*Recollection).From.
	Recall func(ctx context.Context, c *Client)
	Log    logr.Logger
	// MinBackoff and MaxBackoff bound the waits between two attempts; defaults 50 ms and 2 s.
	MinBackoff, MaxBackoff time.Duration
	// SelfPause is the wait at an address that is the picker's own, or that of a peer that is already connected; default 30 s.
	SelfPause time.Duration
}

// Mesh sends updates to all peers that it finds. It is safe for concurrent use.
type Mesh struct {
	o MeshOptions

	messages, bytes atomic.Uint64
	panics          atomic.Uint64
	look            chan struct{} // holds a token after a request to look for peers

	mu       sync.Mutex // guards what follows
	found    bool       // addresses were, once
	links    map[string]*link
	notified map[uint64]*link // by incarnation
}

// link is to one address.
type link struct {
	addr   string
	client *Client
	cancel context.CancelFunc
	ended  chan struct{}
	again  chan struct{} // holds a token when the wait for the next attempt is over
	tried  bool          // guarded by the mesh's mu; the first attempt has succeeded or failed
}

// MeshStats are what a mesh does.
type MeshStats struct {
	// Connected is the number of connected peers. Tried means that all addresses were found and tried once.
	Connected int
	Tried     bool
	// Messages and Bytes of updates sent.
	Messages, Bytes uint64
	// Panics ended the exchange with one peer.
	Panics uint64
}

var (
	errSelf  = errors.New("the address is the picker's own")
	errTwice = errors.New("the peer is already connected at another address")
)

// NewMesh returns a mesh that sends nothing before Run.
func NewMesh(o MeshOptions) *Mesh {
	if o.FindEvery <= 0 {
		o.FindEvery = 2 * time.Second
	}
	if o.MinBackoff <= 0 {
		o.MinBackoff = 50 * time.Millisecond
	}
	if o.MaxBackoff <= 0 {
		o.MaxBackoff = 2 * time.Second
	}
	if o.SelfPause <= 0 {
		o.SelfPause = 30 * time.Second
	}
	return &Mesh{o: o, look: make(chan struct{}, 1), links: map[string]*link{}, notified: map[uint64]*link{}}
}

// Stats reads the counters.
func (m *Mesh) Stats() MeshStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := MeshStats{Connected: len(m.notified), Tried: m.found, Messages: m.messages.Load(), Bytes: m.bytes.Load(), Panics: m.panics.Load()}
	for _, l := range m.links {
		s.Tried = s.Tried && l.tried
	}
	return s
}

// Look lets the mesh look for peers now, and try again those that it could not reach: a new one has just
// connected, and waits for our updates.
func (m *Mesh) Look() { ring(m.look) }

func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// expireEvery is how soon a peer's state is dropped after it has expired.
const expireEvery = 500 * time.Millisecond

// Run finds peers and sends them updates until ctx ends, then notifies them that it leaves.
func (m *Mesh) Run(ctx context.Context) {
	defer m.set(ctx, nil)
	expire := time.NewTicker(expireEvery)
	defer expire.Stop()
	find := time.NewTicker(m.o.FindEvery)
	defer find.Stop()
	failed := ""
	for {
		answer := m.find(ctx)
		for waiting := true; waiting; {
			select {
			case found := <-answer:
				waiting = false
				switch {
				case ctx.Err() != nil:
					return
				case found.err == nil:
					failed = ""
					m.set(ctx, found.addrs)
				case failed != found.err.Error():
					failed = found.err.Error()
					m.o.Log.Error(found.err, "Finding peers failed, keeping the known ones")
				}
			case <-expire.C:
				m.o.Inbox.Expire(time.Now())
			}
		}
		for found := false; !found; {
			select {
			case <-ctx.Done():
				return
			case <-expire.C:
				m.o.Inbox.Expire(time.Now())
			case <-m.look:
				found = true
				m.retry()
			case <-find.C:
				found = true
			}
		}
	}
}

// found is what a search for peers has found.
type found struct {
	addrs []string
	err   error
}

// find begins a search, which can take long if the name service does not answer. It ends with ctx.
func (m *Mesh) find(ctx context.Context) <-chan found {
	answer := make(chan found, 1)
	go func() {
		addrs, err := m.o.Find(ctx)
		answer <- found{addrs, err}
	}()
	return answer
}

// retry ends the waits of links that are not connected.
func (m *Mesh) retry() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.links {
		ring(l.again)
	}
}

// set makes the links those to the addresses, at most one more than there can be peers: one can be to the picker
// itself.
func (m *Mesh) set(ctx context.Context, addrs []string) {
	var gone []*link
	m.mu.Lock()
	m.found = true
	for addr, l := range m.links {
		if !slices.Contains(addrs, addr) {
			l.cancel()
			gone = append(gone, l)
			delete(m.links, addr)
		}
	}
	for _, addr := range addrs {
		if m.links[addr] != nil || len(m.links) > replicas.MaxPeers {
			continue
		}
		client, err := Dial(addr, m.o.Dial)
		if err != nil {
			m.o.Log.Error(err, "Sending to peer failed", "peer", addr)
			continue
		}
		l := &link{addr: addr, client: client, ended: make(chan struct{}), again: make(chan struct{}, 1)}
		linked, cancel := context.WithCancel(ctx)
		l.cancel = cancel
		m.links[addr] = l
		go m.keep(linked, l) // until it is cancelled, which the next set waits for
	}
	m.mu.Unlock()
	for _, l := range gone {
		<-l.ended
	}
}

// keep sends updates to the peer at an address until ctx ends.
func (m *Mesh) keep(ctx context.Context, l *link) {
	defer close(l.ended)
	defer l.client.Close()
	backoff, said := fault.Backoff{Min: m.o.MinBackoff, Max: m.o.MaxBackoff}, ""
	for {
		began := time.Now()
		var err error
		if m.caught("Sending to a peer panicked", l, func() { err = m.publish(ctx, l) }) {
			err = errPanic
		}
		if ctx.Err() != nil {
			return
		}
		m.settle(l)
		wait := m.o.SelfPause
		if !errors.Is(err, errSelf) && !errors.Is(err, errTwice) {
			wait = backoff.Next()
			if time.Since(began) > m.o.MaxBackoff {
				backoff.Reset()
			}
		}
		if why := err.Error(); why != said {
			m.o.Log.V(1).Info("Not sending to peer", "peer", l.addr, "reason", why)
			said = why
		}
		again := l.again
		if wait == m.o.SelfPause {
			again = nil // there are no new peers
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-time.After(wait):
		}
	}
}

// caught reports whether f has panicked, which is then counted and logged with the peer.
func (m *Mesh) caught(what string, l *link, f func()) bool {
	return fault.Catch(f, func(p *fault.Panic) {
		m.panics.Add(1)
		m.o.Log.Error(p, what, "peer", l.addr, "stack", string(p.Stack))
	}) != nil
}

// settle records that an attempt has succeeded or failed.
func (m *Mesh) settle(l *link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l.tried = true
}

// leaveTimeout bounds how long a peer can take to receive the notice that the picker ends.
const leaveTimeout = time.Second

type exchangeClient = grpc.BidiStreamingClient[pb.PeerMessage, pb.Welcome]

// publish opens a stream and sends updates to the peer until ctx ends or the stream breaks.
func (m *Mesh) publish(ctx context.Context, l *link) error {
	streaming, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stopped := context.AfterFunc(ctx, func() { time.AfterFunc(leaveTimeout, cancel) })
	defer stopped()
	sender := replicas.NewSender(m.o.Outbox, m.o.Loads)
	sender.SendMeters(m.o.Meters)
	sender.SendHomes(m.o.Homes)
	defer sender.Close()
	l.client.conn.ResetConnectBackoff() // keep has waited
	stream, err := NewPeerClient(l.client.conn).Exchange(streaming)
	if err != nil {
		return fmt.Errorf("opening the stream: %w", err)
	}
	received := make(chan error, 2)
	go func() { // until the stream ends, which it does with this function
		welcome, err := stream.Recv()
		if err == nil && m.caught("Reading a peer's welcome panicked", l, func() { err = m.enter(l, welcome) }) {
			err = errPanic
		}
		received <- err
		if err == nil {
			_, err = stream.Recv()
			received <- err
		}
	}()
	defer m.leave(l)
	if hello, _ := sender.Next(time.Now()); stream.Send(hello) != nil {
		return <-received
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-received:
		if err != nil {
			return err
		}
	}
	m.o.Log.Info("Peer found", "peer", l.addr)
	var borrowing sync.WaitGroup
	defer borrowing.Wait()
	while, end := context.WithCancel(ctx)
	defer end()
	begin := func(what string, f func(context.Context, *Client)) {
		if f != nil {
			borrowing.Go(func() { m.caught(what, l, func() { f(while, l.client) }) })
		}
	}
	begin("Borrowing from a peer panicked", m.o.Borrow)
	begin("Copying what a peer remembers panicked", m.o.Recall)
	err = m.speak(ctx, stream, sender, received)
	m.o.Log.Info("Peer gone", "peer", l.addr, "reason", err.Error())
	return err
}

// enter takes a peer's welcome.
func (m *Mesh) enter(l *link, w *pb.Welcome) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !replicas.Understood(w.GetProtocol(), w.GetOldest()) || w.GetIncarnation() == 0:
		return errors.New("the peer speaks another version")
	case w.GetIncarnation() == m.o.Outbox.Incarnation():
		return errSelf
	case m.notified[w.GetIncarnation()] != nil:
		return errTwice
	}
	m.notified[w.GetIncarnation()], l.tried = l, true
	return nil
}

func (m *Mesh) leave(l *link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for incarnation, other := range m.notified {
		if other == l {
			delete(m.notified, incarnation)
		}
	}
}

// speak sends pending updates until the stream fails, or says goodbye when ctx ends. The error is never nil.
func (m *Mesh) speak(ctx context.Context, stream exchangeClient, sender *replicas.Sender, received <-chan error) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		update, wake := sender.Next(time.Now())
		if update != nil {
			if stream.Send(update) != nil {
				return <-received
			}
			m.messages.Add(1)
			m.bytes.Add(uint64(proto.Size(update)))
			continue
		}
		timer.Reset(time.Until(wake))
		select {
		case <-ctx.Done():
			if stream.CloseSend() == nil {
				if err := <-received; !errors.Is(err, io.EOF) {
					return err
				}
			}
			return ctx.Err()
		case err := <-received:
			return err
		case <-sender.Bell():
		case <-timer.C:
		}
	}
}

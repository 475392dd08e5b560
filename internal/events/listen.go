package events

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// Caller is a publisher that has connected to the picker. *zmtp.Sub is one.
type Caller interface {
	// Recv waits for the next message: topic, sequence number and payload, valid until the next call.
	Recv() ([][]byte, error)
	// Peer is the publisher's address, host:port.
	Peer() string
	// Close ends the connection and a Recv that waits.
	Close() error
}

// Stranger is why a publisher that has connected to the picker is turned away.
type Stranger int

// The reasons.
const (
	// NoAddress: no pod at the publisher's address is expected to connect.
	NoAddress Stranger = iota
	// NoTopic: its messages have no topic that names a pod.
	NoTopic
	// OtherPod: the topic names a pod that is not at its address.
	OtherPod
	// NoRank: the pod has no such rank.
	NoRank
	// TooMany: its address has as many connections as one can have, or all addresses together have.
	TooMany
	// NumStrangers is the number of reasons.
	NumStrangers int = iota
)

// String is the reason's name in logs and metrics.
func (s Stranger) String() string {
	switch s {
	case NoAddress:
		return "NoAddress"
	case NoTopic:
		return "NoTopic"
	case OtherPod:
		return "OtherPod"
	case NoRank:
		return "NoRank"
	case TooMany:
		return "TooMany"
	}
	return "unknown"
}

// Reception accepts the publishers that connect to the picker, and passes each to the stream of its endpoint.
//
// Every message's topic must name a pod at the publisher's address:
//
//	kv@POD@MODEL        POD is the pod's IP, IP:PORT with the port of its HTTP API, name, namespace/name or UID
//
// The rank follows from the HTTP port if the topic has a port that only one rank uses, else from the port that was dialed:
// engines add their global rank to it. The model's name is ignored. Publishers that do not match are disconnected and
// counted; the engine's own socket retries.
//
// A publisher can be silent for hours. If its address and rank identify the endpoint, its stream begins at once, with the
// batches of the replay socket; otherwise it waits for the first message. Of two publishers of one endpoint the newer one
// counts: a restarted engine need not wait until the end of its former connection is noticed.
//
// It is safe for concurrent use.
type Reception struct {
	log       logr.Logger
	strangers [NumStrangers]atomic.Uint64

	mu    sync.Mutex
	desks map[string]map[string]*desk // guarded by mu; by pool, by the endpoint's epoch
}

// NewReception returns a reception that expects no publisher.
func NewReception(log logr.Logger) *Reception {
	return &Reception{log: log, desks: map[string]map[string]*desk{}}
}

// Strangers are how many publishers were turned away, by Stranger.
func (r *Reception) Strangers() (n [NumStrangers]uint64) {
	for i := range n {
		n[i] = r.strangers[i].Load()
	}
	return n
}

// Allow reports whether a pod whose publisher should connect is at a peer's address, host:port; if not, it counts a
// stranger.
func (r *Reception) Allow(peer string) bool {
	r.mu.Lock()
	found := len(r.at(addressOf(peer))) > 0
	r.mu.Unlock()
	if !found {
		r.refuse(peer, NoAddress)
	}
	return found
}

// Full counts a publisher that was turned away because there are too many connections. peer is its address, host:port.
func (r *Reception) Full(peer string) { r.refuse(peer, TooMany) }

// Names reports whether a topic names a pod at a peer's address, host:port; if not, it counts a stranger. So nothing else of a message
// with another topic is read.
func (r *Reception) Names(peer string, topic []byte) bool {
	name, ok := podOf(topic)
	if !ok {
		r.refuse(peer, NoTopic)
		return false
	}
	r.mu.Lock()
	found := slices.ContainsFunc(r.at(addressOf(peer)), func(d *desk) bool { is, _ := d.is(name); return is })
	r.mu.Unlock()
	if !found {
		r.refuse(peer, OtherPod)
	}
	return found
}

func (r *Reception) refuse(peer string, why Stranger) {
	r.strangers[why].Add(1)
	r.log.V(1).Info("Connection of an event publisher refused", "peer", peer, "reason", why.String())
}

// Take keeps a publisher that has dialed the port of a global rank until its endpoint is known, then passes it to that
// endpoint's stream or disconnects it. It returns afterwards.
func (r *Reception) Take(c Caller, rank int) {
	v := &visitor{Caller: c, rank: rank, address: addressOf(c.Peer())}
	if d := r.sure(v); d != nil {
		d.put(v)
		return
	}
	frames, err := c.Recv()
	if err != nil {
		_ = c.Close() // it has gone
		return
	}
	d, why := r.find(v, frames)
	if d == nil {
		r.refuse(c.Peer(), why)
		_ = c.Close() // it is not wanted
		return
	}
	v.first = frames
	d.put(v)
}

// Subscribe implements Subscriber for the endpoint of an epoch: it waits for its publisher, and follows it.
func (r *Reception) Subscribe(ctx context.Context, epoch string, up func(), each func(frames [][]byte) error) error {
	d := r.desk(epoch)
	if d == nil {
		return errUnexpected
	}
	v, err := d.take(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = v.Close() })
	defer func() {
		stop()
		_ = v.Close() // it is not followed any more
	}()
	up()
	for {
		frames := v.first
		if v.first = nil; frames == nil {
			if frames, err = v.Recv(); err != nil {
				return err
			}
		}
		if topic, ok := topicOf(frames); !ok || len(topic) == 0 || !bytes.Equal(topic, v.topic) {
			if found, why := r.find(v, frames); found != d {
				if found != nil {
					why = OtherPod
				}
				r.refuse(v.Peer(), why)
				return errStranger
			}
			v.topic = append(v.topic[:0], topic...)
		}
		if err := each(frames); err != nil {
			return err
		}
	}
}

var (
	errUnexpected = errors.New("no publisher of the endpoint is expected")
	errStranger   = errors.New("the publisher does not name its pod")
	errWaiting    = errors.New("waiting for the publisher ended")
)

// set makes the endpoints of a pool that are expected those of the feeds that dial in.
func (r *Reception) set(pool string, feeds []Feed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, next := r.desks[pool], map[string]*desk{}
	for i := range feeds {
		ep := &feeds[i].Endpoint
		epoch := ep.Epoch()
		if !ep.DialsIn || next[epoch] != nil {
			continue
		}
		d := old[epoch]
		if d == nil {
			d = newDesk(ep)
		}
		delete(old, epoch)
		next[epoch] = d
	}
	for _, d := range old {
		d.close()
	}
	if r.desks[pool] = next; len(next) == 0 {
		delete(r.desks, pool)
	}
}

func (r *Reception) desk(epoch string) *desk {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, desks := range r.desks {
		if d := desks[epoch]; d != nil {
			return d
		}
	}
	return nil
}

// at lists the desks of endpoints at an address. mu is held.
func (r *Reception) at(address netip.Addr) (list []*desk) {
	for _, desks := range r.desks {
		for _, d := range desks {
			if d.http.Addr() == address {
				list = append(list, d)
			}
		}
	}
	return list
}

// sure finds the endpoint that a publisher must be, before its first message: the only one at its address, or the one of
// its rank if all there share a port, as the ranks of one pod do. nil if that is not certain.
func (r *Reception) sure(v *visitor) *desk {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.at(v.address)
	var found *desk
	for _, d := range list {
		switch {
		case d.http != list[0].http || d.pod != list[0].pod:
			return nil
		case d.rank == v.rank:
			found = d
		}
	}
	return found
}

// find finds the endpoint whose publisher has sent a message, or reports why there is none.
func (r *Reception) find(v *visitor, frames [][]byte) (*desk, Stranger) {
	topic, ok := topicOf(frames)
	if !ok {
		return nil, NoTopic
	}
	name, ok := podOf(topic)
	if !ok {
		return nil, NoTopic
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.at(v.address)
	if len(list) == 0 {
		return nil, NoAddress
	}
	var named []*desk
	byPort := false
	for _, d := range list {
		is, port := d.is(name)
		if is {
			named = append(named, d)
			byPort = byPort || port
		}
	}
	switch {
	case len(named) == 0:
		return nil, OtherPod
	case len(named) == 1 && byPort:
		return named[0], 0
	}
	for _, d := range named {
		if d.rank == v.rank {
			return d, 0
		}
	}
	return nil, NoRank
}

// addressOf is the IP address of host:port; invalid if it is none.
func addressOf(peer string) netip.Addr {
	ap, err := netip.ParseAddrPort(peer)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap().WithZone("")
}

// topicOf is the topic of a message.
func topicOf(frames [][]byte) ([]byte, bool) {
	if len(frames) < 3 {
		return nil, false
	}
	return frames[len(frames)-3], true
}

// podOf is the pod that a topic names.
func podOf(topic []byte) (string, bool) {
	rest, ok := bytes.CutPrefix(topic, []byte("kv@"))
	name, _, more := bytes.Cut(rest, []byte("@"))
	return string(name), ok && more && len(name) > 0
}

// desk is where an endpoint's publisher is waited for.
type desk struct {
	http       netip.AddrPort
	pod        endpoint.ID // of rank 0
	names      [3]string   // of the pod
	rank       int
	arrived    chan struct{} // holds a token when next might have changed
	mu         sync.Mutex
	next, last *visitor // guarded by mu; the publisher that has connected and is not followed yet, and the one followed last
	closed     bool     // guarded by mu
}

func newDesk(ep *endpoint.Endpoint) *desk {
	d := &desk{rank: ep.EventRank, pod: endpoint.ID{Pod: ep.ID.Pod}, arrived: make(chan struct{}, 1)}
	d.names = [3]string{ep.Pod, ep.Namespace + "/" + ep.Pod, ep.ID.Pod}
	if http, err := netip.ParseAddrPort(ep.Address); err == nil {
		d.http = netip.AddrPortFrom(http.Addr().Unmap(), http.Port())
	}
	return d
}

// is reports whether a topic's name is that of the desk's pod, and whether it names the port.
func (d *desk) is(name string) (is, byPort bool) {
	for _, own := range d.names {
		if name == own {
			return true, false
		}
	}
	if address, err := netip.ParseAddr(name); err == nil {
		return address.Unmap() == d.http.Addr(), false
	}
	ap, err := netip.ParseAddrPort(name)
	is = err == nil && ap.Addr().Unmap() == d.http.Addr() && ap.Port() == d.http.Port()
	return is, is
}

// put leaves a publisher for the stream; those before it go.
func (d *desk) put(v *visitor) {
	d.mu.Lock()
	old := [2]*visitor{d.next, d.last}
	d.next, d.last = v, nil
	if d.closed {
		old[0], d.next = v, nil
	}
	d.mu.Unlock()
	for _, v := range old {
		if v != nil {
			_ = v.Close() // another has connected, or none is expected any more
		}
	}
	select {
	case d.arrived <- struct{}{}:
	default:
	}
}

// take waits for a publisher.
func (d *desk) take(ctx context.Context) (*visitor, error) {
	for {
		d.mu.Lock()
		v := d.next
		if v != nil {
			d.next, d.last = nil, v
		}
		d.mu.Unlock()
		if v != nil {
			return v, nil
		}
		select {
		case <-ctx.Done():
			return nil, errWaiting
		case <-d.arrived:
		}
	}
}

// close disconnects the waiting publisher. The stream, if there was one, has ended.
func (d *desk) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.next != nil {
		_ = d.next.Close() // it will not be followed
		d.next = nil
	}
}

// visitor is a publisher that has connected.
type visitor struct {
	Caller
	rank    int // of the port dialed
	address netip.Addr
	first   [][]byte // a message that was received already
	topic   []byte   // that was found right last
}

package zmtp

import (
	"encoding/binary"
	"fmt"
	"sync"
)

// Router receives requests from many dealers and answers each by its identity.
type Router struct {
	l  *listener
	in chan request
	// taken releases the connection whose message the last Recv returned. Only Recv uses it.
	taken chan<- struct{}

	mu    sync.Mutex
	peers map[string]*conn // guarded by mu, by identity
	next  uint32           // guarded by mu
}

// request is a message in its connection's buffers, which stay untouched until done is sent to.
type request struct {
	id   string
	m    Message
	done chan<- struct{}
}

// ListenRouter is Config.ListenRouter with all defaults.
func ListenRouter(addr string) (*Router, error) { return Config{}.ListenRouter(addr) }

// ListenRouter binds addr (host:port, port 0 for any).
func (c Config) ListenRouter(addr string) (*Router, error) {
	l, err := c.listen(addr)
	if err != nil {
		return nil, err
	}
	r := &Router{l: l, in: make(chan request), peers: map[string]*conn{}}
	l.start(typeRouter, r.serve)
	return r, nil
}

// Addr is the bound address, host:port.
func (r *Router) Addr() string { return r.l.addr() }

// Peers is the number of connected dealers.
func (r *Router) Peers() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.peers)
}

// Recv waits for the next request of any dealer. The frames are valid until the next Recv, and until then the dealer's
// connection is not read, so that its loss shows later. Each connection holds one unread message; the rest waits in
// the network. Only one goroutine can receive. After Close the error is ErrClosed.
func (r *Router) Recv() (id string, frames Message, err error) {
	if r.taken != nil {
		r.taken <- struct{}{}
		r.taken = nil
	}
	select {
	case q := <-r.in:
		r.taken = q.done
		return q.id, q.m, nil
	case <-r.l.serving.Done():
		return "", nil, ErrClosed
	}
}

// Send sends a message to the dealer with that identity, as Recv returned it: ErrNoPeer when it has disconnected. It waits
// while the dealer does not read, at most Config.SendTimeout, and then drops the connection.
func (r *Router) Send(id string, frames ...[]byte) error {
	r.mu.Lock()
	k := r.peers[id]
	r.mu.Unlock()
	if k == nil {
		return fmt.Errorf("%w: identity %q", ErrNoPeer, id)
	}
	return k.send(frames)
}

// Close ends all connections, and a Recv that waits. It can be called often and from any goroutine.
func (r *Router) Close() error {
	r.l.close()
	return nil
}

func (r *Router) serve(k *conn) {
	id := r.join(k)
	defer r.leave(id)
	done := make(chan struct{}, 1)
	for {
		m, err := k.recv()
		if err != nil {
			return
		}
		select {
		case r.in <- request{id: id, m: m, done: done}:
		case <-k.done:
			return
		}
		select {
		case <-done:
		case <-r.l.serving.Done():
			return
		}
	}
}

// join names a peer: by its own word if that is free, else by a zero byte and a number.
func (r *Router) join(k *conn) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := k.identity
	for id == "" || id[0] == 0 || r.peers[id] != nil {
		r.next++
		id = string(binary.BigEndian.AppendUint32([]byte{0}, r.next))
		if r.peers[id] == nil {
			break
		}
	}
	r.peers[id] = k
	return id
}

func (r *Router) leave(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.peers, id)
}

package zmtp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Pub sends each message to every subscriber that asked for its topic, and waits for none: a subscriber whose queue is
// full misses the message, as with libzmq.
type Pub struct {
	hwm     int
	flush   time.Duration
	l       *listener // nil when dialed
	dialed  *conn     // nil when listening
	served  chan struct{}
	dropped atomic.Uint64

	mu     sync.Mutex
	subs   map[*subscriber]struct{} // guarded by mu
	closed bool                     // guarded by mu
}

// ListenPub is Config.ListenPub with all defaults.
func ListenPub(addr string, hwm int) (*Pub, error) { return Config{}.ListenPub(addr, hwm) }

// DialPub is Config.DialPub with all defaults.
func DialPub(ctx context.Context, addr string, hwm int) (*Pub, error) {
	return Config{}.DialPub(ctx, addr, hwm)
}

// ListenPub binds addr (host:port, port 0 for any). hwm is the most messages queued for a subscriber, up to
// writeBatch more can be on their way to the socket; 0 or less takes DefaultHWM.
func (c Config) ListenPub(addr string, hwm int) (*Pub, error) {
	l, err := c.listen(addr)
	if err != nil {
		return nil, err
	}
	p := newPub(l.cfg, hwm)
	p.l = l
	close(p.served)
	l.start(typePub, p.serve)
	return p, nil
}

// DialPub connects to a listening subscriber at addr (host:port). ctx bounds the life of the socket. Done reports when
// the subscriber is gone.
func (c Config) DialPub(ctx context.Context, addr string, hwm int) (*Pub, error) {
	k, err := c.dial(ctx, addr, typePub)
	if err != nil {
		return nil, err
	}
	p := newPub(k.cfg, hwm)
	p.dialed = k
	go func() {
		defer close(p.served)
		defer k.close()
		p.serve(k)
	}()
	return p, nil
}

func newPub(c Config, hwm int) *Pub {
	if hwm <= 0 {
		hwm = DefaultHWM
	}
	return &Pub{hwm: hwm, flush: c.FlushTimeout, served: make(chan struct{}), subs: map[*subscriber]struct{}{}}
}

// Addr is the bound address, or that of the subscriber for a dialed socket, host:port.
func (p *Pub) Addr() string {
	if p.l != nil {
		return p.l.addr()
	}
	return p.dialed.peer
}

// Done is closed when a dialed socket has lost its subscriber. It is closed from the start for a listening one.
func (p *Pub) Done() <-chan struct{} { return p.served }

// Send queues a message for every subscriber with a topic that is a prefix of the first frame. It never waits. Its
// frames are no longer used when it returns.
func (p *Pub) Send(frames ...[]byte) error {
	if len(frames) == 0 {
		return errors.New("zmtp: message without frames")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	var encoded []byte
	for s := range p.subs {
		if !s.wants(frames[0]) {
			continue
		}
		if encoded == nil {
			encoded = appendMessage(nil, frames)
		}
		if !s.queue(encoded, p.hwm) {
			p.dropped.Add(1)
		}
	}
	return nil
}

// Subscribers is the number of connected subscribers with at least one topic.
func (p *Pub) Subscribers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for s := range p.subs {
		if s.subscribed() {
			n++
		}
	}
	return n
}

// Peers lists the addresses of the connected subscribers.
func (p *Pub) Peers() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	peers := make([]string, 0, len(p.subs))
	for s := range p.subs {
		peers = append(peers, s.conn.peer)
	}
	return peers
}

// Dropped counts messages that a full queue kept from a subscriber, summed over subscribers.
func (p *Pub) Dropped() uint64 { return p.dropped.Load() }

// Kick cuts the connection to the subscriber with that address, or to all for "", with whatever is queued for it. It
// returns how many were cut.
func (p *Pub) Kick(peer string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for s := range p.subs {
		if peer == "" || s.conn.peer == peer {
			s.conn.close()
			n++
		}
	}
	return n
}

// Close lets the subscribers take what is queued, for at most Config.FlushTimeout, and ends all connections. It can
// be called often and from any goroutine; every call waits until all is over.
func (p *Pub) Close() error {
	if p.l != nil {
		p.l.stop()
	}
	p.mu.Lock()
	p.closed = true
	for s := range p.subs {
		s.finish(time.Now().Add(p.flush))
	}
	p.mu.Unlock()
	if p.l != nil {
		p.l.workers.Wait()
		p.l.close()
	} else {
		// A subscriber that has not been registered yet sees closed when it is.
		<-p.served
	}
	return nil
}

// serve runs one subscriber.
func (p *Pub) serve(k *conn) {
	s := newSubscriber(k)
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.subs[s] = struct{}{}
	p.mu.Unlock()

	var writer sync.WaitGroup
	writer.Go(s.write)
	s.read()
	k.close()
	p.mu.Lock()
	delete(p.subs, s)
	p.mu.Unlock()
	writer.Wait()
}

// writeBatch is how many messages the writer takes from the queue at once.
const writeBatch = 32

// subscriber is one connection of a Pub: a reader of subscriptions and a writer of queued messages.
type subscriber struct {
	conn *conn
	wake chan struct{} // holds a token when there might be something to write

	mu         sync.Mutex
	topics     [][]byte // guarded by mu
	topicBytes int      // guarded by mu
	waiting    [][]byte // guarded by mu, a ring of encoded messages
	head, n    int      // guarded by mu
	pong       []byte   // guarded by mu, the answer to the last PING
	finishing  bool     // guarded by mu
}

func newSubscriber(k *conn) *subscriber {
	s := &subscriber{conn: k, wake: make(chan struct{}, 1)}
	k.onSubscribe = s.subscribe
	k.pong = s.answer
	k.in.cfg.MaxMessage = maxTopicBytes
	return s
}

// read follows the subscriptions until the connection ends.
func (s *subscriber) read() {
	for {
		m, err := s.conn.recv()
		if err != nil {
			return
		}
		// Other messages of a subscriber are ignored, as with an XPUB that is not read.
		if topic, on, ok := topicOf(m); ok {
			if err := s.subscribe(topic, on); err != nil {
				return
			}
		}
	}
}

func (s *subscriber) subscribe(topic []byte, on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, t := range s.topics {
		if bytes.Equal(t, topic) {
			if !on {
				s.topics = append(s.topics[:i:i], s.topics[i+1:]...)
				s.topicBytes -= len(topic)
			}
			return nil
		}
	}
	if !on {
		return nil
	}
	if len(s.topics) == maxTopics || s.topicBytes+len(topic) > maxTopicBytes {
		return fmt.Errorf("%w: more than %d topics or %d bytes of topics", ErrLimit, maxTopics, maxTopicBytes)
	}
	s.topics = append(s.topics, bytes.Clone(topic))
	s.topicBytes += len(topic)
	return nil
}

func (s *subscriber) subscribed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.topics) > 0
}

func (s *subscriber) wants(frame []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return matches(s.topics, frame)
}

// answer leaves the answer to a PING to the writer; a newer one replaces it.
func (s *subscriber) answer(data []byte) error {
	s.mu.Lock()
	s.pong = encodeCommand(cmdPong, data)
	s.mu.Unlock()
	s.signal()
	return nil
}

// queue adds an encoded message, unless hwm are waiting.
func (s *subscriber) queue(encoded []byte, hwm int) bool {
	s.mu.Lock()
	if s.n >= hwm {
		s.mu.Unlock()
		return false
	}
	if s.n == len(s.waiting) {
		grown := make([][]byte, min(max(2*s.n, 64), hwm))
		for i := range s.n {
			grown[i] = s.waiting[(s.head+i)%s.n]
		}
		s.waiting, s.head = grown, 0
	}
	s.waiting[(s.head+s.n)%len(s.waiting)] = encoded
	s.n++
	s.mu.Unlock()
	s.signal()
	return true
}

// take moves waiting messages to batch. over means that nothing will follow.
func (s *subscriber) take(batch [][]byte) (taken [][]byte, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pong != nil {
		batch, s.pong = append(batch, s.pong), nil
	}
	for s.n > 0 && len(batch) < writeBatch {
		batch = append(batch, s.waiting[s.head])
		s.waiting[s.head] = nil
		s.head = (s.head + 1) % len(s.waiting)
		s.n--
	}
	return batch, s.finishing && s.n == 0
}

func (s *subscriber) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// finish lets the writer end once the queue is empty, or at the deadline.
func (s *subscriber) finish(deadline time.Time) {
	_ = s.conn.nc.SetWriteDeadline(deadline)
	s.mu.Lock()
	s.finishing = true
	s.mu.Unlock()
	s.signal()
}

// write sends what is queued until the connection ends. A slow subscriber can take as long as it likes.
func (s *subscriber) write() {
	defer s.conn.close()
	var storage [writeBatch][]byte
	var joined []byte
	for {
		batch, over := s.take(storage[:0])
		joined = joined[:0]
		for _, b := range batch {
			if len(joined)+len(b) > growStep && len(joined) > 0 {
				if _, err := s.conn.nc.Write(joined); err != nil {
					return
				}
				joined = joined[:0]
			}
			joined = append(joined, b...)
		}
		if len(joined) > 0 {
			if _, err := s.conn.nc.Write(joined); err != nil {
				return
			}
		}
		clear(batch)
		if cap(joined) > 2*growStep {
			joined = nil
		}
		if over {
			return
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-s.wake:
		case <-s.conn.done:
			return
		}
	}
}

package h2stream

import (
	"context"
	"encoding/binary"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// SmallMessage is the size in bytes up to which a message's body is copied rather than referred to, and put with others.
const SmallMessage = 4 << 10

const (
	// prefix is the size of what precedes each message: whether it is compressed, and its length.
	prefix = 5
	// keepPartial is the largest buffer for messages in pieces that is used again, in bytes.
	keepPartial = 1 << 20
)

// Stream is one call of a client. Its methods can be called by any goroutine until Handler.Ended.
//
// It has many fields because it is a protocol's state machine; the comments say which goroutine owns which.
type Stream struct {
	c       *connection
	id      uint32
	handler Handler // nil until start, and when there is none

	// Of the reading goroutine: the message that is being received.
	begun     [prefix]byte
	have      int // of begun
	partial   *[]byte
	held      int64 // bytes of partial that are counted in the budget
	announced int64 // bytes that have to come, by the request's content-length; negative if it has none

	off func() // of the handler's caller: the argument of Off

	account *budget.Account
	opened  time.Time

	// Guarded by c.mu.
	lived       bool      // there was traffic since the keeper last looked
	quiet       time.Time // since when nothing has, as far as the keeper has seen
	since       time.Time // when arrived began to count; zero before it does
	arrived     int64     // bytes since then
	complete    bool      // the request is
	kept        int64     // of pending, as far as it is counted in the budget
	tight       bool      // there was no room in the budget for what is pending
	busy        bool      // a goroutine is calling the handler
	inbox       []event
	isOver      bool
	endReported bool // the handler has been
	finished    bool // Finish was called
	halfClosed  bool // by the client
	unsaid      int  // received bytes that were not yet returned to the client's window
	sendWindow  int64
	queue       []segment
	pending     int64 // bytes in queue that count
	queued      bool  // in c.ready
	headed      bool  // the answer's header is sent
	deadline    *time.Timer
	ctx         context.Context // of the stream itself
	cancel      context.CancelFunc
}

// segment is a piece of data to send.
type segment struct {
	data []byte
	own  bool   // more can be appended to data
	size int64  // in bytes, as far as it counts
	sent func() // called when it was sent, or never will be; can be nil
	end  []string
}

func newStream(c *connection, id uint32) *Stream {
	s := &Stream{c: c, id: id, busy: true, opened: time.Now()}
	s.account = c.server.options.Budget.Open(budget.Streams, c.network, c.client.String(), s.shed)
	return s
}

const (
	// streamCost is what a stream takes besides what it holds, and fieldCost what a field of its header does, in bytes.
	streamCost, fieldCost = 8 << 10, 64
	// keepStep is how exactly answers that wait for the client are counted, in bytes.
	keepStep = 16 << 10
)

// shed ends the stream because its request arrives too slowly while there is no room. The budget calls it.
func (s *Stream) shed() {
	s.c.server.jobs.Go(func() { // not a worker: as many as are shed at once would stay
		s.Finish(codes.ResourceExhausted, "the request came too slowly while there was no room for others")
		s.c.flush()
	})
}

// Hold counts n bytes that the handler keeps for the stream, until the stream has ended or they are given back by Release. It
// is false when there is no room for them.
func (s *Stream) Hold(n int64) bool { return s.account.Take(n) }

// Release gives back what Hold has counted.
func (s *Stream) Release(n int64) { s.account.Put(n) }

// Own sets the stream's owner, if it is not the client's address, and reports whether that has room for what the stream holds.
func (s *Stream) Own(owner string) (room bool) { return s.account.Own(owner) }

// Complete notes that the client's request is complete: the stream is not ended for its slowness any more.
func (s *Stream) Complete() {
	s.account.Complete()
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.complete = true
}

// slow reports whether the request arrives too slowly. Its bytes are counted over RequestIdle, from the first look after some have
// arrived: what comes just before a look says nothing about the rate. c.mu is held.
func (s *Stream) slow(now time.Time) bool {
	o := &s.c.server.options
	switch {
	case s.complete || s.busy || s.halfClosed:
		s.since, s.arrived = time.Time{}, 0
		return false
	case s.since.IsZero():
		if s.arrived > 0 {
			s.since, s.arrived = now, 0
		}
		return false
	case now.Sub(s.since) < o.RequestIdle:
		return false
	}
	slow := s.arrived > 0 && float64(s.arrived) < float64(o.MinRate)*o.RequestIdle.Seconds()
	s.since, s.arrived = time.Time{}, 0
	return slow
}

// Host is the address of the other end, without the port.
func (s *Stream) Host() string { return s.c.host }

// Context ends when the stream is over.
func (s *Stream) Context() context.Context {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.ctx == nil {
		s.ctx, s.cancel = context.WithCancel(context.Background())
		if s.isOver {
			s.cancel()
		}
	}
	return s.ctx
}

// Off has f run elsewhere as soon as the handler's method that calls it has returned. It can wait. The handler is not
// called until it has returned; it can call Off itself. At most streamWindow bytes of messages wait meanwhile.
func (s *Stream) Off(f func()) { s.off = f }

// Send sends the message that head, body and tail make together, after what was sent before. It does not wait. The bytes
// of a body above SmallMessage must stay as they are until the stream has no use for them (After); the rest is copied.
// counts is how many bytes of the body count as pending; all others of the message do.
func (s *Stream) Send(head, body, tail []byte, counts int) {
	n := len(head) + len(body) + len(tail)
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.isOver || s.finished {
		return
	}
	last := s.open(prefix + min(n, SmallMessage+len(head)))
	last.data = append(last.data, 0)
	last.data = binary.BigEndian.AppendUint32(last.data, uint32(n)) // messages are smaller
	last.data = append(last.data, head...)
	if len(body) > SmallMessage {
		s.queue = append(s.queue, segment{data: body})
		if len(tail) > 0 {
			last = s.open(len(tail))
			last.data = append(last.data, tail...)
		}
		last = &s.queue[len(s.queue)-1]
	} else {
		last.data = append(append(last.data, body...), tail...)
	}
	size := int64(prefix + len(head) + len(tail) + counts)
	last.size += size
	s.pending += size
	if s.pending >= s.kept+keepStep {
		s.tight = !s.account.Must(s.pending - s.kept)
		s.kept = s.pending
	}
	s.stir()
}

// open returns the last segment, which can be appended to. c.mu is held.
func (s *Stream) open(size int) *segment {
	if n := len(s.queue); n == 0 || !s.queue[n-1].own || len(s.queue[n-1].data) > SmallMessage {
		s.queue = append(s.queue, segment{data: make([]byte, 0, size), own: true})
	}
	return &s.queue[len(s.queue)-1]
}

// Flush has what was sent leave now. It is for functions that Off runs and that continue: other senders need
// not call it.
func (s *Stream) Flush() { s.c.flush() }

// After calls f when all that was sent so far has left the stream, or never will: it must not wait, nor call the stream.
func (s *Stream) After(f func()) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if len(s.queue) == 0 {
		f()
		return
	}
	last := &s.queue[len(s.queue)-1]
	last.own = false
	if before := last.sent; before != nil {
		last.sent = func() { before(); f() }
		return
	}
	last.sent = f
}

// Finish ends the stream with a status, behind what was sent before.
func (s *Stream) Finish(code codes.Code, message string) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.isOver || s.finished {
		return
	}
	s.finished = true
	end := []string{"grpc-status", strconv.Itoa(int(code))}
	if message != "" {
		end = append(end, "grpc-message", escape(message))
	}
	s.queue = append(s.queue, segment{end: end})
	s.stir()
}

// start finds the handler.
func (s *Stream) start(h Call) {
	c := s.c
	if !h.isRPC() {
		c.mu.Lock()
		c.say(s.id, true, ":status", "415")
		c.reset(s.id, http2.ErrCodeNo)
		c.unlock()
		s.next()
		return
	}
	cost := int64(streamCost)
	for i := range h.fields {
		cost += int64(len(h.fields[i].Name) + len(h.fields[i].Value) + fieldCost)
	}
	if !s.account.Take(cost) {
		s.Finish(codes.ResourceExhausted, "too many streams are open")
		s.next()
		return
	}
	var handler Handler
	fine := c.server.guard(func() { handler = c.server.options.Open(&h, s) })
	s.handler = handler
	switch {
	case !fine:
		s.Finish(codes.Internal, "the call could not be handled")
	case handler == nil:
		s.Finish(codes.Unimplemented, "unknown method "+h.Method)
	}
	if h.timed {
		c.mu.Lock()
		s.deadline = time.AfterFunc(h.timeout, s.expire)
		c.mu.Unlock()
	}
	s.next()
}

// expire breaks the stream off at the client's own deadline.
func (s *Stream) expire() {
	c := s.c
	c.mu.Lock()
	if !s.isOver {
		c.reset(s.id, http2.ErrCodeCancel)
	}
	c.unlock()
	c.flush()
}

// stir lines the stream up when it can send something. c.mu is held.
func (s *Stream) stir() {
	if s.queued || len(s.queue) == 0 || s.sendWindow <= 0 && s.queue[0].end == nil {
		return
	}
	s.queued = true
	s.c.ready = append(s.c.ready, s)
}

// frame frames what fits into one frame. c.mu is held.
func (s *Stream) frame() {
	c := s.c
	if len(s.queue) == 0 || s.sendWindow <= 0 && s.queue[0].end == nil { // it changed after it was lined up
		return
	}
	if s.queue[0].end != nil {
		s.frameEnd(s.queue[0].end)
		return
	}
	if !s.headed {
		s.headed = true
		c.say(s.id, false, ":status", "200", "content-type", "application/grpc")
	}
	room := int(min(int64(c.peerFrame), s.sendWindow, c.sendWindow))
	at, left := len(c.plain), room
	c.plain = appendHeader(c.plain, 0, http2.FrameData, 0, s.id)
	for left > 0 && len(s.queue) > 0 && s.queue[0].end == nil {
		first := &s.queue[0]
		n := min(left, len(first.data))
		c.plain = append(c.plain, first.data[:n]...)
		left -= n
		if first.data = first.data[n:]; len(first.data) == 0 {
			s.pop()
		}
	}
	c.plain = finishFrame(c.plain, at)
	c.sentData++
	s.lived = true
	s.sendWindow -= int64(room - left)
	c.sendWindow -= int64(room - left)
	s.grant()
}

// pop takes the first segment off. c.mu is held.
func (s *Stream) pop() {
	first := s.queue[0]
	s.pending -= first.size
	if s.kept > 0 && s.pending == 0 {
		s.account.Put(s.kept)
		s.kept, s.tight = 0, false
	}
	s.queue[0] = segment{}
	if s.queue = s.queue[1:]; len(s.queue) == 0 {
		s.queue = nil
	}
	if first.sent != nil {
		first.sent()
	}
}

// frameEnd frames the status, with which the stream is over. c.mu is held.
func (s *Stream) frameEnd(end []string) {
	c := s.c
	if !s.headed {
		end = append([]string{":status", "200", "content-type", "application/grpc"}, end...)
	}
	c.say(s.id, true, end...)
	if !s.halfClosed { // the client need not send the rest
		c.plain = appendReset(c.plain, s.id, http2.ErrCodeNo)
	}
	s.over(c)
}

// over ends the stream. c.mu is held, and released by c.unlock, which notifies the handler.
func (s *Stream) over(c *connection) {
	if s.isOver {
		return
	}
	s.isOver = true
	if delete(c.streams, s.id); len(c.streams) == 0 {
		c.work(false)
	}
	c.endLife()
	for len(s.queue) > 0 {
		s.pop()
	}
	if s.cancel != nil {
		s.cancel()
	}
	if s.deadline != nil {
		s.deadline.Stop()
	}
	c.ended = append(c.ended, s)
}

package h2stream

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// SmallMessage is the size in bytes up to which a message's body is copied rather than referred to, and put with others.
const SmallMessage = 4 << 10

const (
	// prefix is the size of what precedes each message: whether it is compressed, and its length.
	prefix = 5
	// keepPartial is the largest buffer for messages in pieces that is used again, in bytes.
	keepPartial = 1 << 20
)

// Stream is one call of a client. Its methods may be called by any goroutine until Handler.Ended.
type Stream struct {
	c       *connection
	id      uint32
	handler Handler // nil until start, and when there is none

	// Of the reading goroutine: the message that is being received.
	begun   [prefix]byte
	have    int // of begun
	partial *[]byte

	off func() // of whoever calls the handler: what Off was given

	// Guarded by c.mu.
	busy       bool // somebody calls the handler
	inbox      []event
	isOver     bool
	toldEnd    bool  // the handler has been
	finished   bool  // Finish was called
	halfClosed bool  // by the client
	unsaid     int   // bytes received that the client has not been told it may send again
	held       int64 // bytes of partial that the server has counted
	sendWindow int64
	queue      []segment
	pending    int64 // bytes in queue that count
	queued     bool  // in c.ready
	headed     bool  // the answer's header is sent
	deadline   *time.Timer
	ctx        context.Context //nolint:containedctx // of the stream itself
	cancel     context.CancelFunc
}

// event is something for the handler: a message, or that there will be no more.
type event struct {
	message []byte
	end     bool
}

// segment is a piece of what is to be sent.
type segment struct {
	data []byte
	own  bool   // more may be appended to data
	size int64  // in bytes, as far as it counts
	sent func() // called when it was sent, or never will be; may be nil
	end  []string
}

var partials = sync.Pool{New: func() any { return new([]byte) }}

func newStream(c *connection, id uint32) *Stream { return &Stream{c: c, id: id, busy: true} }

// Client is the address of the other end.
func (s *Stream) Client() net.Addr { return s.c.client }

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

// Off has f run elsewhere as soon as the handler's method that calls it has returned. It may wait. The handler is not
// called until it has returned; it may call Off itself. At most streamWindow bytes of messages wait meanwhile.
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
	last.data = binary.BigEndian.AppendUint32(last.data, uint32(n)) //nolint:gosec // messages are smaller
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
	s.stir()
}

// open gives the last segment, which may be appended to. c.mu is held.
func (s *Stream) open(size int) *segment {
	if n := len(s.queue); n == 0 || !s.queue[n-1].own || len(s.queue[n-1].data) > SmallMessage {
		s.queue = append(s.queue, segment{data: make([]byte, 0, size), own: true})
	}
	return &s.queue[len(s.queue)-1]
}

// Flush has what was sent leave now. It is for those that Off runs and that go on: whoever else has sent something need
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

// receive takes some bytes of messages, of size bytes with padding, and whether they are the last. The reading goroutine
// calls it.
func (s *Stream) receive(p []byte, size int, end bool) error {
	c := s.c
	c.mu.Lock()
	s.unsaid += size
	tooMuch, closed := s.unsaid > streamWindow, s.halfClosed
	s.halfClosed = closed || end
	c.mu.Unlock()
	switch {
	case closed:
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeStreamClosed}
	case tooMuch:
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeFlowControl}
	}
	for len(p) > 0 && s.have >= 0 {
		p = s.assemble(p)
	}
	if end {
		if s.have > 0 {
			s.spoil(codes.Internal, "the last message is not complete")
		} else {
			s.turn(&event{end: true})
		}
	}
	if !s.hold() {
		s.spoil(codes.ResourceExhausted, "too many large messages are under way")
		s.hold()
	}
	c.mu.Lock()
	s.grant()
	c.mu.Unlock()
	return nil
}

// hold has the server count what has come of a message, and tells whether it may hold as much. The reading goroutine
// calls it.
func (s *Stream) hold() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	now := int64(0)
	if s.partial != nil && !s.isOver {
		now = int64(len(*s.partial))
	}
	more := now - s.held
	s.held = now
	return more == 0 || s.c.server.held.Add(more) <= s.c.server.options.MaxHeld || more < 0
}

// assemble takes bytes of one message, and gives back what is behind them.
func (s *Stream) assemble(p []byte) (rest []byte) {
	if s.have < prefix {
		n := copy(s.begun[s.have:], p)
		s.have += n
		if p = p[n:]; s.have < prefix {
			return nil
		}
	}
	size := int(binary.BigEndian.Uint32(s.begun[1:]))
	switch limit := s.c.server.options.MaxMessage; {
	case s.begun[0] != 0:
		s.spoil(codes.Unimplemented, "messages are not taken compressed")
		return nil
	case size > limit:
		s.spoil(codes.ResourceExhausted, fmt.Sprintf("a message of %d bytes is larger than %d", size, limit))
		return nil
	}
	if s.partial == nil {
		if len(p) >= size { // as most are
			s.have = 0
			s.turn(&event{message: p[:size]})
			return p[size:]
		}
		s.partial = partials.Get().(*[]byte)
		*s.partial = (*s.partial)[:0]
	}
	n := min(len(p), size-len(*s.partial))
	*s.partial = append(*s.partial, p[:n]...)
	if len(*s.partial) == size {
		s.have = 0
		whole := s.partial
		s.partial = nil
		s.turn(&event{message: *whole})
		if cap(*whole) <= keepPartial {
			partials.Put(whole)
		}
	}
	return p[n:]
}

// spoil ends a stream whose bytes cannot be read as messages. No more of them is looked at.
func (s *Stream) spoil(code codes.Code, message string) {
	s.have, s.partial = -1, nil
	s.Finish(code, message)
}

// grant lets the client send on, unless it has to wait. c.mu is held.
func (s *Stream) grant() {
	if s.unsaid < streamWindow/4 || s.busy || s.isOver || s.halfClosed || s.pending > s.c.server.options.MaxPending {
		return
	}
	s.c.plain = appendWindowUpdate(s.c.plain, s.id, s.unsaid)
	s.unsaid = 0
}

// turn gives an event to the handler when it is its turn; nil only looks whether it has to be told of the end. The
// event's message is copied if it has to wait.
func (s *Stream) turn(e *event) {
	c := s.c
	c.mu.Lock()
	if s.busy {
		if e != nil {
			s.inbox = append(s.inbox, event{message: append([]byte(nil), e.message...), end: e.end})
		}
		c.mu.Unlock()
		return
	}
	s.busy = true
	skip := e == nil || s.isOver || s.finished
	c.mu.Unlock()
	if !skip {
		s.call(*e)
	}
	s.next()
}

// next goes on with what is due for the handler, and gives the turn back when there is nothing.
func (s *Stream) next() {
	c := s.c
	for {
		if f := s.off; f != nil {
			s.off = nil
			c.server.elsewhere(func() {
				if !c.server.guard(f) {
					s.fail()
				}
				s.next()
				c.flush()
			})
			return
		}
		c.mu.Lock()
		switch {
		case s.isOver:
			told := s.toldEnd
			s.toldEnd, s.inbox = true, nil
			c.mu.Unlock()
			if !told && s.handler != nil {
				c.server.guard(s.handler.Ended)
			}
			return // and stay busy
		case len(s.inbox) > 0 && !s.finished:
			e := s.inbox[0]
			s.inbox[0] = event{}
			s.inbox = s.inbox[1:]
			c.mu.Unlock()
			s.call(e)
		default:
			s.inbox, s.busy = nil, false
			s.grant()
			c.mu.Unlock()
			return
		}
	}
}

// call tells the handler of an event.
func (s *Stream) call(e event) {
	defer func() {
		if v := recover(); v != nil {
			s.c.server.options.Log.Error(fmt.Errorf("panic: %v", v), "Request failed", "stack", string(debug.Stack()))
			s.fail()
		}
	}()
	if e.end {
		s.handler.HalfClosed()
	} else {
		s.handler.Message(e.message)
	}
}

// fail ends the stream for a fault of the handler.
func (s *Stream) fail() {
	s.off = nil
	s.Finish(codes.Internal, "the request could not be handled")
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
	s.sendWindow -= int64(room - left)
	c.sendWindow -= int64(room - left)
	s.grant()
}

// pop takes the first segment off. c.mu is held.
func (s *Stream) pop() {
	first := s.queue[0]
	s.pending -= first.size
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

// over is the end of the stream. c.mu is held, and given back by c.unlock, which tells the handler.
func (s *Stream) over(c *connection) {
	if s.isOver {
		return
	}
	s.isOver = true
	delete(c.streams, s.id)
	c.server.held.Add(-s.held)
	s.held = 0
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

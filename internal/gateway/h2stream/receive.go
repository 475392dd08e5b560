package h2stream

import (
	"encoding/binary"
	"fmt"
	"runtime/debug"
	"sync"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// receive takes some bytes of messages, of size bytes with padding, and whether they are the last. The reading goroutine
// calls it.
func (s *Stream) receive(p []byte, size int, end bool) error {
	c := s.c
	c.mu.Lock()
	s.unsaid += size
	s.lived = true
	s.arrived += int64(size)
	tooMuch, closed := s.unsaid > streamWindow, s.halfClosed
	s.halfClosed = closed || end
	c.mu.Unlock()
	switch {
	case closed:
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeStreamClosed}
	case tooMuch:
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeFlowControl}
	case !s.expects(len(p), end): // malformed (RFC 9113, 8.1.1)
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeProtocol}
	}
	s.account.Received(len(p))
	for len(p) > 0 && s.have >= 0 {
		p = s.assemble(p)
	}
	if end {
		if s.have > 0 {
			s.spoil(codes.Internal, "the last message is not complete")
		} else {
			s.dispatch(&event{end: true})
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

// expects counts received bytes, and reports whether they agree with the request's content-length, so far or at its end.
func (s *Stream) expects(n int, end bool) bool {
	if s.announced < 0 {
		return true
	}
	s.announced -= int64(n)
	return s.announced == 0 || s.announced > 0 && !end
}

// hold counts the received bytes of a message, and reports whether there is room for it. The reading goroutine calls it.
func (s *Stream) hold() bool {
	now := int64(0)
	if s.partial != nil {
		now = int64(len(*s.partial))
	}
	more := now - s.held
	switch {
	case more > 0 && !s.account.Take(more):
		return false
	case more < 0:
		s.account.Put(-more)
	}
	s.held = now
	return true
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
			s.dispatch(&event{message: p[:size]})
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
		s.dispatch(&event{message: *whole})
		if cap(*whole) <= keepPartial {
			partials.Put(whole)
		}
	}
	return p[n:]
}

// spoil ends a stream whose bytes cannot be parsed as messages. The rest of them is ignored.
func (s *Stream) spoil(code codes.Code, message string) {
	s.have, s.partial = -1, nil
	s.Finish(code, message)
}

// grant lets the client send on, unless it has to wait. c.mu is held.
func (s *Stream) grant() {
	if s.unsaid < streamWindow/4 || s.busy || s.isOver || s.halfClosed || s.pending > s.c.server.options.MaxPending || s.tight &&
		s.pending > 0 {
		return
	}
	s.c.plain = appendWindowUpdate(s.c.plain, s.id, s.unsaid)
	s.unsaid = 0
}

// dispatch passes an event to the handler when it is next; with nil it only checks whether the end has to be reported. The
// event's message is copied if it has to wait.
func (s *Stream) dispatch(e *event) {
	c := s.c
	c.mu.Lock()
	if s.busy {
		fits := e == nil || e.end || s.account.Take(e.cost())
		if e != nil && fits {
			s.inbox = append(s.inbox, event{message: append([]byte(nil), e.message...), end: e.end, slow: e.slow})
		}
		c.mu.Unlock()
		if !fits && !e.slow {
			s.spoil(codes.ResourceExhausted, "too many messages wait")
		}
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

// next continues with the events due for the handler, and gives the turn back when there are none.
func (s *Stream) next() {
	c := s.c
	for {
		if f := s.off; f != nil {
			s.off = nil
			c.server.elsewhere(func() {
				if s.goesOn() && !c.server.guard(f) {
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
			reported := s.endReported
			s.endReported, s.inbox = true, nil
			if !reported {
				c.unended--
			}
			c.mu.Unlock()
			if !reported && s.handler != nil {
				c.server.guard(s.handler.Ended)
			}
			s.account.Close()
			if !reported {
				c.server.streams.Done()
			}
			return // and stay busy
		case len(s.inbox) > 0 && !s.finished:
			e := s.inbox[0]
			s.inbox[0] = event{}
			s.inbox = s.inbox[1:]
			c.mu.Unlock()
			s.call(e)
			s.account.Put(e.cost())
		default:
			s.inbox, s.busy = nil, false
			s.grant()
			c.mu.Unlock()
			return
		}
	}
}

// goesOn reports whether the stream is not over: what was put off of one that was reset before it began is not done.
func (s *Stream) goesOn() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return !s.isOver
}

// call notifies the handler of an event.
func (s *Stream) call(e event) {
	defer func() {
		if v := recover(); v != nil {
			s.c.server.options.Log.Error(fmt.Errorf("panic: %v", v), "Request failed", "stack", string(debug.Stack()))
			s.fail()
		}
	}()
	switch {
	case e.end:
		s.handler.HalfClosed()
	case e.slow:
		s.handler.Slow()
	default:
		s.handler.Message(e.message)
	}
}

// fail ends the stream for a fault of the handler.
func (s *Stream) fail() {
	s.off = nil
	s.Finish(codes.Internal, "the request could not be handled")
}

// event is something for the handler: a message, that there will be no more, or that the request arrives too slowly.
type event struct {
	message   []byte
	end, slow bool
}

// eventCost is what a message takes besides its bytes while it waits: messages can be empty, so their bytes alone would bound nothing.
const eventCost = 64

// cost is what an event takes while it waits, in bytes. There is one end at most, which always has room.
func (e *event) cost() int64 {
	if e.end {
		return 0
	}
	return int64(len(e.message)) + eventCost
}

var partials = sync.Pool{New: func() any { return new([]byte) }}

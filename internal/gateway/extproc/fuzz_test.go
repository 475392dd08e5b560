package extproc

import (
	"context"
	"slices"
	"testing"
	"time"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/go-logr/logr"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// played is a stream whose messages are known beforehand.
type played struct {
	sent     []*pb.ProcessingResponse
	finished bool
	off      func()
	after    []func()
	held     int64
}

func (*played) Host() string             { return "127.0.0.1" }
func (*played) Context() context.Context { return context.Background() }
func (p *played) After(f func())         { p.after = append(p.after, f) }
func (p *played) Hold(n int64) bool      { p.held += n; return true }
func (p *played) Release(n int64)        { p.held -= n }
func (p *played) Own(string) bool        { return true }
func (p *played) Complete()              {}
func (p *played) Off(f func())           { p.off = f }
func (p *played) Finish(codes.Code, string) {
	p.finished = true
}

func (p *played) Send(head, body, tail []byte, _ int) {
	var m pb.ProcessingResponse
	if err := proto.Unmarshal(slices.Concat(head, body, tail), &m); err != nil {
		panic(err)
	}
	if !p.finished {
		p.sent = append(p.sent, &m)
	}
}

// play plays messages, then a half-close if closed is set, then the end.
func (p *played) play(s *Server, messages []*pb.ProcessingRequest, closed bool) {
	x := s.open(nil, p, nil)
	call := func(f func()) {
		if p.finished {
			return
		}
		for f(); p.off != nil; {
			f, p.off = p.off, nil
			f()
		}
	}
	for _, m := range messages {
		raw, err := proto.Marshal(m)
		if err != nil {
			panic(err)
		}
		call(func() { x.Message(raw); clear(raw) })
	}
	if closed {
		call(x.HalfClosed)
	}
	for _, f := range p.after {
		f()
	}
	x.Ended()
}

// messageOf makes a message of two bytes: its kind and end, and which of some bodies it has.
func messageOf(kind, which byte) *pb.ProcessingRequest {
	bodies := []string{"", completion, completion[:12], completion[12:], "{", "data: {\"choices\":[{\"text\":\"a\"}]}\n\n", "\x00"}
	body, end := bodies[int(which)%len(bodies)], kind&1 == 1
	switch kind >> 1 % 6 {
	case 0:
		m := requestHead(end, post...)
		modes := []filter.ProcessingMode_BodySendMode{4, 4, 4, 0, 1, 2, 3, 5}
		m.ProtocolConfig.RequestBodyMode, m.ProtocolConfig.ResponseBodyMode = modes[which%8], modes[which>>3%8]
		return m
	case 1:
		return requestPiece(body, end)
	case 2:
		return &pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestTrailers{RequestTrailers: &pb.HttpTrailers{}}}
	case 3:
		return responseHead(end, ":status", []string{"200", "503", "x", ""}[which%4], "content-type", "text/event-stream")
	case 4:
		return responsePiece(body, end)
	}
	return &pb.ProcessingRequest{Request: &pb.ProcessingRequest_ResponseTrailers{ResponseTrailers: &pb.HttpTrailers{}}}
}

// onlyHeaders reports whether the header of an answer arrived in a stream whose gateway shows no bodies of answers. If that
// answer is streamed, its request stays counted for its expected duration.
func onlyHeaders(messages []*pb.ProcessingRequest) bool {
	hidden, answered := false, false
	for _, m := range messages {
		hidden = hidden || m.GetRequestHeaders() != nil && bodyless(m.GetProtocolConfig())
		answered = answered || m.GetResponseHeaders() != nil
	}
	return hidden && answered
}

// FuzzMessages plays any messages in any order. Whatever they are, a request is routed at most once, nothing follows a
// refusal, and nothing is left: at once, or where only the header of a streamed answer is shown, after the time that the
// answer should take.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{0, 0, 3, 1, 6, 0, 9, 5}, true)  // a request and its answer
	f.Add([]byte{0, 0, 2, 1, 4, 0}, false)       // trailers
	f.Add([]byte{1, 0, 7, 0}, true)              // no bodies
	f.Add([]byte{0, 5, 2, 1, 6, 0, 11, 0}, true) // buffered
	f.Add([]byte{0, 0, 3, 4, 3, 1}, false)       // refused
	f.Add([]byte("0%20A000"), true)              // refused, then trailers
	f.Add([]byte{0, 24, 3, 1}, false)            // no answer, where its body would not be shown
	f.Add([]byte{0, 24, 3, 1, 6, 0}, false)      // only the header of a streamed answer
	now := time.Unix(1_000_000, 0)
	clock := func() time.Time { return now }
	p := picker.New(picker.Options{Log: logr.Discard(), Now: clock})
	if err := p.Apply([]picker.Spec{spec("127.0.0.1:1")}); err != nil {
		f.Fatal(err)
	}
	s := New(Options{Picker: p, Now: clock})
	for _, bodyless := range []bool{false, true} {
		s.gateways.learn(route{"127.0.0.1", bodyless}) // it shows answers, so that no load is estimated where none arrives
	}
	f.Fuzz(func(t *testing.T, script []byte, closed bool) {
		var messages []*pb.ProcessingRequest
		for i := 0; i+1 < len(script) && i < 64; i += 2 {
			messages = append(messages, messageOf(script[i], script[i+1]))
		}
		stream := new(played)
		stream.play(s, messages, closed) // the stream can end with an error for a violation of the protocol
		routed, refused := 0, false
		for _, m := range stream.sent {
			if refused {
				t.Errorf("behind a refusal: %v", m)
			}
			refused = m.GetImmediateResponse() != nil
			if destinationOf(m) != "" {
				routed++
			}
		}
		if routed > 1 {
			t.Errorf("routed %d times", routed)
		}
		most := 0
		if onlyHeaders(messages) {
			most = 1
		}
		for range 2 {
			for _, st := range p.Stats() {
				if st.Speculating != 0 || st.Endpoints[0].Load.InFlight > most || stream.held != 0 || s.Streams() != 0 {
					t.Errorf("left: %+v, %d bytes", st, stream.held)
				}
			}
			now, most = now.Add(time.Hour), 0 // longer than any answer should take
		}
	})
}

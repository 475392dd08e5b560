package main

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
)

// lean is one stream of ext_proc by a client that writes and reads in one goroutine, as gateways do with an event loop:
// what it measures has no hand-overs of the client in it.
type lean struct {
	conn   net.Conn
	frames *http2.Framer
	out    bytes.Buffer // frames not yet written
	in     []byte       // of messages not yet taken
}

func dialLean(address string, encrypted bool) (*lean, error) {
	conn, err := net.Dial("tcp", address) //nolint:noctx // here
	if err != nil {
		return nil, err
	}
	if encrypted {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) // as gateways do
	}
	l := &lean{conn: conn}
	l.frames = http2.NewFramer(&l.out, conn)
	l.out.WriteString(http2.ClientPreface)
	var block bytes.Buffer
	head := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "https"}, {":path", pb.ExternalProcessor_Process_FullMethodName}, {":authority", "picker"},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		if err := head.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return nil, err
		}
	}
	return l, errors.Join(
		l.frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30}),
		l.frames.WriteWindowUpdate(0, 1<<30),
		l.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}),
	)
}

func (l *lean) flush() error {
	_, err := l.out.WriteTo(l.conn)
	return err
}

// send sends a message.
func (l *lean) send(m *pb.ProcessingRequest) error {
	raw, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	raw = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(raw))), raw...)
	for len(raw) > 0 {
		n := min(len(raw), 16384)
		if err := l.frames.WriteData(1, false, raw[:n]); err != nil {
			return err
		}
		raw = raw[n:]
	}
	return l.flush()
}

// receive waits for a message.
func (l *lean) receive() (*pb.ProcessingResponse, error) {
	for {
		if len(l.in) >= 5 {
			if n := 5 + int(binary.BigEndian.Uint32(l.in[1:])); len(l.in) >= n {
				var m pb.ProcessingResponse
				err := proto.Unmarshal(l.in[5:n], &m)
				l.in = append(l.in[:0], l.in[n:]...)
				return &m, err
			}
		}
		f, err := l.frames.ReadFrame()
		if err != nil {
			return nil, err
		}
		switch f := f.(type) {
		case *http2.DataFrame:
			l.in = append(l.in, f.Data()...)
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = l.frames.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				err = errors.Join(l.frames.WritePing(true, f.Data), l.flush())
			}
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			err = fmt.Errorf("the stream has ended: %v", f)
		}
		if err != nil {
			return nil, err
		}
	}
}

// leanEvents measures how long events of an answer take to return to such a client.
func leanEvents(address string, encrypted bool) ([]time.Duration, error) {
	l, err := dialLean(address, encrypted)
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.conn.Close() }()
	body := conversations(sizes[1])[0].turn(0)
	for _, m := range []*pb.ProcessingRequest{requestHead(len(body)), bodyPiece(body, true)} {
		if err := l.send(m); err != nil {
			return nil, err
		}
	}
	for end := false; !end; {
		m, err := l.receive()
		if err != nil {
			return nil, err
		}
		end = m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream()
	}
	if err := l.send(answerHead()); err != nil {
		return nil, err
	}
	if _, err := l.receive(); err != nil {
		return nil, err
	}
	var took []time.Duration
	for i := range streamEvents {
		start := time.Now()
		if err := l.send(answerPiece(event, i == streamEvents-1)); err != nil {
			return nil, err
		}
		if _, err := l.receive(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
		time.Sleep(streamEvery)
	}
	return took, nil
}

// tcpEvents measures how long as many bytes take to return from a server that only echoes bytes: the cost of the kernel and
// of the two wake-ups.
func tcpEvents(address string) ([]time.Duration, error) {
	conn, err := net.Dial("tcp", address) //nolint:noctx // here
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	buffer := make([]byte, len(event)+50)
	var took []time.Duration
	for range streamEvents {
		start := time.Now()
		if _, err := conn.Write(buffer); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(conn, buffer); err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
		time.Sleep(streamEvery)
	}
	return took, nil
}

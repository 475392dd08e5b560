package rpc

import (
	"bytes"
	"context"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/peerpb"
	"github.com/kvasir-dev/kvasir/internal/replicas"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// asSent sends bytes as they are.
type asSent struct{}

func (asSent) Marshal(v any) ([]byte, error)     { return v.([]byte), nil }
func (asSent) Unmarshal(raw []byte, v any) error { *v.(*[]byte) = bytes.Clone(raw); return nil }
func (asSent) Name() string                      { return "proto" }

// manyEmpty is a message of 4 MiB with empty messages in one field of one of its own.
func manyEmpty(outer, inner protowire.Number) []byte {
	field := protowire.AppendTag(nil, inner, protowire.BytesType)
	raw := bytes.Repeat(append(field, 0), maxMessage/2-100)
	return protowire.AppendBytes(protowire.AppendTag(nil, outer, protowire.BytesType), raw)
}

// TestWhatMessagesTakeIsBounded: of messages whose bytes are within bounds, before and after the hello.
func TestWhatMessagesTakeIsBounded(t *testing.T) {
	p := startPicker(t, "127.0.0.1:0", ServerOptions{Peers: &PeerService{Auth: Anybody{}, Inbox: replicas.NewInbox(nil, 1), Incarnation: 1}})
	c, err := Dial(p.addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	encode := func(m proto.Message) []byte {
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	report := encode(&pb.ReporterMessage{Kind: &pb.ReporterMessage_Hello{Hello: &pb.Hello{Protocol: cachesync.Protocol, Pod: "uid-1"}}})
	peer := encode(&peerpb.PeerMessage{Kind: &peerpb.PeerMessage_Hello{Hello: &peerpb.Hello{Protocol: replicas.Protocol, Incarnation: 2}}})
	for name, tc := range map[string]struct {
		method   string
		messages [][]byte
	}{
		"changes":                     {Report_Push_FullMethodName, [][]byte{report, manyEmpty(4, 2)}},
		"changes in place of hello":   {Report_Push_FullMethodName, [][]byte{manyEmpty(4, 2)}},
		"an update":                   {Peer_Exchange_FullMethodName, [][]byte{peer, manyEmpty(2, 7)}},
		"an update in place of hello": {Peer_Exchange_FullMethodName, [][]byte{manyEmpty(2, 3)}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, tc.method, grpc.ForceCodec(asSent{}))
		if err != nil {
			t.Fatal(err)
		}
		for _, raw := range tc.messages {
			if err := s.SendMsg(raw); err != nil {
				break // RecvMsg has the reason
			}
		}
		for err == nil {
			var raw []byte
			err = s.RecvMsg(&raw)
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
			t.Errorf("%s: it takes %d MiB", name, took>>20)
		}
		if code := status.Code(err); code != codes.Internal && code != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

// TestPartsOfChangesPass: the densest ones that reporters send.
func TestPartsOfChangesPass(t *testing.T) {
	m := &pb.ReporterMessage{Kind: &pb.ReporterMessage_Changes{Changes: &pb.Changes{}}}
	for range 256 << 10 / 16 {
		m.GetChanges().Changes = append(m.GetChanges().GetChanges(), &pb.Change{Kind: pb.Change_KIND_CLEARED, Window: &pb.Window{Keys: 1}})
	}
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if size, within := shapeOf(m).Decoded(raw, maxDecoded/2); !within {
		t.Errorf("it takes %d bytes", size)
	}
}

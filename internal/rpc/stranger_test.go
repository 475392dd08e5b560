package rpc

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// TestNothingIsTakenOfAStrangersMessage: a client without a proof is refused before it has sent a message, on every method, so that
// it cannot make the picker hold incomplete ones.
func TestNothingIsTakenOfAStrangersMessage(t *testing.T) {
	p := startPicker(t, "127.0.0.1:0", ServerOptions{
		Auth: refuseAll{}, Peers: &PeerService{Auth: refuseAll{}, Log: logr.Discard()},
		Operate: &OperateService{Auth: refuseAll{}, Log: logr.Discard()}, Library: &Library{Auth: refuseAll{}},
	})
	c, err := Dial(p.addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, method := range []string{
		Report_Push_FullMethodName, Report_InFlight_FullMethodName, Peer_Exchange_FullMethodName, Peer_Borrow_FullMethodName,
		Peer_Recall_FullMethodName, Operate_Watch_FullMethodName, Operate_Warm_FullMethodName, ModelFiles_HandOver_FullMethodName,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.RecvMsg(new(emptypb.Empty)); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %v", method, err)
		}
		cancel()
	}
}

// TestHeadersOfCallsAreBounded: they are read before the client is authenticated. The server announces the bound, and gRPC's
// client keeps to it.
func TestHeadersOfCallsAreBounded(t *testing.T) {
	p := startPicker(t, "127.0.0.1:0", ServerOptions{Auth: refuseAll{}})
	c, err := Dial(p.addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for size, want := range map[int]codes.Code{maxHeader / 2: codes.Unauthenticated, 2 * maxHeader: codes.Internal} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		ctx = metadata.AppendToOutgoingContext(ctx, "x", strings.Repeat("y", size))
		stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, Report_InFlight_FullMethodName)
		if err == nil {
			err = stream.RecvMsg(new(emptypb.Empty))
		}
		if status.Code(err) != want {
			t.Errorf("a header of %d bytes: %v, want %v", size, err, want)
		}
		cancel()
	}
}

// TestStreamsAreWork: the listener learns when a stream begins and ends, so that it closes no connection with one for others.
func TestStreamsAreWork(t *testing.T) {
	begun, ended := make(chan net.Addr, 1), make(chan struct{}, 1)
	p := startPicker(t, "127.0.0.1:0", ServerOptions{Auth: Anybody{}, Working: func(remote net.Addr) func() {
		begun <- remote
		return func() { ended <- struct{}{} }
	}})
	c, err := Dial(p.addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, Report_Push_FullMethodName); err != nil {
		t.Fatal(err)
	}
	if remote := <-begun; remote.Network() != "tcp" {
		t.Errorf("a stream of %v", remote)
	}
	select {
	case <-ended:
		t.Error("the stream is open, and counts as ended")
	default:
	}
	cancel()
	<-ended
}

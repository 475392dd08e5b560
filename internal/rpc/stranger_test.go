package rpc

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
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
		Operate_Watch_FullMethodName, Operate_Warm_FullMethodName, ModelFiles_HandOver_FullMethodName,
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

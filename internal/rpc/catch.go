package rpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/kvasir-dev/kvasir/internal/fault"
)

// catchStream confines a panic to the stream whose message caused it.
func (o *ServerOptions) catchStream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) (err error) {
	if !o.catch(stream.Context(), info.FullMethod, func() { err = handler(server, stream) }) {
		return errPanic
	}
	return err
}

// catchCall does so for a call.
func (o *ServerOptions) catchCall(ctx context.Context, in any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (out any, err error) {
	if !o.catch(ctx, info.FullMethod, func() { out, err = handler(ctx, in) }) {
		return nil, errPanic
	}
	return out, err
}

var errPanic = status.Error(codes.Internal, "the request could not be handled")

// catch reports whether f has returned.
func (o *ServerOptions) catch(ctx context.Context, method string, f func()) bool {
	return fault.Catch(f, func(p *fault.Panic) {
		address := ""
		if from, ok := peer.FromContext(ctx); ok {
			address = from.Addr.String()
		}
		o.Log.Error(p, "Handling a stream panicked", "method", method, "peer", address, "stack", string(p.Stack))
	}) == nil
}

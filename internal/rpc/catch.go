package rpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/kvasir-dev/kvasir/internal/fault"
	"github.com/kvasir-dev/kvasir/internal/reportpb"
)

// catchStream confines a panic to the stream whose message caused it, and authenticates the client before anything of a
// message is taken. The first message must be small. Handlers of streams on which clients send one message authenticate only after that.
func (s *Server) catchStream(server any, in grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	if err := s.authenticate(in.Context(), info.FullMethod); err != nil {
		return err
	}
	if from, ok := peer.FromContext(in.Context()); ok && s.options.Working != nil {
		defer s.options.Working(from.Addr)()
	}
	if !s.options.catch(in.Context(), info.FullMethod, func() { err = handler(server, &stream{ServerStream: in}) }) {
		return errPanic
	}
	return err
}

// authenticate authenticates the client of a method whose handler begins with a message.
func (s *Server) authenticate(ctx context.Context, method string) error {
	switch method {
	case Report_InFlight_FullMethodName:
		if _, err := s.options.Auth.Authenticate(ctx); err != nil {
			return s.refuse(func(r *Refused) *uint64 { return &r.Unauthenticated }, codes.Unauthenticated, "%v", err)
		}
	case Peer_Borrow_FullMethodName, Peer_Recall_FullMethodName:
		if _, err := s.options.Peers.Auth.Authenticate(ctx); err != nil {
			return s.options.Peers.refuse(codes.Unauthenticated, err)
		}
	case Operate_Watch_FullMethodName, Operate_Warm_FullMethodName:
		_, err := s.options.Operate.authenticate(ctx)
		return err
	}
	return nil
}

// reports describes the service Report with all methods as streams: of the call InFlight, gRPC would otherwise take a message
// of a client before the client is authenticated.
var reports = grpc.ServiceDesc{
	ServiceName: Report_ServiceDesc.ServiceName,
	HandlerType: Report_ServiceDesc.HandlerType,
	Streams: append([]grpc.StreamDesc{{StreamName: "InFlight", ServerStreams: true, Handler: func(server any, stream grpc.ServerStream) error {
		in := new(reportpb.Hello)
		if err := stream.RecvMsg(in); err != nil {
			return err
		}
		out, err := server.(*Server).InFlight(stream.Context(), in)
		if err != nil {
			return err
		}
		return stream.SendMsg(out)
	}}}, Report_ServiceDesc.Streams...),
	Metadata: Report_ServiceDesc.Metadata,
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

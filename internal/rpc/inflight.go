package rpc

import (
	"context"
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// InFlight implements the service.
func (s *Server) InFlight(ctx context.Context, in *pb.Hello) (*wrapperspb.UInt32Value, error) {
	if s.options.Auth == nil || s.options.InFlight == nil {
		return nil, status.Error(codes.Unimplemented, "requests in flight are not counted by this server")
	}
	who, err := s.options.Auth.Authenticate(ctx)
	if err != nil {
		return nil, s.refuse(func(r *Refused) *uint64 { return &r.Unauthenticated }, codes.Unauthenticated, "%v", err)
	}
	if !who.Is(in.GetPod()) {
		return nil, s.refuse(func(r *Refused) *uint64 { return &r.NotTheirOwn }, codes.PermissionDenied, "pod %q is not the reporter's own",
			in.GetPod())
	}
	n := s.options.InFlight(endpoint.ID{Pod: in.GetPod(), Rank: int(in.GetRank())})
	return wrapperspb.UInt32(uint32(min(max(0, n), math.MaxUint32))), nil // within its bounds
}

// InFlight asks the picker how many requests it has sent to an endpoint that have not ended. known is false for a picker
// that does not count them, as those of older releases.
func (c *Client) InFlight(ctx context.Context, id endpoint.ID) (n int, known bool, err error) {
	answer, err := NewReportClient(c.conn).InFlight(ctx, &pb.Hello{Pod: id.Pod, Rank: uint32(id.Rank)})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return 0, false, nil
	case err != nil:
		return 0, false, err
	}
	return int(answer.GetValue()), true, nil
}

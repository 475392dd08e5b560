package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/fault"
	pb "github.com/kvasir-dev/kvasir/internal/peerpb"
	"github.com/kvasir-dev/kvasir/internal/reportpb"
)

// A starting picker has no state until the reporters have found it. Meanwhile it borrows the state that its peers have
// received, and returns it when no live source confirms it any more.
const (
	// borrowFor is how long after it has found a peer a picker borrows from it, borrowEvery how often it looks what is
	// still missing.
	borrowFor   = 5 * time.Second
	borrowEvery = 100 * time.Millisecond
	// borrowing bounds the loans that are being carried at a time, maxLoans those that there are, each of a connection.
	borrowing = 4
	maxLoans  = maxStreams / 2
	// loanLife bounds a loan: what is borrowed is not kept up to date.
	loanLife = 30 * time.Second
	// vouchEvery is how soon a borrower learns that its lender does not vouch any more.
	vouchEvery = 50 * time.Millisecond
	// partKeys bounds the keys in a part of a loan: about 256 KiB.
	partKeys = 32 << 10
)

// Borrow implements the service.
func (s *PeerService) Borrow(w *pb.Want, stream grpc.ServerStreamingServer[pb.Loan]) error {
	if _, err := s.Auth.Authenticate(stream.Context()); err != nil {
		return s.refuse(codes.Unauthenticated, err)
	}
	r := s.server.lender(w)
	if r == nil {
		return status.Error(codes.NotFound, "the endpoint is unknown")
	}
	at, changes := r.Lend(w.GetKeyId())
	if at == nil {
		return status.Error(codes.NotFound, "no live source confirms the endpoint")
	}
	for last := false; !last; {
		n := 0
		for keys := 0; n < len(changes) && keys < partKeys; n++ {
			keys += len(changes[n].GetKeys())
		}
		last = n == len(changes)
		if err := stream.Send(&pb.Loan{At: at, Changes: changes[:n], Last: last}); err != nil {
			return err
		}
		changes = changes[n:]
	}
	look := time.NewTicker(vouchEvery)
	defer look.Stop()
	end := time.NewTimer(loanLife)
	defer end.Stop()
	for r.Vouches(at) {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-end.C:
			return nil
		case <-look.C:
		}
	}
	return nil
}

// lender is the receiver of an endpoint whose keys are made with the wanted root; nil if there is none.
func (s *Server) lender(w *pb.Want) *cachesync.Receiver {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.byID[endpoint.ID{Pod: w.GetPod(), Rank: int(w.GetRank())}]
	if t == nil || t.pool != w.GetPool() {
		return nil
	}
	for _, root := range t.Roots {
		if root.ID == w.GetKeyId() && root.Model == w.GetModel() && root.BlockTokens == int(w.GetBlockTokens()) {
			return t.receiver
		}
	}
	return nil
}

// poor are the targets without known blocks and without another source, with what is needed of each.
func (s *Server) poor() map[*target]*pb.Want {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[*target]*pb.Want{}
	for id, t := range s.byID {
		if t.OtherRoad || len(t.Roots) == 0 || !t.receiver.Empty() {
			continue
		}
		root := &t.Roots[0]
		wanted[t] = &pb.Want{
			Pool: t.pool, Pod: id.Pod, Rank: uint32(id.Rank),
			KeyId: root.ID, Model: root.Model, BlockTokens: uint32(root.BlockTokens),
		}
	}
	return wanted
}

// Borrow borrows from a peer what is missing, for a while, and returns it in time. The call ends when ctx has ended, or
// nothing is borrowed any more.
func (s *Server) Borrow(ctx context.Context, c *Client) {
	client := NewPeerClient(c.conn)
	carrying := make(chan struct{}, borrowing)
	asked := map[*target]bool{}
	ended := make(chan struct{})
	loans := 0
	defer func() {
		for ; loans > 0; loans-- {
			<-ended
		}
	}()
	look := time.NewTicker(borrowEvery)
	defer look.Stop()
	for began := time.Now(); time.Since(began) < borrowFor; {
		for t, want := range s.poor() {
			if asked[t] || loans >= maxLoans {
				continue
			}
			asked[t] = true
			loans++
			go func() {
				defer func() { ended <- struct{}{} }()
				var err error
				if fault.Catch(func() { err = s.borrow(ctx, client, t, want, carrying) }, func(p *fault.Panic) {
					s.panics.Add(1)
					s.options.Log.Error(p, "Applying blocks of a peer panicked",
						"pool", t.pool, "endpoint", t.Endpoint.ID.String(), "stack", string(p.Stack))
				}) != nil {
					return
				}
				if err != nil && ctx.Err() == nil {
					s.options.Log.V(1).Info("Borrowing from a peer failed", "pool", t.pool, "endpoint", t.Endpoint.ID.String(), "reason", err.Error())
				}
			}()
		}
		select {
		case <-ctx.Done():
			return
		case <-ended:
			loans--
		case <-look.C:
		}
	}
}

// borrow borrows the blocks of one endpoint, until no live source confirms them or its own reporter has connected.
func (s *Server) borrow(ctx context.Context, client PeerClient, t *target, want *pb.Want, carrying chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, loanLife)
	defer cancel()
	carrying <- struct{}{}
	stream, at, changes, err := carry(ctx, client, want)
	<-carrying
	if err != nil {
		return err
	}
	taken, err := t.receiver.Borrow(at, changes)
	if !taken {
		return err
	}
	s.options.Log.V(1).Info("Borrowed from a peer", "pool", t.pool, "endpoint", t.Endpoint.ID.String())
	_, err = stream.Recv() // ends when the lender does not vouch any more
	t.giveBack()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// carry requests a loan and receives all of it. The stream stays open.
func carry(ctx context.Context, client PeerClient,
	want *pb.Want) (stream grpc.ServerStreamingClient[pb.Loan], at *reportpb.Position, changes []*reportpb.Change, err error) {
	if stream, err = client.Borrow(ctx, want); err != nil {
		return nil, nil, nil, err
	}
	for keys := 0; ; {
		loan, err := stream.Recv()
		if err != nil {
			return nil, nil, nil, err
		}
		if at == nil {
			at = loan.GetAt()
		}
		for _, c := range loan.GetChanges() {
			keys += len(c.GetKeys())
		}
		if changes = append(changes, loan.GetChanges()...); keys > cachesync.DefaultMaxHeld {
			return nil, nil, nil, fmt.Errorf("more than %d keys are lent", cachesync.DefaultMaxHeld)
		}
		if loan.GetLast() {
			return stream, at, changes, nil
		}
	}
}

// giveBack ends a loan of the target, if it is one still.
func (t *target) giveBack() {
	t.receiver.Return()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.owned = t.receiver.Status().Owned
}

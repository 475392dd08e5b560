package syncapi

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/peer"
	pb "github.com/kvasir-dev/kvasir/internal/peerpb"
)

// PeerService hears the picker's peers. It is safe for concurrent use.
type PeerService struct {
	UnimplementedPeerServer

	// Auth tells who may be a peer; required. What it says of pods does not matter.
	Auth Authenticator
	// Inbox takes what is told, and Incarnation is the picker's own.
	Inbox       *peer.Inbox
	Incarnation uint64
	// OnPeer, if set, is called when a peer is heard that may be new.
	OnPeer func()
	Log    logr.Logger

	server            *Server // that it is part of
	received, refused atomic.Uint64
}

// Received is how many bytes of updates have come, Refused how many streams were not taken.
func (s *PeerService) Received() (bytes, refused uint64) { return s.received.Load(), s.refused.Load() }

// PeerName takes for a peer whoever shows a verified certificate for a DNS name: that of the pickers.
type PeerName string

// Authenticate implements Authenticator.
func (n PeerName) Authenticate(ctx context.Context) (Identity, error) {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return Identity{}, errors.New("no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return Identity{}, errors.New("no verified client certificate")
	}
	leaf := info.State.VerifiedChains[0][0]
	if err := leaf.VerifyHostname(string(n)); err != nil {
		return Identity{}, errors.New("the client certificate is not a picker's")
	}
	return Identity{Expires: leaf.NotAfter}, nil
}

type exchangeServer = grpc.BidiStreamingServer[pb.PeerMessage, pb.Welcome]

// Exchange implements the service.
func (s *PeerService) Exchange(stream exchangeServer) error {
	who, err := s.Auth.Authenticate(stream.Context())
	if err != nil {
		return s.refuse(codes.Unauthenticated, err)
	}
	hello, err := s.firstMessage(stream)
	if err != nil {
		return s.refuse(codes.InvalidArgument, err)
	}
	// Whoever has dialled itself learns it here.
	if err := stream.Send(&pb.Welcome{Protocol: peer.Protocol, Incarnation: s.Incarnation}); err != nil {
		return err
	}
	r, err := s.Inbox.Open(time.Now(), hello)
	switch {
	case errors.Is(err, peer.ErrSelf):
		return status.Error(codes.AlreadyExists, err.Error())
	case errors.Is(err, peer.ErrTooMany):
		return s.refuse(codes.ResourceExhausted, err)
	case err != nil:
		return s.refuse(codes.InvalidArgument, err)
	}
	if s.OnPeer != nil {
		s.OnPeer()
	}
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			r.Close()
			return nil
		case err != nil:
			r.Lost()
			return err
		}
		s.received.Add(uint64(proto.Size(m)))
		now := time.Now()
		if err = r.Handle(now, m); err == nil && !who.Expires.IsZero() && now.After(who.Expires) {
			err = errors.New("the certificate has expired")
		}
		if err != nil {
			r.Lost()
			return s.refuse(codes.Aborted, err)
		}
	}
}

// firstMessage waits for the hello, for a while.
func (s *PeerService) firstMessage(stream exchangeServer) (*pb.PeerMessage, error) {
	type result struct {
		m   *pb.PeerMessage
		err error
	}
	first := make(chan result, 1) // Recv returns at the latest when the stream ends, which it does with this call
	go func() {
		m, err := stream.Recv()
		first <- result{m, err}
	}()
	timeout := time.NewTimer(helloTimeout)
	defer timeout.Stop()
	select {
	case r := <-first:
		return r.m, r.err
	case <-timeout.C:
		return nil, errors.New("no hello")
	}
}

func (s *PeerService) refuse(code codes.Code, err error) error {
	s.refused.Add(1)
	s.Log.V(1).Info("Peer refused", "reason", err.Error())
	return status.Error(code, err.Error())
}

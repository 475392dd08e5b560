package rpc

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

	"github.com/kvasir-dev/kvasir/internal/fault"
	pb "github.com/kvasir-dev/kvasir/internal/peerpb"
	"github.com/kvasir-dev/kvasir/internal/replicas"
)

// PeerService receives the updates of the picker's peers. It is safe for concurrent use.
type PeerService struct {
	UnimplementedPeerServer

	// Auth authenticates peers; required. The pod in its result is ignored.
	Auth Authenticator
	// Inbox receives the updates, and Incarnation is the picker's own.
	Inbox       *replicas.Inbox
	Incarnation uint64
	// Ready, if set, is closed when the pools are known. Peers wait for it: what they send about unknown pools would be lost.
	Ready <-chan struct{}
	// Remembered, if set, is lent to pickers that have just started: at most most chunks (picker.Picker.Remembered). Complete
	// reports whether no other picker knows more.
	Remembered func(most int, f func(*replicas.Routed) bool)
	Complete   func() bool
	// OnPeer, if set, is called when a possibly new peer connects.
	OnPeer func()
	Log    logr.Logger

	server            *Server // that it is part of
	recalling         atomic.Int32
	received, refused atomic.Uint64
	panics            atomic.Uint64
}

// Received is the number of bytes of updates received, Refused the number of streams refused.
func (s *PeerService) Received() (bytes, refused uint64) { return s.received.Load(), s.refused.Load() }

// Panics is how many streams were ended by a panic while a message was applied.
func (s *PeerService) Panics() uint64 { return s.panics.Load() }

// PeerName accepts a client with a verified certificate for a DNS name, that of the pickers, as a peer.
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
	if s.Ready != nil {
		select {
		case <-s.Ready:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
	// A picker that has dialled itself learns it here.
	if err := stream.Send(&pb.Welcome{Protocol: replicas.Protocol, Incarnation: s.Incarnation}); err != nil {
		return err
	}
	r, err := s.Inbox.Open(time.Now(), hello)
	switch {
	case errors.Is(err, replicas.ErrSelf):
		return status.Error(codes.AlreadyExists, err.Error())
	case errors.Is(err, replicas.ErrTooMany):
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
		if err = s.handle(r, hello.GetHello().GetIncarnation(), now, m); err == nil && !who.Expires.IsZero() && now.After(who.Expires) {
			err = errors.New("the certificate has expired")
		}
		if err != nil {
			r.Lost()
			return s.refuse(codes.Aborted, err)
		}
	}
}

// handle applies a peer's message.
func (s *PeerService) handle(r *replicas.Receiver, incarnation uint64, now time.Time, m *pb.PeerMessage) (err error) {
	if fault.Catch(func() { err = r.Handle(now, m) }, func(p *fault.Panic) {
		s.panics.Add(1)
		s.Log.Error(p, "Applying a peer's message panicked", "incarnation", incarnation, "bytes", proto.Size(m), "stack", string(p.Stack))
	}) != nil {
		return errPanic
	}
	return err
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

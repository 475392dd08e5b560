package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/fault"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

type pushStream = grpc.BidiStreamingServer[pb.ReporterMessage, pb.PickerMessage]

// Push implements the service.
func (s *Server) Push(stream pushStream) error {
	who, err := s.options.Auth.Authenticate(stream.Context())
	if err != nil {
		return s.refuse(func(r *Refused) *uint64 { return &r.Unauthenticated }, codes.Unauthenticated, "%v", err)
	}
	in := s.read(stream)
	hello, err := receiveHello(stream.Context(), in)
	if err != nil {
		return s.refuse(func(r *Refused) *uint64 { return &r.Malformed }, codes.InvalidArgument, "%v", err)
	}
	if !who.Is(hello.GetPod()) {
		return s.refuse(func(r *Refused) *uint64 { return &r.NotTheirOwn }, codes.PermissionDenied, "pod %q is not the reporter's own",
			hello.GetPod())
	}
	s.mu.Lock()
	t := s.byID[endpoint.ID{Pod: hello.GetPod(), Rank: int(hello.GetRank())}]
	s.mu.Unlock()
	if t == nil {
		return s.refuse(func(r *Refused) *uint64 { return &r.UnknownPod }, codes.NotFound, "pod %q, rank %d is no endpoint here", hello.GetPod(),
			hello.GetRank())
	}
	return s.follow(stream, in, t, who)
}

// read passes on received messages, until the stream ends.
func (s *Server) read(stream pushStream) <-chan received {
	in := make(chan received)
	s.readers.Go(func() {
		for {
			m, err := stream.Recv()
			select {
			case in <- received{m, err}:
			case <-stream.Context().Done():
				return
			}
			if err != nil {
				return
			}
		}
	})
	return in
}

type received struct {
	message *pb.ReporterMessage
	err     error
}

func receiveHello(ctx context.Context, in <-chan received) (*pb.Hello, error) {
	timeout := time.NewTimer(helloTimeout)
	defer timeout.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timeout.C:
		return nil, errors.New("no hello")
	case r := <-in:
		hello := r.message.GetHello()
		switch {
		case r.err != nil:
			return nil, r.err
		case hello == nil:
			return nil, errors.New("the first message is no hello")
		case !cachesync.Understood(hello.GetProtocol(), hello.GetOldest()):
			return nil, errors.New("the reporter speaks another version")
		case hello.GetRank() > 1<<16:
			return nil, errors.New("no such rank")
		}
		return hello, nil
	}
}

// errReplaced ends a stream when the reporter has opened another.
var errReplaced = status.Error(codes.Aborted, "another stream of the endpoint has begun")

// begin makes a stream the target's only one. It waits until the one before has ended.
func (t *target) begin(ctx context.Context, cancel context.CancelCauseFunc) (outbox <-chan *pb.PickerMessage, end func(), err error) {
	for {
		t.mu.Lock()
		if t.gone {
			t.mu.Unlock()
			return nil, nil, status.Error(codes.NotFound, "the endpoint has gone")
		}
		if t.done == nil {
			break
		}
		before := t.done
		t.cancel(errReplaced)
		t.mu.Unlock()
		select {
		case <-before:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	defer t.mu.Unlock()
	done, box := make(chan struct{}), make(chan *pb.PickerMessage, 8)
	t.done, t.cancel, t.outbox = done, cancel, box
	if t.release != nil {
		t.release.Stop()
		t.release = nil
	}
	return box, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.done, t.cancel, t.outbox = nil, nil, nil
		close(done)
	}, nil
}

// follow applies a stream to its target until it ends.
func (s *Server) follow(stream pushStream, in <-chan received, t *target, who Identity) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	outbox, end, err := t.begin(ctx, cancel)
	if err != nil {
		return err
	}
	log := s.options.Log.WithValues("pool", t.pool, "endpoint", t.Endpoint.ID.String(), "pod", t.Endpoint.Pod)
	log.Info("Reporter connected")
	defer func() {
		t.receiver.Lost()
		s.plan(t)
		end()
	}()
	err = s.exchange(ctx, stream, in, outbox, t, who)
	log.Info("Reporter gone", "reason", err.Error())
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (s *Server) exchange(ctx context.Context, stream pushStream, in <-chan received, outbox <-chan *pb.PickerMessage, t *target,
	who Identity) error {
	if err := stream.Send(t.receiver.Welcome(s.options.Now())); err != nil {
		return err
	}
	expired, stop := s.expiry(ctx, who)
	defer stop()
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	root := t.receiver.KeyID()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-expired:
			return status.Error(codes.Unauthenticated, "the proof has expired")
		case <-quiet.C:
			return status.Error(codes.DeadlineExceeded, "the reporter says nothing")
		case m := <-outbox:
			if err := stream.Send(m); err != nil {
				return err
			}
		case r := <-in:
			if r.err != nil {
				return r.err
			}
			quiet.Reset(silence)
			var failed error
			err := s.handle(t, r.message, func(m *pb.PickerMessage) {
				if failed == nil {
					failed = stream.Send(m)
				}
			})
			if err != nil {
				return err
			}
			if failed != nil {
				return failed
			}
			if now := t.receiver.KeyID(); now != root {
				root = now
				s.options.OnMoved(t.pool)
			}
		}
	}
}

// handle applies a message to the target, and returns a gRPC error. After a panic the state of earlier messages is
// uncertain: the reporter begins again with a snapshot.
func (s *Server) handle(t *target, m *pb.ReporterMessage, reply func(*pb.PickerMessage)) (err error) {
	if fault.Catch(func() { err = t.receiver.Handle(s.options.Now(), m, reply) }, func(p *fault.Panic) {
		s.options.Log.Error(p, "Applying a report panicked", "pool", t.pool, "endpoint", t.Endpoint.ID.String(), "pod", t.Endpoint.Pod,
			"message", fmt.Sprintf("%T", m.GetKind()), "bytes", proto.Size(m), "stack", string(p.Stack))
	}) != nil {
		t.receiver.Distrust()
		return s.refuse(func(r *Refused) *uint64 { return &r.Panicked }, codes.Internal, "the message could not be applied")
	}
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

// expiry closes a channel when a stream's proof has ended. During an outage it does not end; afterwards there is some
// time to renew it.
func (s *Server) expiry(ctx context.Context, who Identity) (expired <-chan struct{}, stop func()) {
	if who.Expires.IsZero() {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for wait, outage := who.Expires.Sub(s.options.Now()), false; ; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			switch {
			case who.Outage != nil && who.Outage(ctx):
				wait, outage = s.options.OutagePause, true
			case outage:
				wait, outage = renewPauses*s.options.OutagePause, false
			default:
				close(over)
				return
			}
		}
	})
	return over, func() { cancel(); watching.Wait() }
}

// plan returns an endpoint to its other road, unless its reporter returns soon.
func (s *Server) plan(t *target) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone || !t.owned || !t.OtherRoad {
		return
	}
	t.release = time.AfterFunc(s.options.Grace, func() {
		t.mu.Lock()
		if t.gone || t.done != nil || !t.owned {
			t.mu.Unlock()
			return
		}
		t.owned = false
		t.receiver.Release()
		t.mu.Unlock()
		s.options.OnRelease(t.pool, t.Endpoint)
	})
}

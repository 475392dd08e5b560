package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
)

// OperateAudience is that of the token that the operator shows.
const OperateAudience = "kvasir.dev/operate"

// DefaultPublishEvery is the interval at which the state is sent to the operator without a change.
const DefaultPublishEvery = time.Second

// maxWatches bounds the streams to operators about one pool: one that leads, one that is about to, and what has not ended yet.
const maxWatches = 16

// OperateService sends the picker's state to the operator. It is safe for concurrent use.
type OperateService struct {
	UnimplementedOperateServer

	// Auth authenticates the operator; required.
	Auth Authenticator
	// State is what is known of a pool (namespace/name); false when it is not served here.
	State func(pool string) (operatorfeed.State, bool)
	// WarmUp warms a pod up; nil where that is not possible.
	WarmUp func(ctx context.Context, o WarmOrder, progress func(WarmDone)) error
	// PublishEvery is the time between two states; DefaultPublishEvery when 0.
	PublishEvery time.Duration
	Log          logr.Logger

	mu      sync.Mutex                            // guards watches
	watches map[string]map[chan struct{}]struct{} // by pool; each holds a token when there is a state to send
}

// WarmOrder asks to warm a pod up.
type WarmOrder struct {
	// Pool is namespace/name.
	Pool, Pod string
	// MaxTokens and MaxTime bound what is sent.
	MaxTokens int
	MaxTime   time.Duration
}

// WarmDone is how far a pod has been warmed up.
type WarmDone struct {
	// Prompts that were sent, the tokens the pod had to compute for them, and prompts that were skipped.
	Prompts, Tokens, Skipped int
}

// ErrUnknownPod means that the picker does not know a pod, or is not allowed to send to it.
var ErrUnknownPod = errors.New("the pod is not known")

// Changed sends the state to the operator at once: what picks follow has changed.
func (s *OperateService) Changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.watches {
		for bell := range of {
			ring(bell)
		}
	}
}

// join notes a stream about a pool. A stream about a pool that is not served ends at once, so the pools that are served bound them.
func (s *OperateService) join(pool string) (chan struct{}, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.watches[pool]) >= maxWatches {
		return nil, nil, status.Error(codes.ResourceExhausted, "too many streams")
	}
	if s.watches == nil {
		s.watches = map[string]map[chan struct{}]struct{}{}
	}
	if s.watches[pool] == nil {
		s.watches[pool] = map[chan struct{}]struct{}{}
	}
	bell := make(chan struct{}, 1)
	s.watches[pool][bell] = struct{}{}
	return bell, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if delete(s.watches[pool], bell); len(s.watches[pool]) == 0 {
			delete(s.watches, pool)
		}
	}, nil
}

// Watch implements the service.
func (s *OperateService) Watch(in *WatchRequest, stream grpc.ServerStreamingServer[OperateState]) error {
	who, err := s.authenticate(stream.Context())
	if err != nil {
		return err
	}
	bell, leave, err := s.join(in.GetPool())
	if err != nil {
		return err
	}
	defer leave()
	every := s.PublishEvery
	if every <= 0 {
		every = DefaultPublishEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		state, ok := s.State(in.GetPool())
		if !ok {
			return status.Errorf(codes.NotFound, "pool %s is not served here", in.GetPool())
		}
		if err := stream.Send(stateMessage(&state, time.Now())); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-bell:
		case <-tick.C:
		}
		if who.expired(stream.Context(), time.Now()) {
			return status.Error(codes.Unauthenticated, "the token has expired")
		}
	}
}

// Warm implements the service.
func (s *OperateService) Warm(in *WarmRequest, stream grpc.ServerStreamingServer[WarmProgress]) error {
	if _, err := s.authenticate(stream.Context()); err != nil {
		return err
	}
	if s.WarmUp == nil || in.GetMaxTokens() <= 0 || in.GetMaxSeconds() <= 0 {
		return status.Error(codes.InvalidArgument, "nothing to warm up with")
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	order := WarmOrder{
		Pool: in.GetPool(), Pod: in.GetPodUid(), MaxTokens: int(in.GetMaxTokens()), MaxTime: time.Duration(in.GetMaxSeconds()) * time.Second,
	}
	err := s.WarmUp(ctx, order, func(d WarmDone) {
		if err := stream.Send(&WarmProgress{Prompts: int64(d.Prompts), Tokens: int64(d.Tokens), Skipped: int64(d.Skipped)}); err != nil {
			cancel(err)
		}
	})
	switch {
	case errors.Is(err, ErrUnknownPod):
		return status.Error(codes.NotFound, err.Error())
	case err != nil:
		return status.Error(codes.Unavailable, err.Error())
	}
	return nil
}

func (s *OperateService) authenticate(ctx context.Context) (Identity, error) {
	who, err := s.Auth.Authenticate(ctx)
	if err != nil {
		s.Log.V(1).Info("Operator refused", "reason", err.Error())
		return who, status.Error(codes.Unauthenticated, err.Error())
	}
	return who, nil
}

// expired reports whether a proof has ended, unless its issuer cannot be reached.
func (i Identity) expired(ctx context.Context, now time.Time) bool {
	return !i.Expires.IsZero() && now.After(i.Expires) && (i.Outage == nil || !i.Outage(ctx))
}

// Account accepts a client with a token of the service account as the operator.
type Account struct {
	Tokens Tokens
	// Namespace and Name of the service account.
	Namespace, Name string
}

// Authenticate implements Authenticator.
func (a Account) Authenticate(ctx context.Context) (Identity, error) {
	who, subject, err := a.Tokens.verify(ctx)
	if err != nil {
		return Identity{}, err
	}
	if want := "system:serviceaccount:" + a.Namespace + ":" + a.Name; subject != want {
		return Identity{}, fmt.Errorf("the token is not the operator's: it is of another account than %s/%s", a.Namespace, a.Name)
	}
	return who, nil
}

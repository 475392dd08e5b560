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

	pb "github.com/kvasir-dev/kvasir/internal/peerpb"
	"github.com/kvasir-dev/kvasir/internal/replicas"
)

// What was routed where is sent to peers once. A picker that starts therefore copies what a peer remembers.
const (
	// maxRecalled bounds the chunks of an answer: 64 MiB. The share of an endpoint follows from it.
	maxRecalled = 8 << 20
	// recalledPart is how many chunks there are in a part, leastPart what a part counts at least.
	recalledPart = 4 << 10
	leastPart    = 32
	// maxRecalling bounds how many peers are answered at a time.
	maxRecalling = 2
	// recallTries are how often a peer is asked, recallPause the time between, recallTimeout that of an answer.
	recallTries   = 3
	recallPause   = 300 * time.Millisecond
	recallTimeout = 30 * time.Second
)

// Recall implements the service.
func (s *PeerService) Recall(_ *pb.Recall, stream grpc.ServerStreamingServer[pb.Recalled]) error {
	if _, err := s.Auth.Authenticate(stream.Context()); err != nil {
		return s.refuse(codes.Unauthenticated, err)
	}
	if s.Remembered == nil {
		return status.Error(codes.Unimplemented, "nothing is remembered")
	}
	defer s.recalling.Add(-1)
	if s.recalling.Add(1) > maxRecalling {
		return status.Error(codes.ResourceExhausted, "other pickers are answered first")
	}
	complete := s.Complete != nil && s.Complete()
	var err error
	s.Remembered(maxRecalled, func(r *replicas.Routed) bool {
		for chunks := r.Chunks; len(chunks) > 0 && err == nil; chunks = chunks[len(r.Chunks):] {
			r.Chunks = chunks[:min(len(chunks), recalledPart)]
			err = stream.Send(&pb.Recalled{Routed: r.Message()})
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	return stream.Send(&pb.Recalled{Complete: complete})
}

// Recollection is what a picker that has just started copies from its peers: where texts were sent. It is safe for concurrent use.
type Recollection struct {
	put  func(*replicas.Routed)
	most int           // chunks of an answer
	turn chan struct{} // holds a token while a peer is asked

	mu       sync.Mutex // guards what follows
	complete bool
	answered int
}

// NewRecollection passes what a peer remembers of an endpoint to put.
func NewRecollection(put func(*replicas.Routed)) *Recollection {
	return &Recollection{put: put, most: maxRecalled, turn: make(chan struct{}, 1)}
}

// Complete reports whether a peer has answered that knew as much as any other.
func (r *Recollection) Complete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.complete
}

// Settled reports whether there is nothing more to wait for, of so many peers.
func (r *Recollection) Settled(peers int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.complete || r.answered >= peers
}

// From asks a peer, unless another one has given a complete answer.
func (r *Recollection) From(ctx context.Context, c *Client) error {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-r.turn }()
	var err error
	for range recallTries {
		if r.Complete() || ctx.Err() != nil {
			return ctx.Err()
		}
		var complete bool
		if complete, err = r.ask(ctx, NewPeerClient(c.conn)); err == nil || status.Code(err) == codes.Unimplemented {
			r.settle(complete)
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(recallPause):
		}
	}
	r.settle(false)
	return err
}

func (r *Recollection) settle(complete bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answered++
	r.complete = r.complete || complete
}

// ask asks a peer once.
func (r *Recollection) ask(ctx context.Context, client PeerClient) (complete bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, recallTimeout)
	defer cancel()
	stream, err := client.Recall(ctx, &pb.Recall{})
	if err != nil {
		return false, err
	}
	for chunks := 0; ; {
		part, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return complete, nil
		case err != nil:
			return false, err
		}
		complete = part.GetComplete()
		if part.GetRouted() == nil {
			continue
		}
		routed, err := replicas.RoutedOf(part.GetRouted())
		if err != nil {
			return false, err
		}
		if chunks += max(leastPart, len(routed.Chunks)); chunks > 2*r.most {
			return false, fmt.Errorf("more than %d chunks are remembered", 2*r.most)
		}
		r.put(routed)
	}
}

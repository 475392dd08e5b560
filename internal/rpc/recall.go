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
	// recallTries are how often a peer is asked that fails, recallBusy how often one that answers others first, so for as long as an
	// answer can take. recallPause is the time between, recallTimeout that of an answer.
	recallTries   = 3
	recallBusy    = int(recallTimeout / recallPause)
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
	busy int           // how often a peer is asked that answers others first
	turn chan struct{} // holds a token while a peer is asked

	mu       sync.Mutex // guards what follows
	complete bool
	answered int
}

// NewRecollection passes what a peer remembers of an endpoint to put.
func NewRecollection(put func(*replicas.Routed)) *Recollection {
	return &Recollection{put: put, most: maxRecalled, busy: recallBusy, turn: make(chan struct{}, 1)}
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
	var err error
	for failed, busy := 0, 0; failed < recallTries && busy < r.busy; {
		if err = r.inTurn(ctx, c); err == nil || ctx.Err() != nil {
			return err
		}
		if status.Code(err) == codes.ResourceExhausted {
			busy++
		} else {
			failed++
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

// inTurn asks a peer once while no other one is asked.
func (r *Recollection) inTurn(ctx context.Context, c *Client) error {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-r.turn }()
	if r.Complete() {
		return nil
	}
	complete, err := r.ask(ctx, NewPeerClient(c.conn))
	if err != nil && status.Code(err) != codes.Unimplemented {
		return err
	}
	r.settle(complete)
	return nil
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

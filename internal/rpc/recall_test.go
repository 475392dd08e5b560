package rpc

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/replicas"
	"github.com/kvasir-dev/kvasir/internal/routinghistory"
)

// remembering is a replica with a history of so many chunks.
func remembering(t *testing.T, complete bool, chunks int) *replica {
	t.Helper()
	r := newReplica(t, Anybody{}, ServerOptions{})
	r.service.Complete = func() bool { return complete }
	r.service.Remembered = func(most int, f func(*replicas.Routed) bool) {
		x := &replicas.Routed{Pool: meshPool, Endpoint: meshEndpoint, KeyID: "root", ChunkBytes: 64, MostChunks: 256}
		for i := range min(most, chunks) {
			x.Chunks = append(x.Chunks, routinghistory.Chunk(i+1))
		}
		if chunks > 0 {
			f(x)
		}
	}
	return r
}

// dialled is a client of a replica.
func dialled(t *testing.T, r *replica) *Client {
	t.Helper()
	c, err := Dial(r.addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// kept collects what is recalled.
type kept struct {
	mu     sync.Mutex
	chunks []routinghistory.Chunk
}

func (k *kept) put(r *replicas.Routed) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.Pool == meshPool && r.Endpoint == meshEndpoint && r.KeyID == "root" && r.ChunkBytes == 64 && r.MostChunks == 256 {
		k.chunks = append(k.chunks, r.Chunks...)
	}
}

// TestWhatPeersRememberIsCopiedOnce: in its order, from peers in turn until one has answered that knows as much as any other.
func TestWhatPeersRememberIsCopiedOnce(t *testing.T) {
	const chunks = 3*recalledPart + 5
	first, second, third := remembering(t, false, 7), remembering(t, true, chunks), remembering(t, true, 9)
	var got kept
	r := NewRecollection(got.put)
	if r.Settled(1) || !r.Settled(0) {
		t.Error("settled before a peer was asked, or not without peers")
	}
	for i, peer := range []*replica{first, second, third} {
		if err := r.From(t.Context(), dialled(t, peer)); err != nil {
			t.Fatal(err)
		}
		if r.Complete() != (i > 0) || !r.Settled(1) {
			t.Errorf("after peer %d: complete %v, settled %v", i, r.Complete(), r.Settled(1))
		}
	}
	want := make([]routinghistory.Chunk, 0, chunks)
	for i := range chunks {
		want = append(want, routinghistory.Chunk(i+1))
	}
	if len(got.chunks) != 7+chunks || !slices.Equal(got.chunks[7:], want) {
		t.Errorf("%d chunks were copied, want 7 of the first peer and %d of the second, in order", len(got.chunks), chunks)
	}
}

// TestAPickerDoesNotWaitForPeersThatRememberNothing, such as older ones, or for ones that are busy.
func TestAPickerDoesNotWaitForPeersThatRememberNothing(t *testing.T) {
	old, busy := newReplica(t, Anybody{}, ServerOptions{}), remembering(t, true, 5)
	busy.service.recalling.Store(maxRecalling)
	var got kept
	r := NewRecollection(got.put)
	r.busy = 2
	if err := r.From(t.Context(), dialled(t, old)); err != nil || !r.Settled(1) || r.Complete() {
		t.Errorf("an old peer: %v, settled %v, complete %v", err, r.Settled(1), r.Complete())
	}
	if err := r.From(t.Context(), dialled(t, busy)); err == nil || !r.Settled(2) || r.Complete() || busy.service.recalling.Load() != maxRecalling {
		t.Errorf("a busy peer: %v, settled %v, complete %v", err, r.Settled(2), r.Complete())
	}
	busy.service.recalling.Store(0)
	if err := r.From(t.Context(), dialled(t, busy)); err != nil || !r.Complete() || len(got.chunks) != 5 {
		t.Errorf("asked again: %v, complete %v, %d chunks", err, r.Complete(), len(got.chunks))
	}
}

// TestAPickerAsksABusyPeerAgain, for longer than one that fails: others have started with it.
func TestAPickerAsksABusyPeerAgain(t *testing.T) {
	busy := remembering(t, true, 5)
	busy.service.recalling.Store(maxRecalling)
	var got kept
	r := NewRecollection(got.put)
	result := make(chan error, 1)
	go func() { result <- r.From(t.Context(), dialled(t, busy)) }()
	select {
	case err := <-result:
		t.Fatalf("it is not asked any more: %v", err)
	case <-time.After((recallTries + 1) * recallPause):
	}
	busy.service.recalling.Store(0)
	if err := <-result; err != nil || !r.Complete() || len(got.chunks) != 5 {
		t.Errorf("%v, complete %v, %d chunks", err, r.Complete(), len(got.chunks))
	}
}

// TestAPeerCannotRememberWithoutEnd: what a picker copies is bounded, in chunks and in messages.
func TestAPeerCannotRememberWithoutEnd(t *testing.T) {
	for name, size := range map[string]int{"of chunks": recalledPart, "of small parts": 1} {
		peer := remembering(t, true, 0)
		ended := make(chan struct{})
		peer.service.Remembered = func(_ int, f func(*replicas.Routed) bool) {
			for f(&replicas.Routed{Pool: meshPool, Chunks: make([]routinghistory.Chunk, size)}) {
			}
			close(ended)
		}
		puts := 0
		r := NewRecollection(func(*replicas.Routed) { puts++ })
		r.most = 10_000
		if _, err := r.ask(t.Context(), NewPeerClient(dialled(t, peer).conn)); err == nil || !strings.Contains(err.Error(), "20000 chunks") {
			t.Errorf("%s: %v", name, err)
		}
		if puts > 2*r.most/leastPart {
			t.Errorf("%s: %d parts were taken", name, puts)
		}
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Errorf("%s: the peer still sends", name)
		}
	}
}

// TestPeersAreAskedInTurn, and a picker that ends does not wait for its turn.
func TestPeersAreAskedInTurn(t *testing.T) {
	r := NewRecollection(func(*replicas.Routed) {})
	r.turn <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.From(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestPeersWaitUntilThePoolsAreKnown: what they send about pools that are not known yet would be lost.
func TestPeersWaitUntilThePoolsAreKnown(t *testing.T) {
	starting, other := newReplica(t, Anybody{}, ServerOptions{}), newReplica(t, Anybody{}, ServerOptions{})
	ready := make(chan struct{})
	starting.service.Ready = ready
	sessions := starting.sessions
	starting.sessions = nil
	other.sessions.Put(1, 7, time.Now())
	other.join(DialOptions{}, starting.addr)
	time.Sleep(3 * replicas.Beat) // longer than a home is repeated
	starting.sessions = sessions
	close(ready)
	eventually(t, "the home is known", func() bool { return sessions.Get(1, time.Now()) == 7 })
}

package rpc

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/fault"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/load"
)

// TestAPanicConcernsItsReportOnly: a report that makes us panic ends its stream and is counted. The endpoint's next stream
// begins with a snapshot, because it is not certain what was applied.
func TestAPanicConcernsItsReportOnly(t *testing.T) {
	p := startPicker(t, "127.0.0.1:0", ServerOptions{})
	var faulty atomic.Bool
	p.server.Set("pool", nil)
	p.target.OnStored = func([]kvblock.Key) {
		if faulty.CompareAndSwap(true, false) {
			panic("a fault behind the index")
		}
	}
	p.server.Set("pool", []Target{p.target})
	r := startReporter(t, p.addr, DialOptions{})
	e, tokens := chain(0, 3)
	r.mirror.Apply(batch(e), events.Position{})
	eventually(t, "blocks", func() bool { return p.match(p.target.Roots[0], tokens) == 3 && p.status().Proven })
	before := p.status()
	faulty.Store(true)
	e, tokens = chain(3, 2)
	r.mirror.Apply(batch(e), events.Position{})
	eventually(t, "another snapshot after the panic", func() bool {
		after := p.status()
		return p.server.Refused().Panicked == 1 && after.Resyncs[cachesync.First] == before.Resyncs[cachesync.First]+1 && after.Proven &&
			p.match(p.target.Roots[0], tokens) == 5
	})
	if err := r.err(); err == nil || strings.Contains(err.Error(), "fault") {
		t.Errorf("the reporter was answered with %v", err)
	}
}

// TestAPanicConcernsItsPeerOnly: a panic while a picker sends to a peer ends that stream, is counted, and is logged with the
// peer's address. The stream is opened again, and those to other peers go on.
func TestAPanicConcernsItsPeerOnly(t *testing.T) {
	a, b, c := newReplica(t, Anybody{}, ServerOptions{}), newReplica(t, Anybody{}, ServerOptions{}), newReplica(t, Anybody{}, ServerOptions{})
	var mu sync.Mutex
	var lines []string
	var faulty atomic.Bool
	a.mesh = NewMesh(MeshOptions{
		Find: List(b.addr, c.addr), Outbox: a.outbox, Inbox: a.inbox, MinBackoff: 5 * time.Millisecond, MaxBackoff: 50 * time.Millisecond,
		Loads: func(f func(string, endpoint.ID, *load.Tracker)) {
			if faulty.CompareAndSwap(true, false) {
				panic("a fault of one stream")
			}
			a.each(f)
		},
		Log: funcr.New(func(_, args string) {
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, args)
		}, funcr.Options{}),
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { a.mesh.Run(ctx) })
	defer func() { cancel(); running.Wait() }()
	connected := func() bool { return a.mesh.Stats().Connected == 2 }
	eventually(t, "both are connected", connected)
	faulty.Store(true)
	eventually(t, "the panic is counted, and both are connected again", func() bool { return a.mesh.Stats().Panics == 1 && connected() })
	mu.Lock()
	defer mu.Unlock()
	named := 0
	for _, line := range lines {
		if strings.Contains(line, "Sending to a peer panicked") && (strings.Contains(line, b.addr) || strings.Contains(line, c.addr)) {
			named++
		}
	}
	if named != 1 {
		t.Errorf("the panic is logged %d times with its peer: %q", named, lines)
	}
}

// TestAPanicEndsItsReport: a panic on the reporter's side of a stream, in any of its goroutines, is an error of Push.
func TestAPanicEndsItsReport(t *testing.T) {
	p := startPicker(t, "127.0.0.1:0", ServerOptions{})
	client, err := Dial(p.addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	broken := cachesync.NewSender(nil, "pod", 0) // its methods panic
	err = client.Push(t.Context(), broken, make(chan struct{}))
	if caught := (*fault.Panic)(nil); !errors.As(err, &caught) {
		t.Errorf("%v", err)
	}
}

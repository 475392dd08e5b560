package syncapi

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/ingest"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/report"
)

// fleet is reporters with filled mirrors, all in this process.
type fleet struct {
	mirrors []*report.Mirror
	bells   []chan struct{}
}

// newFleet fills mirrors with prompts of 256 blocks, half of each the same everywhere.
func newFleet(reporters, blocks int) *fleet {
	f := &fleet{}
	const length, shared = 256, 128
	for n := range reporters {
		bell := make(chan struct{}, 1)
		m := report.NewMirror(report.Options{}, func() {
			select {
			case bell <- struct{}{}:
			default:
			}
		})
		m.Begin(false)
		for p := range blocks / length {
			e := kvevent.Event{Kind: kvevent.Stored, BlockSize: 16}
			for b := range length {
				owner := uint32(n + 1)
				if b < shared {
					owner = 0
				}
				e.Hashes = append(e.Hashes, kvevent.Hash(uint64(p)<<32|uint64(b+1)))
				for k := range uint32(16) {
					e.Tokens = append(e.Tokens, uint32(p)<<16|uint32(b)<<4|k, owner)
				}
			}
			e.Tokens = e.Tokens[:length*16]
			m.Apply(&kvevent.Batch{Events: []kvevent.Event{e}, Rank: -1}, ingest.Position{})
		}
		m.Mark(ingest.Position{}, ingest.Synced)
		f.mirrors, f.bells = append(f.mirrors, m), append(f.bells, bell)
	}
	return f
}

// push pushes all mirrors to an address until stop.
func (f *fleet) push(b testing.TB, addr string) (stop func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var pushing sync.WaitGroup
	for n, m := range f.mirrors {
		c, err := Dial(addr, DialOptions{})
		if err != nil {
			b.Fatal(err)
		}
		pushing.Go(func() {
			defer c.Close() //nolint:errcheck // the test ends
			for ctx.Err() == nil {
				_ = c.Push(ctx, report.NewSender(m, fmt.Sprint("pod-", n), 0), f.bells[n])
			}
		})
	}
	return func() { cancel(); pushing.Wait() }
}

// restarted is a fresh picker for a fleet.
func restarted(b testing.TB, f *fleet, root report.Root) (index *kvindex.Index, server *Server, addr string, stop func()) {
	b.Helper()
	index = kvindex.NewIndex(kvindex.Options{})
	server = NewServer(ServerOptions{Auth: Anybody{}})
	var targets []Target
	for n := range f.mirrors {
		targets = append(targets, Target{
			Endpoint: endpoint.Endpoint{ID: endpoint.ID{Pod: fmt.Sprint("pod-", n)}},
			Roots:    []report.Root{root}, Writer: index.Writer(index.Join()),
		})
	}
	server.Set("pool", targets)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		if err := server.Serve(l); err != nil {
			b.Error(err)
		}
	})
	return index, server, l.Addr().String(), func() { server.Close(); served.Wait() }
}

// BenchmarkPickerRestart is a picker that begins with nothing, among 64 reporters of 40,000 blocks on the same
// machine. "95%" is when it holds that share, "proof" when every endpoint was shown to be equal.
func BenchmarkPickerRestart(b *testing.B) {
	const reporters, blocks = 64, 40_000
	seed := testRootOf(b, "a", 16)
	f := newFleet(reporters, blocks)
	for b.Loop() {
		index, server, addr, stop := restarted(b, f, seed)
		began := time.Now()
		stopPush := f.push(b, addr)
		want := reporters * (blocks / 256 * 256)
		waitUntil(func() bool { _, held, _ := index.Size(); return held >= want*95/100 })
		b.ReportMetric(time.Since(began).Seconds(), "s-to-95%")
		waitUntil(func() bool {
			for _, s := range server.Status("pool") {
				if !s.Proven {
					return false
				}
			}
			return true
		})
		b.ReportMetric(time.Since(began).Seconds(), "s-to-proof")
		if _, held, _ := index.Size(); held != want {
			b.Errorf("%d blocks held, want %d", held, want)
		}
		stopPush()
		stop()
	}
}

func waitUntil(ok func() bool) {
	for !ok() {
		time.Sleep(5 * time.Millisecond)
	}
}

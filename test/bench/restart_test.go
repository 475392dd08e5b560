package bench

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/rpc"
)

// BenchmarkPickerRestart is a picker that begins with an empty index, among 64 reporters of 40,000 blocks each that send it
// everything over sockets of their own. Reporters and picker share this process and its cores. s-to-95% is when the index
// has that share, s-to-proof when a digest has shown every endpoint to be equal; cpu-s is the CPU time of both sides.
func BenchmarkPickerRestart(b *testing.B) {
	const reporters, blocks = 64, 40_000
	seed, err := kvblock.NewSeed([]byte(strings.Repeat("s", kvblock.MinSeedBytes)))
	if err != nil {
		b.Fatal(err)
	}
	f := newReporters(reporters, blocks)
	want := reporters * (blocks / promptBlocks * promptBlocks)
	var most, all time.Duration
	var cpu int64
	for b.Loop() {
		p := newPicker(b, reporters, cachesync.NewRoot(seed, model, blockTokens, nil))
		began, start := time.Now(), processCPU()
		stop := f.push(b, p.addr)
		until(func() bool { return p.held() >= want*95/100 })
		most += time.Since(began)
		until(p.proven)
		all += time.Since(began)
		cpu += processCPU() - start
		if held := p.held(); held != want {
			b.Errorf("%d blocks held, want %d", held, want)
		}
		stop()
		p.stop()
	}
	b.ReportMetric(most.Seconds()/float64(b.N), "s-to-95%")
	b.ReportMetric(all.Seconds()/float64(b.N), "s-to-proof")
	b.ReportMetric(float64(cpu)/1e9/float64(b.N), "cpu-s")
}

// until polls.
func until(ok func() bool) {
	for !ok() {
		time.Sleep(5 * time.Millisecond)
	}
}

// reporters are filled mirrors.
type reporters struct {
	mirrors []*cachesync.Mirror
	bells   []chan struct{}
}

// newReporters fills mirrors with prompts, half of each the same everywhere.
func newReporters(n, blocks int) *reporters {
	f := &reporters{}
	for who := range n {
		bell := make(chan struct{}, 1)
		m := cachesync.NewMirror(cachesync.Options{}, func() {
			select {
			case bell <- struct{}{}:
			default:
			}
		})
		m.Begin(false)
		for p := range blocks / promptBlocks {
			e := kvevent.Event{Kind: kvevent.Stored, BlockSize: blockTokens}
			for b := range promptBlocks {
				owner := uint32(who + 1)
				if b < sharedBlocks {
					owner = 0
				}
				e.Hashes = append(e.Hashes, kvevent.Hash(uint64(p)<<32|uint64(b+1)))
				for k := range uint32(blockTokens) {
					e.Tokens = append(e.Tokens, uint32(p)<<16|uint32(b)<<4|k^owner<<24)
				}
			}
			m.Apply(&kvevent.Batch{Events: []kvevent.Event{e}, Rank: -1}, events.Position{})
		}
		m.Mark(events.Position{}, events.Synced)
		f.mirrors, f.bells = append(f.mirrors, m), append(f.bells, bell)
	}
	return f
}

// push pushes all mirrors to an address, each over a connection of its own, until stop.
func (f *reporters) push(b *testing.B, addr string) (stop func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var pushing sync.WaitGroup
	for n, m := range f.mirrors {
		c, err := rpc.Dial(addr, rpc.DialOptions{})
		if err != nil {
			b.Fatal(err)
		}
		pushing.Go(func() {
			defer c.Close()
			for ctx.Err() == nil {
				_ = c.Push(ctx, cachesync.NewSender(m, fmt.Sprint("pod-", n), 0), f.bells[n])
			}
		})
	}
	return func() { cancel(); pushing.Wait() }
}

// freshPicker is a picker's index and its server of reports.
type freshPicker struct {
	index  *kvindex.Index
	server *rpc.Server
	addr   string
	stop   func()
}

func newPicker(b *testing.B, reporters int, root cachesync.Root) *freshPicker {
	b.Helper()
	p := &freshPicker{index: kvindex.NewIndex(kvindex.Options{}), server: rpc.NewServer(rpc.ServerOptions{Auth: rpc.Anybody{}})}
	var targets []rpc.Target
	for n := range reporters {
		targets = append(targets, rpc.Target{
			Endpoint: endpoint.Endpoint{ID: endpoint.ID{Pod: fmt.Sprint("pod-", n)}},
			Roots:    []cachesync.Root{root}, Writer: p.index.Writer(p.index.Join()),
		})
	}
	p.server.Set("pool", targets)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		if err := p.server.Serve(l); err != nil {
			b.Error(err)
		}
	})
	p.addr, p.stop = l.Addr().String(), func() { p.server.Close(); served.Wait() }
	return p
}

func (p *freshPicker) held() int {
	_, held, _ := p.index.Size()
	return held
}

func (p *freshPicker) proven() bool {
	for _, s := range p.server.Status("pool") {
		if !s.Proven {
			return false
		}
	}
	return true
}

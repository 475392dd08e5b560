//go:build unix

package rpc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/replicas"
	"github.com/kvasir-dev/kvasir/internal/rpc"
)

// BenchmarkExchange lets pickers of 64 endpoints pick 800 times a second together, for prompts of 128 or 512 new blocks,
// and exchange updates over gRPC on loopback. An operation is a pick with all its consequences, at its pace, so that only
// the processor time counts: cpu-us/op is that of the process, core-% its share of a core. Beside it the same pickers
// without updates.
func BenchmarkExchange(b *testing.B) {
	for _, blocks := range []int{128, 512} {
		for _, pickers := range []int{2, 4} {
			for _, tell := range []bool{false, true} {
				b.Run(fmt.Sprintf("blocks=%d/pickers=%d/exchange=%v", blocks, pickers, tell), func(b *testing.B) {
					benchmarkExchange(b, pickers, blocks, tell)
				})
			}
		}
	}
}

func benchmarkExchange(b *testing.B, pickers, blocks int, tell bool) {
	const perSecond, endpoints, tick = 800, 64, 10 * time.Millisecond
	all := exchangers(b, pickers, endpoints, tell)
	bodies := make([][]byte, 64)
	for i := range bodies {
		ids := make([]int, blocks*16)
		for k := range ids {
			ids[k] = 100_000 + i*len(ids) + k
		}
		bodies[i], _ = json.Marshal(map[string]any{"model": "m", "prompt": ids, "stream": true})
	}
	type open struct {
		d     *picker.Decision
		first bool
	}
	var queue []open // a first token arrives after 50 ms, the end after 500 ms
	b.ResetTimer()
	began, start := cpuTime(), time.Now()
	done := 0
	for n := 0; done < b.N; n++ {
		for range min(int(perSecond*tick/time.Second), b.N-done) {
			d, err := all[done%pickers].Pick(context.Background(), &picker.Request{Route: openai.Completions, Body: bodies[done%len(bodies)]})
			if err != nil {
				b.Fatal(err)
			}
			queue = append(queue, open{d: d})
			done++
		}
		for i := range queue {
			if age := len(queue) - i; age > perSecond/20 && !queue[i].first {
				queue[i].d.FirstToken()
				queue[i].first = true
			}
		}
		for len(queue) > perSecond/2 {
			queue[0].d.End(picker.Completed)
			queue = queue[1:]
		}
		time.Sleep(time.Until(start.Add(time.Duration(n+1) * tick)))
	}
	cpu, wall := cpuTime()-began, time.Since(start)
	b.StopTimer()
	for _, o := range queue {
		o.d.End(picker.Completed)
	}
	b.ReportMetric(float64(cpu.Microseconds())/float64(b.N), "cpu-us/op")
	b.ReportMetric(100*cpu.Seconds()/wall.Seconds(), "core-%")
	b.ReportMetric(0, "ns/op") // it is the pace
}

// exchangers are pickers of one pool that exchange updates if tell is set.
func exchangers(b *testing.B, pickers, endpoints int, tell bool) []*picker.Picker {
	seed, err := kvblock.NewSeed(make([]byte, kvblock.MinSeedBytes))
	if err != nil {
		b.Fatal(err)
	}
	spec := picker.Spec{
		Namespace: "default", Name: "m", Model: "m", BlockTokens: 16, Seed: seed,
		Policy: picker.PolicySpec{
			Strategy: policy.Config{Type: policy.MarginalCost}, SpeculationMax: 300 * time.Second, MaxKVUsage: 1,
			CircuitFailures: 2, CircuitOpen: 10 * time.Second, Attempts: 1, TokenBudget: time.Second,
		},
	}
	for i := range endpoints {
		name := fmt.Sprintf("3f2b8c1e-6f0a-4c58-9d3e-%012d", i)
		spec.Endpoints = append(spec.Endpoints, endpoint.Endpoint{
			ID: endpoint.ID{Pod: name}, Pod: name, Address: "127.0.0.1:1", Ready: true, Serving: true, RankHeader: -1,
		})
	}
	type one struct {
		p      *picker.Picker
		outbox *replicas.Outbox
		inbox  *replicas.Inbox
		addr   string
	}
	var all []one
	var addrs []string
	var out []*picker.Picker
	for i := range pickers {
		o := one{outbox: replicas.NewOutbox(uint64(i + 1))}
		o.p = picker.New(picker.Options{Log: logr.Discard(), Peers: o.outbox})
		if err := o.p.Apply([]picker.Spec{spec}); err != nil {
			b.Fatal(err)
		}
		out = append(out, o.p)
		if !tell {
			continue
		}
		o.inbox = replicas.NewInbox(o.p, o.outbox.Incarnation())
		server := rpc.NewServer(rpc.ServerOptions{Peers: &rpc.PeerService{Auth: rpc.Anybody{}, Inbox: o.inbox, Incarnation: o.outbox.Incarnation()}})
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		o.addr = l.Addr().String()
		var served sync.WaitGroup
		served.Go(func() { _ = server.Serve(l) })
		b.Cleanup(func() { server.Close(); served.Wait() })
		all, addrs = append(all, o), append(addrs, o.addr)
	}
	for _, o := range all {
		mesh := rpc.NewMesh(rpc.MeshOptions{Find: rpc.List(addrs...), Outbox: o.outbox, Loads: o.p.Loads, Inbox: o.inbox})
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { mesh.Run(ctx) })
		b.Cleanup(func() { cancel(); running.Wait() })
		for mesh.Stats().Connected < pickers-1 {
			time.Sleep(time.Millisecond)
		}
	}
	return out
}

// cpuTime is the processor time of the process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

//go:build unix

package rpc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/replicas"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// BenchmarkBorrow lets a picker that has just started borrow 64 endpoints of 40,000 blocks from another, over loopback: from
// the first question until all can be matched.
func BenchmarkBorrow(b *testing.B) {
	const endpoints, chains, blocks = 64, 80, 500
	root := testRoot(b, "a")
	start := func() (s *Server, addr string, stop func()) {
		ix := kvindex.NewIndex(kvindex.Options{})
		s = NewServer(ServerOptions{Auth: Anybody{}, Peers: &PeerService{Auth: Anybody{}, Inbox: replicas.NewInbox(nil, 1), Incarnation: 1}})
		var targets []Target
		for i := range endpoints {
			targets = append(targets, Target{
				Endpoint: endpoint.Endpoint{ID: endpoint.ID{Pod: fmt.Sprint("uid-", i)}, Address: fmt.Sprint("10.0.0.1:", i)},
				Roots:    []cachesync.Root{root}, Writer: ix.Writer(ix.Join()),
			})
		}
		s.Set("pool", targets)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		var served sync.WaitGroup
		served.Go(func() { _ = s.Serve(l) })
		return s, l.Addr().String(), func() { s.Close(); served.Wait() }
	}
	lender, addr, stop := start()
	defer stop()
	rng := rand.New(rand.NewPCG(1, 1))
	for _, t := range lender.byID {
		var changes []*pb.Change
		for range chains {
			c := &pb.Change{Kind: pb.Change_KIND_STORED}
			for range blocks {
				c.Keys = append(c.Keys, rng.Uint64()|1)
			}
			changes = append(changes, c)
		}
		t.receiver.Welcome(time.Now())
		for _, m := range []*pb.ReporterMessage{
			{Kind: &pb.ReporterMessage_Begin{Begin: &pb.Begin{Mode: pb.Begin_MODE_REPLACE, State: pb.State_STATE_SYNCED,
				At: &pb.Position{Epoch: 1, KeyId: root.ID, Log: 1}}}},
			{Kind: &pb.ReporterMessage_Snapshot{Snapshot: &pb.Snapshot{Last: true, Changes: changes}}},
		} {
			if err := t.receiver.Handle(time.Now(), m, func(*pb.PickerMessage) {}); err != nil {
				b.Fatal(err)
			}
		}
	}
	var cpu time.Duration // of both sides
	b.ResetTimer()
	for range b.N {
		s, _, stop := start()
		began := processorTime(b)
		c, err := Dial(addr, DialOptions{})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var borrowing sync.WaitGroup
		borrowing.Go(func() { s.Borrow(ctx, c) })
		for n := 0; n < endpoints; {
			time.Sleep(time.Millisecond)
			n = 0
			for _, status := range s.Status("pool") {
				if status.Borrowed && status.Held == chains*blocks {
					n++
				}
			}
		}
		b.StopTimer()
		cpu += processorTime(b) - began
		cancel()
		borrowing.Wait()
		_ = c.Close()
		stop()
		b.StartTimer()
	}
	b.ReportMetric(endpoints*chains*blocks, "blocks/op")
	b.ReportMetric(cpu.Seconds()/float64(b.N), "cpu-s/op")
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

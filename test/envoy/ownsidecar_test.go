package envoy

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/picker"
	kvasirsidecar "github.com/kvasir-dev/kvasir/internal/sidecar"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// ownSidecar is Kvasir's sidecar in front of an engine that decodes.
type ownSidecar struct {
	address string
	server  *kvasirsidecar.Server
	stop    context.CancelFunc
	over    sync.WaitGroup
}

// startOwnSidecar starts one, whose pickers sign with a seed.
func startOwnSidecar(t *testing.T, engine string, seed kvblock.Seed) *ownSidecar {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &ownSidecar{address: l.Addr().String()}
	s.server = kvasirsidecar.New(kvasirsidecar.Options{Engine: engine, Seeds: func() []kvblock.Seed { return []kvblock.Seed{seed} }})
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	s.stop = stop
	s.over.Go(func() { _ = s.server.Serve(ctx, l, nil, time.Second) })
	t.Cleanup(func() { stop(); s.over.Wait() })
	return s
}

// own is a pool of an engine that prefills and one that decodes behind Kvasir's sidecar, behind Envoy.
type own struct {
	apart
	sidecar *ownSidecar
}

func startOwn(t *testing.T, all ...gateway) *own {
	t.Helper()
	if *vllm != "" {
		t.Skip("the real engine hands nothing over")
	}
	both := engines(t, 2, func(c *vllmsim.Config) { c.Transfer.Enabled = true })
	a := &own{apart: apart{prefill: both[0], decode: both[1]}}
	s := pool(a.prefill.address(), "")
	a.sidecar = startOwnSidecar(t, a.decode.address(), s.Seed)
	s = pool(a.prefill.address(), a.sidecar.address)
	s.Endpoints[0].Role, s.Endpoints[1].Role = endpoint.Prefill, endpoint.Decode
	s.Policy.Handoffs = picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: 64, Sidecar: true, Own: true}
	s.Policy.CircuitOpen = 1 << 40 // nothing is tried again in these tests
	a.replica = startReplica(t, s, settings{})
	a.envoy = start(t, []string{a.replica.address}, []string{a.prefill.address(), a.sidecar.address}, all...)
	return a
}

// TestHandoffsByKvasirsSidecar: behind each gateway, the engine that was picked prefills, and the other one decodes.
func TestHandoffsByKvasirsSidecar(t *testing.T) {
	a := startOwn(t, gateways...)
	handed := int64(0)
	for _, g := range gateways {
		client := a.envoy.client(t, g, http11)
		for _, stream := range []bool{false, true} {
			r := newRequest(stream)
			reply := send(client, a.asks(t.Context(), t, r), nil)
			if !reply.whole(stream) || reply.usage.Prompt != r.tokens || reply.usage.Completion != 4 {
				t.Fatalf("%s: %v", g.name, reply)
			}
			handed++
			if p, d := a.at(r); p != 1 || d != 1 {
				t.Errorf("%s: served %d times by the engine that prefills, %d by the other one", g.name, p, d)
			}
		}
		short := request{tokens: 20, stream: true}
		if reply := send(client, a.asks(t.Context(), t, short), nil); !reply.whole(true) {
			t.Fatalf("%s: %v", g.name, reply)
		}
		if p, _ := a.at(short); p != 0 {
			t.Errorf("%s: a short prompt is handed over", g.name)
		}
	}
	a.rests(t)
	if n := a.counted(picker.HandoffCompleted); n != handed {
		t.Errorf("hand-offs %v, want %d completed", a.replica.stats().Handoffs, handed)
	}
}

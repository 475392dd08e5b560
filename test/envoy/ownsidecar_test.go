package envoy

import (
	"context"
	"io"
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

// startOwnSidecar starts one in a pod, whose pickers sign with a seed.
func startOwnSidecar(t *testing.T, engine, pod string, seed kvblock.Seed) *ownSidecar {
	t.Helper()
	s := &ownSidecar{address: freeAddress(t)}
	s.server = kvasirsidecar.New(kvasirsidecar.Options{
		Engine: engine, Pod: pod, Seeds: func() []kvblock.Seed { return []kvblock.Seed{seed} },
	})
	listen := func() (net.Listener, error) {
		return new(net.ListenConfig).Listen(context.WithoutCancel(t.Context()), "tcp", s.address)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	s.stop = stop
	s.over.Go(func() { _ = s.server.Serve(ctx, listen, nil, time.Second) })
	t.Cleanup(s.end)
	until(t, "the sidecar serves", func() bool { return healthy(s.address) })
	return s
}

// end ends the sidecar, with what it has under way after a second.
func (s *ownSidecar) end() { s.stop(); s.over.Wait() }

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
	a.sidecar = startOwnSidecar(t, a.decode.address(), "uid-1", s.Seed)
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

// TestFailuresOfHandoffsByKvasirsSidecar: a failed prefill costs no request. After three, requests are served alone. None counts against the
// circuit of the endpoint that decodes, unless that one is dead.
func TestFailuresOfHandoffsByKvasirsSidecar(t *testing.T) {
	for name, tc := range map[string]struct {
		fail   func(t *testing.T, a *own, r request)
		status []int // of the requests, one after another
		want   map[picker.HandoffOutcome]int64
		others int64 // failures of the endpoint that decodes
	}{
		"the engine that prefills is dead": {fail: func(_ *testing.T, a *own, _ request) { a.prefill.kill() }, status: []int{200, 200, 200, 200, 200},
			want: map[picker.HandoffOutcome]int64{picker.HandoffPrefillFailed: 3}},
		"it answers with errors": {fail: func(_ *testing.T, a *own, r request) { a.prefill.refuse(r.id()) }, status: []int{200, 200, 200, 200},
			want: map[picker.HandoffOutcome]int64{picker.HandoffPrefillFailed: 3}},
		"the engine that decodes is dead": {fail: killsDecode, status: []int{503, 503, 503, 503},
			want: map[picker.HandoffOutcome]int64{picker.HandoffDecodeFailed: 4}, others: 4},
		"the sidecar is dead": {fail: func(_ *testing.T, a *own, _ request) { a.sidecar.end() }, status: []int{503},
			want: map[picker.HandoffOutcome]int64{picker.HandoffDecodeFailed: 1}, others: 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := gatewayOf("Envoy AI Gateway") // it sends requests to the picked endpoint only
			a := startOwn(t, g)
			client := a.envoy.client(t, g, http11)
			for i, status := range tc.status {
				r := newRequest(i%2 == 0)
				tc.fail(t, a, r)
				if reply := send(client, a.asks(t.Context(), t, r), nil); reply.status != status || status == 200 && !reply.whole(r.stream) {
					t.Errorf("request %d: %v, want %d", i, reply, status)
				}
			}
			a.replica.idle(t)
			stats := a.replica.stats()
			for outcome, n := range stats.Handoffs {
				if n != tc.want[outcome] {
					t.Errorf("hand-offs %v, want %v", stats.Handoffs, tc.want)
				}
			}
			if n := stats.Endpoints[1].Failures; n != tc.others {
				t.Errorf("%d failures of the endpoint that decodes, want %d", n, tc.others)
			}
		})
	}
}

// killsDecode kills the engine that decodes, and waits until its sidecar refuses connections, too.
func killsDecode(t *testing.T, a *own, _ request) {
	t.Helper()
	a.decode.kill()
	until(t, "the sidecar refuses connections", func() bool { return !healthy(a.sidecar.address) })
}

// TestADeadEngineBehindTheSidecarLosesNothing: a gateway that sends requests elsewhere whose connections are refused loses none, and the next
// sidecar hands over with the same ticket.
func TestADeadEngineBehindTheSidecarLosesNothing(t *testing.T) {
	if *vllm != "" {
		t.Skip("the real engine hands nothing over")
	}
	g := best()
	all := engines(t, 3, func(c *vllmsim.Config) { c.Transfer.Enabled = true })
	s := pool(all[0].address(), "", "")
	sidecars := []*ownSidecar{
		startOwnSidecar(t, all[1].address(), "uid-1", s.Seed), startOwnSidecar(t, all[2].address(), "uid-2", s.Seed),
	}
	s = pool(all[0].address(), sidecars[0].address, sidecars[1].address)
	s.Endpoints[0].Role, s.Endpoints[1].Role, s.Endpoints[2].Role = endpoint.Prefill, endpoint.Decode, endpoint.Decode
	s.Policy.Handoffs = picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: 64, Sidecar: true, Own: true}
	s.OrderedDestinations, s.Policy.CircuitOpen = true, time.Hour
	a := &own{apart: apart{prefill: all[0], decode: all[1]}, sidecar: sidecars[0]}
	a.replica = startReplica(t, s, settings{})
	a.envoy = start(t, []string{a.replica.address}, []string{all[0].address(), sidecars[0].address, sidecars[1].address}, g)
	client := a.envoy.client(t, g, http11)
	killsDecode(t, a, request{})
	const requests = 10
	for i := range requests {
		r := newRequest(i%2 == 0)
		if reply := send(client, a.asks(t.Context(), t, r), nil); !reply.whole(r.stream) {
			t.Errorf("request %d: %v", i, reply)
		}
		all[2].mu.Lock()
		n := all[2].served[r.id()]
		all[2].mu.Unlock()
		if p, _ := a.at(r); p != 1 || n != 1 {
			t.Errorf("request %d is served %d times by the engine that prefills, %d by the one that decodes", i, p, n)
		}
	}
	a.replica.idle(t)
	if n := a.counted(picker.HandoffCompleted); n != requests {
		t.Errorf("hand-offs %v", a.replica.stats().Handoffs)
	}
}

// TestClientsThatLeaveEndBothLegsOfKvasirsSidecar.
func TestClientsThatLeaveEndBothLegsOfKvasirsSidecar(t *testing.T) {
	g := best()
	a := startOwn(t, g)
	client := a.envoy.client(t, g, http11)
	if reply := send(client, a.asks(t.Context(), t, newRequest(true)), nil); !reply.whole(true) { // the picker knows that answers are shown
		t.Fatal(reply)
	}
	for i, e := range []*engine{a.prefill, a.decode} {
		r := newRequest(true)
		h := newHold(patience)
		e.hold(r.id(), h)
		ctx, leave := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() {
			defer close(over)
			if answer, err := client.Do(a.asks(ctx, t, r)); err == nil {
				_, _ = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
			}
		}()
		until(t, "the engine has begun", func() bool {
			p, d := a.at(r)
			return []int{p, d}[i] == 1
		})
		leave()
		<-over
		close(h.arrived)
		a.rests(t)
		until(t, "the hand-off is counted", func() bool { return a.counted(picker.HandoffClientGone) == int64(i)+1 })
	}
	if n := a.sidecar.server.Stats(); n.UnderWay != 0 || n.HeldBytes != 0 || n.Broken != 0 {
		t.Errorf("the sidecar is left with %+v", n)
	}
}

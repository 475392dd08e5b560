package envoy

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// apart is a pool of an engine that prefills and one that decodes behind llm-d's sidecar, behind Envoy.
type apart struct {
	prefill, decode *engine
	sidecar         *sidecar
	replica         *replica
	envoy           *proxy
}

// startApart starts such a pool. bare: there is no sidecar.
func startApart(t *testing.T, bare bool, all ...gateway) *apart {
	t.Helper()
	if *vllm != "" {
		t.Skip("the real engine hands nothing over")
	}
	both := engines(t, 2, func(c *vllmsim.Config) { c.Transfer.Enabled = true })
	a := &apart{prefill: both[0], decode: both[1]}
	to := a.decode.address()
	if !bare {
		a.sidecar = startSidecar(t, to)
		to = a.sidecar.address
	}
	s := pool(a.prefill.address(), to)
	s.Endpoints[0].Role, s.Endpoints[1].Role = endpoint.Prefill, endpoint.Decode
	s.Policy.Handoffs = picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: 64, Sidecar: true}
	s.Policy.CircuitOpen = 1 << 40 // nothing is tried again in these tests
	a.replica = startReplica(t, s, settings{})
	a.envoy = start(t, []string{a.replica.address}, []string{a.prefill.address(), to}, all...)
	return a
}

// asks is a request with a prompt that no engine holds.
func (a *apart) asks(ctx context.Context, t *testing.T, r request) *http.Request {
	t.Helper()
	body := strings.Replace(r.body(), `"prompt":[1`, `"prompt":[`+r.id(), 1)
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://envoy/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set(idHeader, r.id())
	return q
}

// at reports how often the engines have served a request.
func (a *apart) at(r request) (prefill, decode int) {
	for i, e := range []*engine{a.prefill, a.decode} {
		e.mu.Lock()
		n := e.served[r.id()]
		e.mu.Unlock()
		if i == 0 {
			prefill = n
		} else {
			decode = n
		}
	}
	return prefill, decode
}

// rests checks that nothing is left of any request.
func (a *apart) rests(t *testing.T) {
	t.Helper()
	a.replica.idle(t)
	for name, e := range map[string]*engine{"prefills": a.prefill, "decodes": a.decode} {
		until(t, "the engine that "+name+" has freed its blocks", func() bool { return e.Stats().UsedBlocks == 0 })
	}
}

func (a *apart) counted(o picker.HandoffOutcome) int64 { return a.replica.stats().Handoffs[o] }

// TestHandoffsByTheSidecar: behind each gateway, the engine that was picked prefills, and the other one decodes.
func TestHandoffsByTheSidecar(t *testing.T) {
	a := startApart(t, false, gateways...)
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
			if reply.usage.Details.Cached != 0 { // those of the engine that prefills, of a prompt that is new
				t.Errorf("%s: %d tokens cached", g.name, reply.usage.Details.Cached)
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

// TestFailuresOfHandoffsByTheSidecar: the sidecar answers with the error of the engine that prefills. After three, requests are served alone.
func TestFailuresOfHandoffsByTheSidecar(t *testing.T) {
	for name, tc := range map[string]struct {
		bare   bool
		fail   func(a *apart, r request)
		status []int // of the requests, one after another
		failed int64 // hand-offs
		others int64 // failures of the endpoint that decodes
	}{
		"the engine that prefills is dead": {fail: func(a *apart, _ request) { a.prefill.kill() }, status: []int{502, 502, 502, 200, 200}, failed: 3},
		"it answers with errors":           {fail: func(a *apart, r request) { a.prefill.refuse(r.id()) }, status: []int{503, 503, 503, 200}, failed: 3},
		"the engine that decodes is dead":  {fail: func(a *apart, _ request) { a.decode.kill() }, status: []int{503, 503, 503, 503}, failed: 3, others: 1},
		"the sidecar is dead":              {fail: func(a *apart, _ request) { a.sidecar.kill() }, status: []int{503}, failed: 1, others: 1},
		"there is no sidecar":              {bare: true, fail: func(*apart, request) {}, status: []int{200}},
	} {
		t.Run(name, func(t *testing.T) {
			g := gatewayOf("Envoy AI Gateway") // it sends requests to the picked endpoint only
			a := startApart(t, tc.bare, g)
			client := a.envoy.client(t, g, http11)
			for i, status := range tc.status {
				r := newRequest(i%2 == 0)
				tc.fail(a, r)
				if reply := send(client, a.asks(t.Context(), t, r), nil); reply.status != status || status == 200 && !reply.whole(r.stream) {
					t.Errorf("request %d: %v, want %d", i, reply, status)
				}
			}
			a.replica.idle(t)
			stats := a.replica.stats()
			if n := a.counted(picker.HandoffDecodeFailed); n != tc.failed {
				t.Errorf("hand-offs %v, want %d failed", stats.Handoffs, tc.failed)
			}
			if n := stats.Endpoints[1].Failures; n != tc.others {
				t.Errorf("%d failures of the endpoint that decodes, want %d", n, tc.others)
			}
		})
	}
}

// TestClientsThatLeaveEndBothLegs of a hand-off by the sidecar.
func TestClientsThatLeaveEndBothLegs(t *testing.T) {
	g := best()
	a := startApart(t, false, g)
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
		if i == 0 {
			until(t, "the hand-off is counted", func() bool { return a.counted(picker.HandoffClientGone) == 1 })
		}
	}
}

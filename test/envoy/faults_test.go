package envoy

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// How errors in single settings of gateways show, each on a gateway whose other settings are right.

// judged is how many answers it takes at the most until a gateway is judged.
const judged = 8

// If a Service's port does not name its protocol, Istio uses HTTP/1.1 to the picker: no request is answered.
func TestAPickerIsNotAskedOverHTTP1(t *testing.T) {
	all := engines(t, 1, nil)
	r := startReplica(t, pool(addresses(all)...), settings{})
	g := gatewayOf("Istio")
	g.http1 = true
	p := start(t, []string{r.address}, addresses(all), g)
	for range judged {
		if a := do(p.client(t, g, http11), newRequest(false), nil); a.status != http.StatusInternalServerError {
			t.Errorf("a request that the picker cannot be asked about: %v", a)
		}
	}
	if n := r.ledger.len(); n != 0 || r.server.Streams() != 0 {
		t.Errorf("%d requests are accounted for", n)
	}
	g.http1 = false
	ask(t, start(t, []string{r.address}, addresses(all), g).client(t, g, http11), newRequest(false))
}

// A route without timeouts has Envoy's default, which cuts answers with status 200. That is no success, and nothing of
// the request is left.
func TestARouteWithATimeLimitCutsAnswers(t *testing.T) {
	// Envoy's default is 15 s. Where the machine is so slow that no answer begins within a limit, a longer one is tried.
	var all []gateway
	for _, limit := range [][2]string{{"short limit", "1s"}, {"longer limit", "5s"}, {"longest limit", "25s"}} {
		g := best()
		g.name, g.timeout = limit[0], limit[1]
		all = append(all, g)
	}
	b := newBench(t, all...)
	versions := []string{http11, http2}
	for _, version := range versions {
		if !slices.ContainsFunc(all, func(g gateway) bool { return b.cuts(t, g, version) }) {
			t.Errorf("%s: no answer begins within any of the limits", version)
		}
	}
	b.picker.ledger.waitFor(t, 0, len(versions))
	b.picker.idle(t)
	for _, e := range b.picker.ledger.entries(0) {
		if e.outcome == picker.Completed {
			t.Errorf("a cut answer counts as %v", e.outcome)
		}
	}
}

// cuts sends a request whose answer never ends through a gateway with a time limit. It reports whether the answer had begun with status
// 200 when it was cut; otherwise it is the gateway's own.
func (b *bench) cuts(t *testing.T, g gateway, version string) bool {
	t.Helper()
	r, h := newRequest(true), newHold(patience)
	for _, e := range b.engines {
		e.hold(r.id(), h)
	}
	defer close(h.arrived)
	a := do(b.client(t, g, version), r, nil)
	if a.err == nil && a.status != http.StatusGatewayTimeout || a.err != nil && a.status != http.StatusOK {
		t.Errorf("%s, %s: an answer that takes longer than the route's limit: %v", g.name, version, a)
	}
	return a.status == http.StatusOK
}

// A gateway whose set of endpoints lacks some of the pool's sends their requests elsewhere, without an error.
func TestAGatewayThatIgnoresPicksIsSeen(t *testing.T) {
	all := engines(t, 2, nil)
	r := startReplica(t, pool(addresses(all)...), settings{})
	for _, name := range []string{"Istio", "Envoy AI Gateway, `FailOpen`", "GKE"} {
		t.Run(name, func(t *testing.T) {
			g := gatewayOf(name)
			p := start(t, []string{r.address}, addresses(all[:1]), g)
			client := p.client(t, g, http2)
			before, after := gatewayStats(r.stats()), r.ledger.len()
			for range 2 * judged {
				ask(t, client, newRequest(true))
			}
			elsewhere := int64(0)
			for _, e := range r.ledger.waitFor(t, after, 2*judged) {
				if e.picked != all[0].address() {
					elsewhere++
				}
				if e.served != all[0].address() {
					t.Errorf("served by %s by the account; %s is the only one that Envoy knows", e.served, all[0].address())
				}
			}
			until(t, "the picks that were not followed count", func() bool { return gatewayStats(r.stats()).Unfollowed-before.Unfollowed >= elsewhere })
			now := gatewayStats(r.stats())
			if n := now.Unfollowed - before.Unfollowed; n != elsewhere || elsewhere == 0 || !now.Ignores {
				t.Errorf("%d of %d picks that were not followed count: %+v", n, elsewhere, now)
			}
		})
	}
}

// kgateway takes any endpoint where it does not know the picked one, and reports nothing of it. The engine that does not
// generate the tokens of its answers shows it.
func TestAGatewayThatIgnoresPicksInSilenceIsSeen(t *testing.T) {
	if *vllm != "" {
		t.Skip("the real engine is behind both addresses")
	}
	for name, known := range map[string]int{"Envoy knows all endpoints": 2, "one is missing": 1} {
		t.Run(name, func(t *testing.T) {
			all := engines(t, 2, nil)
			r := startReplica(t, pool(addresses(all)...), settings{})
			g := gatewayOf("kgateway")
			client := start(t, []string{r.address}, addresses(all[:known]), g).client(t, g, http2)
			r.scrape(t, all)
			for range 4 * judged {
				q := newRequest(true)
				q.output = 16
				ask(t, client, q)
			}
			r.ledger.waitFor(t, 0, 4*judged)
			for range 3 { // an answer must be in the second report after its end, and the third begins another window
				r.scrape(t, all)
			}
			switch s := gatewayStats(r.stats()); {
			case known == len(all) && (s.Unfollowed != 0 || s.Ignores):
				t.Errorf("all picks were followed: %+v", s)
			case known < len(all) && (s.Unfollowed != 2*judged || !s.Ignores):
				t.Errorf("%d picks were for the engine that Envoy does not know: %+v", 2*judged, s)
			}
		})
	}
}

// A gateway that buffers answers ends streaming. That is judged from streamed answers alone.
func TestAGatewayThatBuffersAnswersIsSeen(t *testing.T) {
	for name, buffers := range map[string]bool{"Envoy AI Gateway, `buffered`": true, "Envoy AI Gateway": false} {
		g := gatewayOf(name)
		b := newBench(t, g)
		client := b.client(t, g, http11)
		for _, stream := range []bool{false, true} {
			for range judged {
				r := newRequest(stream)
				r.output = heldTokens
				h := newHold(patience) // Envoy must get the pieces one by one
				if buffers {
					h.most = heldAnswer
				}
				for _, e := range b.engines {
					e.hold(r.id(), h)
				}
				if a := do(client, r, func() { close(h.arrived) }); !a.whole(stream) {
					t.Errorf("%s, streamed answers: %v: %v", name, stream, a)
				}
			}
			b.picker.idle(t)
			if s := gatewayStats(b.picker.stats()); s.Buffers != (stream && buffers) {
				t.Errorf("%s, streamed answers: %v: %+v", name, stream, s)
			}
		}
	}
}

// An engine that closes a connection just when a gateway uses it again costs a request: it has been sent, so that no
// gateway sends it again. It counts as failed, and as a failure of the engine.
func TestAnEngineClosesAConnectionThatIsUsedAgain(t *testing.T) {
	for _, g := range gateways {
		t.Run(g.name, func(t *testing.T) {
			all := engines(t, 1, nil)
			all[0].closeReused.Store(true)
			r := startReplica(t, pool(addresses(all)...), settings{})
			client := start(t, []string{r.address}, addresses(all), g).client(t, g, http11)
			ask(t, client, newRequest(false))
			if a := do(client, newRequest(false), nil); a.status != http.StatusServiceUnavailable {
				t.Errorf("a request on a connection that is being closed: %v", a)
			}
			if e := r.ledger.waitFor(t, 0, 2)[1]; e.outcome != picker.Failed || e.served != all[0].address() {
				t.Errorf("it counts as %v of %s", e.outcome, e.served)
			}
			if n := r.stats().Endpoints[0].Failures; n != 1 {
				t.Errorf("%d failures of the engine count", n)
			}
		})
	}
}

// A gateway that only observes gets its requests answered, wherever it sends them, and they are accounted for.
func TestAGatewayThatOnlyObserves(t *testing.T) {
	for _, modes := range [][2]string{{streamed, streamed}, {streamed, none}, {none, streamed}, {none, none}} {
		g := best()
		g.observe, g.request, g.response = true, modes[0], modes[1]
		b := newBench(t, g)
		for _, version := range []string{http11, http2} {
			for _, stream := range []bool{false, true} {
				ask(t, b.client(t, g, version), newRequest(stream))
			}
		}
		for _, e := range b.picker.ledger.waitFor(t, 0, 4) {
			if e.outcome != picker.Completed {
				t.Errorf("%v: an observed request counts as %v", modes, e.outcome)
			}
		}
		if s := gatewayStats(b.picker.stats()); s.Unfollowed != 0 {
			t.Errorf("picks that were not asked for count as not followed: %+v", s)
		}
	}
}

// A gateway that shows only the headers of answers spoils neither the account nor what is learned through others.
func TestAGatewayThatShowsNoAnswersBesideOneThatDoes(t *testing.T) {
	shows, hides := best(), best()
	hides.name, hides.response = "hides", none
	b := newBench(t, shows, hides)
	for range judged {
		for _, g := range []gateway{hides, shows} {
			for _, stream := range []bool{false, true} {
				after := b.picker.ledger.len()
				r := newRequest(stream)
				ask(t, b.client(t, g, http11), r)
				e := b.picker.ledger.waitFor(t, after, 1)[0]
				if e.outcome != picker.Completed || (e.told.Prompt == r.tokens) != (g.response != none) {
					t.Errorf("%s, stream %v: counts as %v with %+v", g.name, stream, e.outcome, e.told)
				}
			}
		}
	}
}

// Engines that are so fast that nothing can be learned of their speed are not full: no request waits in the queue.
func TestFastEnginesAreNotFull(t *testing.T) {
	all := engines(t, 2, func(c *vllmsim.Config) { c.SpeedUp = 1e6 })
	spec := pool(addresses(all)...)
	spec.Policy.Strategy = policy.Config{Type: policy.MarginalCost}
	spec.Policy.Admission = picker.AdmissionSpec{Queue: true, WaitBudget: time.Second,
		Limits: admission.Limits{Requests: 1000, Bytes: 1 << 30, TTL: time.Minute, Hold: time.Minute}}
	r := startReplica(t, spec, settings{})
	g := best()
	p := start(t, []string{r.address}, addresses(all), g)
	load := p.drive(t, g)
	load.during("with fast engines", 20*some)
	load.end()
	load.lossless()
	if s := r.stats().Admission; s.Waited != 0 || s.Shed != 0 {
		t.Errorf("requests waited for engines that have nothing to do: %+v", s)
	}
	r.idle(t)
}

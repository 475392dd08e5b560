package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/relay"
)

// apartPolicy hands every new prompt over.
const apartPolicy = `apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: m}
spec:
  targetRefs: [{name: m}]
  strategy: {type: MarginalCost}
  disaggregation: {type: Threshold, uncachedTokens: 64, sidecar: Kvasir}
  fallback: {firstByteSeconds: 2}
  guards: {circuit: {consecutiveFailures: 3, openSeconds: 1}}
`

// apart is a site of two pods that prefill and two that decode behind their reporters, which serve the pool's port, behind a gateway.
type apart struct {
	site
	status  []string // addresses of the reporters' status, by pod
	prompts atomic.Int64
}

func newApart(t *testing.T) *apart {
	t.Helper()
	a := &apart{site: site{fleet: fleet{t: t, dir: t.TempDir(), client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}, stop: make(chan struct{})}}
	extproc, metrics, health, reports := freeAddress(t), freeAddress(t), freeAddress(t), freeAddress(t)
	a.metrics, a.health = "http://"+metrics, "http://"+health
	a.proc = &program{t: t, name: "picker", args: []string{
		"--standalone", a.dir, "--proxy-address", "", "--metrics-address", metrics, "--health-address", health,
		"--ext-proc-address", extproc, "--ext-proc-plaintext", "--report-address", reports, "--report-insecure", "--lame-duck", "0s",
	}}
	for n := range 4 {
		events, replay, engine, status := freeAddress(t), freeAddress(t), freeAddress(t), freeAddress(t)
		p := &pod{number: n, http: engine, state: t.TempDir()}
		p.reporter = &program{t: t, name: "reporter", args: []string{
			"--events-listen", events, "--replay", replay, "--picker-service", "localhost:" + port(t, reports), "--insecure",
			"--state-dir", p.state, "--status-address", status, "--pod", p.uid(), "--engine-metrics", "http://" + engine + "/metrics",
		}}
		role := "prefill"
		if n >= 2 {
			role, p.http = "decode", freeAddress(t)
			p.reporter.args = append(p.reporter.args, "--serve-address", p.http, "--serve-engine", "http://"+engine)
		}
		p.engine = &program{t: t, name: "vllmsim", args: []string{
			"--host", "127.0.0.1", "--port", port(t, engine), "--served-model-name", "m", "--num-gpu-blocks", "2000", "--speed-up", "20",
			"--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"kv_both"}`,
			"--kv-events-config", fmt.Sprintf(`{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://%s", "replay_endpoint": "tcp://%s"}`, events, replay),
		}}
		a.pods, a.status = append(a.pods, p), append(a.status, status)
		a.write(fmt.Sprintf("slice-%d.yaml", n), fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: m-%d, labels: {kvasir.dev/pool: m, kvasir.dev/role: %s}}
addressType: IPv4
ports: [{name: http, port: %s}]
endpoints:
- {addresses: [127.0.0.1], conditions: {ready: true, serving: true, terminating: false}, targetRef: {kind: Pod, name: pod-%d, uid: %s}}
`, n, role, port(t, p.http), n, p.uid()))
	}
	t.Cleanup(func() {
		for _, p := range append(a.programs(), a.proc) {
			p.kill()
			if t.Failed() {
				logs := p.logs.String()
				t.Logf("%s %v:\n%s", p.name, p.args, logs[max(0, len(logs)-3000):])
			}
		}
	})
	a.write("pool.yaml", poolYAML)
	a.write("policy.yaml", apartPolicy)
	for _, p := range a.programs() {
		p.start()
	}
	a.proc.start()
	a.untilReady()
	for _, p := range a.pods {
		a.untilServing(p)
	}
	a.proxy = behindAllowing(t, []string{relay.TicketHeader}, extproc).url
	a.untilTickets()
	return a
}

// untilTickets waits until all sidecars know the picker, which all reporters have reached.
func (a *apart) untilTickets() {
	a.t.Helper()
	for n, status := range a.status {
		a.until(fmt.Sprintf("the reporter of pod %d knows the picker", n), func() bool {
			_, page := a.get("http://" + status + "/metrics")
			return strings.Contains(page, "\nkvasir_reporter_picker_connected{") && strings.Contains(page, `rank="0"} 1`) && !strings.Contains(page, "connected{} 0")
		})
	}
}

// next sends a request with a prompt that no engine holds.
func (a *apart) next() string {
	n := int(a.prompts.Add(1))
	return a.ask(append([]int{1_000_000 + n}, tokens(n%50, 639)...))
}

// seen sums a counter of the sidecars, or a gauge.
func (a *apart) seen(series string) (sum int) {
	a.t.Helper()
	for _, status := range a.status[2:] {
		_, page := a.get("http://" + status + "/metrics")
		for line := range strings.Lines(page) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == series {
				n, _ := strconv.Atoi(value)
				sum += n
			}
		}
	}
	return sum
}

// rests checks that nothing is left of any request, in the picker, in sidecars and in engines.
func (a *apart) rests() {
	a.t.Helper()
	a.until("the picker has no request", func() bool { return a.inFlight(-1) == 0 })
	a.until("the sidecars have none", func() bool {
		return a.seen("kvasir_sidecar_requests_under_way") == 0 && a.seen("kvasir_sidecar_held_bytes") == 0
	})
	for _, p := range a.pods {
		a.until(fmt.Sprintf("nothing is pinned at pod %d", p.number), func() bool {
			_, page := a.get("http://" + p.http + "/metrics")
			for line := range strings.Lines(page) {
				if strings.HasPrefix(line, "vllmsim:held_requests{") {
					return strings.HasSuffix(strings.TrimSpace(line), "} 0.0") || strings.HasSuffix(strings.TrimSpace(line), "} 0")
				}
			}
			return false
		})
	}
}

// outcomes are the hand-offs that the picker has counted.
func (a *apart) counted(outcome string) int {
	return int(a.metric("kvasir_handoffs_total", `outcome="`+outcome+`"`))
}

// TestKvasirsSidecarHandsOver: the picker counts what the sidecars have seen, compares the hits of the first leg, and learns the price of transfers.
func TestKvasirsSidecarHandsOver(t *testing.T) {
	a := newApart(t)
	const requests = 20
	for range requests {
		if wrong := a.next(); wrong != "" {
			t.Fatal(wrong)
		}
	}
	if picker, sidecars := a.counted("completed"), a.seen(`kvasir_sidecar_handoffs_total{outcome="handed_over"}`); picker != requests || sidecars != requests {
		t.Errorf("the picker counts %d hand-offs, the sidecars %d", picker, sidecars)
	}
	if all := a.metric("kvasir_handoffs_total"); all != requests {
		t.Errorf("%v hand-offs in all", all)
	}
	if n := a.metric("kvasir_prompt_tokens_total", `endpoint="pod-0/0"`) + a.metric("kvasir_prompt_tokens_total", `endpoint="pod-1/0"`); n != requests*640 {
		t.Errorf("the hits of %v tokens of first legs are compared, want %d", n, requests*640)
	}
	if base := a.metric("kvasir_transfer_base_seconds"); base == 0.027 {
		t.Errorf("%v s for each transfer: it is not learned", base)
	}
	// What clients send as a ticket reaches no engine, and nothing is handed over by it.
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+a.pods[2].http+"/v1/completions",
		bytes.NewReader([]byte(`{"model":"m","prompt":[1,2,3],"max_tokens":1}`)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(relay.TicketHeader, "1 "+a.pods[0].http+" 1 0 AAAA")
	answer, err := a.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK || answer.Header.Get(relay.ReportHeader) != "refused;cause=ticket" || a.seen(`kvasir_sidecar_handoffs_total{outcome="refused"}`) != 1 {
		t.Errorf("status %d, report %q", answer.StatusCode, answer.Header.Get(relay.ReportHeader))
	}
	a.rests()
}

// TestWhateverIsKilledKvasirsSidecarLosesLittle: no request fails that could be saved, nothing stays pinned, and hand-offs go on afterwards.
func TestWhateverIsKilledKvasirsSidecarLosesLittle(t *testing.T) {
	a := newApart(t)
	for worker := range siteClients {
		a.clients.Go(func() {
			for worker >= 0 {
				select {
				case <-a.stop:
					return
				default:
				}
				o := outcome{from: time.Now()}
				o.wrong = a.next()
				o.to = time.Now()
				a.mu.Lock()
				a.outcomes = append(a.outcomes, o)
				a.mu.Unlock()
				if o.wrong != "" {
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	completes := func(what string) {
		t.Helper()
		n := a.counted("completed")
		a.until(what+": requests are handed over", func() bool { return a.counted("completed") > n+20 })
	}
	completes("at first")

	// An engine that prefills, whose requests are all saved.
	failed := a.counted("prefill_failed")
	a.pods[0].engine.kill()
	a.until("failed prefills are reported", func() bool { return a.counted("prefill_failed") > failed })
	completes("without an engine that prefills")
	a.pods[0].engine.start()
	a.untilServing(a.pods[0])
	completes("with it again")

	// One that does not answer, beyond the policy's time.
	failed = a.counted("prefill_failed")
	_ = a.pods[1].engine.cmd.Process.Signal(syscall.SIGSTOP)
	a.until("late prefills are reported", func() bool { return a.counted("prefill_failed") > failed })
	_ = a.pods[1].engine.cmd.Process.Signal(syscall.SIGCONT)
	completes("after a pause of an engine that prefills")

	// A sidecar: what it had under way is lost.
	a.during(false, a.pods[2].reporter.kill)
	a.during(false, func() { time.Sleep(300 * time.Millisecond); a.pods[2].reporter.start(); a.untilServing(a.pods[2]) })
	completes("after a restart of a sidecar")

	// An engine that decodes: what it had under way is lost.
	a.during(false, a.pods[3].engine.kill)
	a.during(false, func() { time.Sleep(300 * time.Millisecond); a.pods[3].engine.start(); a.untilServing(a.pods[3]) })
	completes("after a restart of an engine that decodes")

	// The picker: its successor has another root of keys, by which sidecars know it.
	a.during(true, func() {
		a.proc.kill()
		time.Sleep(300 * time.Millisecond)
		a.proc.start()
		a.untilReady()
		a.until("the gateway has reached it", func() bool { return a.next() == "" })
	})
	a.until("requests are handed over after a restart of the picker", func() bool { return a.counted("completed") > 20 })

	a.rest()
	failures, excused, lost := 0, 0, 0
	for _, o := range a.outcomes {
		if o.wrong == "" {
			continue
		}
		failures++
		for _, k := range a.kills {
			if !o.from.After(k.to) && !o.to.Before(k.from) {
				excused++
				if !k.picker {
					lost++
				}
				break
			}
		}
	}
	t.Logf("%d requests, %d failed: %d as a sidecar or its engine was down, %d without a picker", len(a.outcomes), failures, lost, excused-lost)
	if most := 4 * siteClients; lost > most { // what was under way, and what is sent there until the circuit opens, twice
		t.Errorf("%d requests failed as a sidecar or its engine was down, at most %d are wanted", lost, most)
	}
	if failures != excused {
		t.Errorf("%d requests failed although nothing was down", failures-excused)
	}
	a.rests()
}

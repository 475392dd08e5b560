package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// program is a process that is killed and started again, with the same arguments.
type program struct {
	t    *testing.T
	name string
	args []string
	cmd  *exec.Cmd
	logs logBuffer
}

func (p *program) start() {
	p.t.Helper()
	p.cmd = exec.Command(filepath.Join(filepath.Dir(pickerBinary), p.name), p.args...)
	p.cmd.Stdout, p.cmd.Stderr = &p.logs, &p.logs
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends it as the kernel does when memory is short.
func (p *program) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill() // it might have ended
	_ = p.cmd.Wait()         // it was killed
	p.cmd = nil
}

// pod is an engine and its reporter.
type pod struct {
	number, life     int
	http, state      string
	engine, reporter *program
}

// uid is another one after the pod was replaced.
func (p *pod) uid() string { return fmt.Sprintf("uid-%d-%d", p.number, p.life) }

// site is pods and a picker, each a process, and clients that never rest.
type site struct {
	fleet // without its engines
	pods  []*pod
	proc  *program // the picker

	clients sync.WaitGroup
	stop    chan struct{}

	mu       sync.Mutex
	outcomes []outcome // guarded by mu
	kills    []window  // guarded by mu
}

// window is when an engine was being killed, or when there was no picker.
type window struct {
	from, to time.Time
	picker   bool
}

// outcome is what became of a request.
type outcome struct {
	from, to time.Time
	wrong    string // empty when all is well
}

const siteClients = 6

// siteArgs are flags besides those of newSite.
type siteArgs struct {
	picker, engine []string
	reporter       func(p *pod) []string
}

// insecure is for tests that are not about the authentication of reporters.
var insecure = siteArgs{picker: []string{"--report-insecure"}, reporter: func(*pod) []string { return []string{"--insecure"} }}

// newSite starts pods whose engines publish to their reporters alone, and a picker.
func newSite(t *testing.T, pods int, args siteArgs) *site {
	t.Helper()
	s := &site{fleet: fleet{t: t, dir: t.TempDir(), client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}, stop: make(chan struct{})}
	proxy, metrics, health, reports := freeAddress(t), freeAddress(t), freeAddress(t), freeAddress(t)
	s.proxy, s.metrics, s.health = "http://"+proxy, "http://"+metrics, "http://"+health
	s.proc = &program{t: t, name: "picker", args: append([]string{
		"--standalone", s.dir, "--proxy-address", proxy, "--metrics-address", metrics, "--health-address", health,
		"--ext-proc-address", "", "--report-address", reports, "--lame-duck", "0s",
	}, args.picker...)}
	for n := range pods {
		events, replay := freeAddress(t), freeAddress(t)
		p := &pod{number: n, http: freeAddress(t), state: t.TempDir()}
		p.engine = &program{t: t, name: "vllmsim", args: append([]string{
			"--host", "127.0.0.1", "--port", port(t, p.http), "--served-model-name", "m", "--num-gpu-blocks", "600", "--speed-up", "50",
			"--kv-events-config", fmt.Sprintf(`{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://%s", "replay_endpoint": "tcp://%s"}`, events, replay),
		}, args.engine...)}
		p.reporter = &program{t: t, name: "reporter", args: append([]string{
			"--events-listen", events, "--replay", replay, "--picker-service", "localhost:" + port(t, reports),
			"--state-dir", p.state, "--status-address", "", "--pod", p.uid(),
		}, args.reporter(p)...)}
		s.pods = append(s.pods, p)
	}
	t.Cleanup(func() {
		for _, p := range append(s.programs(), s.proc) {
			p.kill()
			if t.Failed() {
				logs := p.logs.String()
				t.Logf("%s %v:\n%s", p.name, p.args, logs[max(0, len(logs)-4000):])
			}
		}
	})
	s.write("pool.yaml", poolYAML)
	s.write("policy.yaml", fmt.Sprintf(policyYAML, "MarginalCost"))
	s.writeSlices()
	for _, p := range s.programs() {
		p.start()
	}
	s.proc.start()
	s.untilReady()
	return s
}

func (s *site) programs() (all []*program) {
	for _, p := range s.pods {
		all = append(all, p.engine, p.reporter)
	}
	return all
}

// writeSlices describes the pods. It names no address for events: only reporters send them.
func (s *site) writeSlices() {
	s.t.Helper()
	for _, p := range s.pods {
		s.write(fmt.Sprintf("slice-%d.yaml", p.number), fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: m-%d, labels: {kvasir.dev/pool: m}}
addressType: IPv4
ports: [{name: http, port: %s}]
endpoints:
- {addresses: [127.0.0.1], conditions: {ready: true, serving: true, terminating: false}, targetRef: {kind: Pod, name: pod-%d, uid: %s}}
`, p.number, port(s.t, p.http), p.number, p.uid()))
	}
}

func (s *site) untilReady() {
	s.t.Helper()
	s.until("the picker is ready", func() bool {
		status, _ := s.get(s.health + "/readyz")
		return status == http.StatusOK
	})
}

func (s *site) untilServing(p *pod) {
	s.t.Helper()
	s.until("the engine serves", func() bool {
		status, _ := s.get("http://" + p.http + "/health")
		return status == http.StatusOK
	})
}

// blocks is the truth: how many blocks an engine's cache has.
func (s *site) blocks(p *pod) int {
	s.t.Helper()
	_, body := s.get("http://" + p.http + "/sim/blocks")
	var answer struct {
		Blocks int `json:"blocks"`
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		return -1
	}
	return answer.Blocks
}

// sample is a metric of a pod's endpoint; false when it is absent.
func (s *site) sample(name string, p *pod) (float64, bool) {
	s.t.Helper()
	_, text := s.get(s.metrics + "/metrics")
	for line := range strings.Lines(text) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok && strings.HasPrefix(series, name+"{") && strings.Contains(series, fmt.Sprintf(`endpoint="pod-%d/0"`, p.number)) {
			v, err := strconv.ParseFloat(value, 64)
			return v, err == nil
		}
	}
	return 0, false
}

// rotateKeys gives the pool another root of keys, and waits until all endpoints have moved to it.
func (s *site) rotateKeys() {
	s.t.Helper()
	s.write("secret.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: m-key}\nstringData: {root: "+strings.Repeat("k", 32)+"}\n")
	s.until("all have moved", func() bool { return strings.Contains(s.proc.logs.String(), "All endpoints have keys of the new root") })
}

// load lets clients ask one prompt after the other, until the site is stopped.
func (s *site) load() {
	for n := range siteClients {
		s.clients.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(n), 4))
			for {
				select {
				case <-s.stop:
					return
				default:
				}
				o := outcome{from: time.Now()}
				o.wrong = s.ask(siteprompt(rng.IntN(60)))
				o.to = time.Now()
				s.mu.Lock()
				s.outcomes = append(s.outcomes, o)
				s.mu.Unlock()
				if o.wrong != "" {
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
}

// siteprompt is one of some prompts of about 40 blocks. It shares its first half with five others.
func siteprompt(n int) []int { return append(tokens(100+n/6, 320), tokens(200+n, 330)...) }

// ask reports what was wrong with the answer.
func (s *site) ask(prompt []int) string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	finish, err := s.start(ctx, "/v1/completions", completion(prompt, 3))
	if err != nil {
		return err.Error()
	}
	if a := finish(); a.status != http.StatusOK || !strings.Contains(a.body, "[DONE]") {
		return fmt.Sprintf("status %d: %q", a.status, a.body)
	}
	return ""
}

// during records what can fail meanwhile.
func (s *site) during(picker bool, do func()) {
	w := window{from: time.Now(), picker: picker}
	do()
	w.to = time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kills = append(s.kills, w)
}

// rest stops the clients.
func (s *site) rest() {
	close(s.stop)
	s.clients.Wait()
}

// check reports requests that failed without a reason. While there was a picker, only requests in progress at an engine when
// it was killed are allowed to fail, one of each client.
func (s *site) check() {
	s.t.Helper()
	lost := make([]int, len(s.kills))
	failed := 0
	for _, o := range s.outcomes {
		if o.wrong == "" {
			continue
		}
		failed++
		excused := false
		for i, k := range s.kills {
			if !o.from.After(k.to) && !o.to.Before(k.from) {
				excused = true
				lost[i]++
			}
		}
		if !excused {
			s.t.Errorf("a request failed although nothing was killed: %s", o.wrong)
		}
	}
	for i, k := range s.kills {
		if !k.picker && lost[i] > siteClients {
			s.t.Errorf("%d requests failed as an engine was killed, with %d clients", lost[i], siteClients)
		}
	}
	s.t.Logf("%d requests, %d failed: %v at the kills", len(s.outcomes), failed, lost)
}

// untilEqual waits until every endpoint's index is shown to be equal to its engine's cache. It takes two digests after the
// last change at most: one that can find a difference, and one that shows it repaired.
func (s *site) untilEqual(what string) {
	s.t.Helper()
	began, digests := time.Now(), make([]float64, len(s.pods))
	for i, p := range s.pods {
		digests[i], _ = s.sample("kvasir_report_digests_total", p)
	}
	for i, p := range s.pods {
		s.until(what+": pod "+strconv.Itoa(p.number)+" is equal", func() bool {
			proven, _ := s.sample("kvasir_report_last_proof_timestamp_seconds", p)
			divergent, present := s.sample("kvasir_index_divergent_blocks", p)
			return present && divergent == 0 && proven*1e3 >= float64(began.UnixMilli()) && int(s.held(p.number)) == s.blocks(p)
		})
		now, _ := s.sample("kvasir_report_digests_total", p)
		if took := now - digests[i]; took > 3 { // one more might have arrived since it was equal
			s.t.Errorf("%s: pod %d was equal only after %v digests", what, p.number, took)
		}
	}
	s.t.Logf("%s: equal after %s of quiet", what, time.Since(began).Round(time.Millisecond))
}

// Whatever is killed under load, afterwards the picker knows what the engines hold, and no request fails that could be
// saved.
func TestTheIndexEqualsTheEnginesWhateverIsKilled(t *testing.T) {
	s := newSite(t, 3, insecure)
	for _, p := range s.pods {
		s.untilServing(p)
	}
	s.load()
	work := func() { time.Sleep(300 * time.Millisecond) }
	work()
	restart := func(p *program) { p.kill(); work(); p.start() }

	engine := s.pods[0]
	s.during(false, engine.engine.kill)
	work()
	engine.engine.start()
	s.untilServing(engine)
	work()

	restart(s.pods[1].reporter)
	work()

	s.during(true, func() { s.proc.kill(); work(); s.proc.start(); s.untilReady() })
	work()

	// A reporter and its engine at once, with the reporter's memory.
	s.during(false, s.pods[1].engine.kill)
	restart(s.pods[1].reporter)
	s.pods[1].engine.start()
	work()

	// Another pod at the same address.
	p := s.pods[2]
	s.during(false, p.engine.kill)
	p.reporter.kill()
	if err := os.RemoveAll(filepath.Join(p.state, "rank-0.mirror")); err != nil {
		t.Fatal(err)
	}
	p.life++
	p.reporter.args = append(p.reporter.args, "--pod", p.uid())
	s.writeSlices()
	p.engine.start()
	p.reporter.start()
	s.untilServing(p)
	work()

	// The picker and a reporter, while the engine continues.
	s.during(true, func() { s.proc.kill(); restart(s.pods[0].reporter); s.proc.start(); s.untilReady() })
	s.until("every pod is followed", func() bool { return s.metric("kvasir_report_state", `state="Synced"`) == 3 })
	work()

	// Another root of keys.
	s.rotateKeys()
	if n := s.metric("kvasir_index_resyncs_total", `reason="NewKeys"`); n != 3 {
		t.Errorf("%v endpoints have moved to keys of another root, want 3", n)
	}
	work()

	s.rest()
	s.until("nothing is assumed any more", func() bool { return s.metric("kvasir_index_speculative_blocks") == 0 })
	s.untilEqual("after all kills")
	s.check()

	// The engine finds what the index holds: predictions are correct.
	for n := range 3 {
		a := s.do("/v1/completions", completion(siteprompt(n*20), 1))
		if a.status != http.StatusOK || a.confirmed != a.cached || a.predicted != a.cached {
			t.Errorf("prompt %d: status %d, %d tokens confirmed, %d predicted, %d found", n*20, a.status, a.confirmed, a.predicted, a.cached)
		}
		s.untilEqual("after one more request")
	}
}

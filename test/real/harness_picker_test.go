package real

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pickerConfig is how a picker is started. The zero value is one that asks engines for tokens and takes its defaults.
type pickerConfig struct {
	files    bool     // the picker has the model's files and tokenizes in process
	source   string   // of the tokenizer; empty for Directory with files, and Engine without
	spec     string   // YAML inserted into the pool's spec, indented by two spaces
	policy   string   // YAML inserted into the policy's spec, indented by two spaces
	flags    []string // more of the picker
	secret   string   // the value of token in the Secret keys
	portless bool     // the ports of events are not configured
	reporter bool     // each engine has a reporter, and the picker follows no events itself (config.dial must be set)
	// partly does not wait until events are synced and tokens exact, for cases where they cannot be.
	partly bool
	// defaults: the policy has the default budgets for tokens. Otherwise they are such that a busy machine keeps them.
	defaults bool
	// decisions: each decision is logged, see picker.decided.
	decisions bool
	roles     []string // of the engines; none if empty
}

// picker is a running picker in standalone mode.
type picker struct {
	t       *testing.T
	config  pickerConfig
	dir     string
	engines []*engine
	proxy   string // URLs
	metrics string
	health  string
	log     *logger
	process *exec.Cmd
	exited  chan struct{}
	ended   bool
	seen    totals
	// uncounted answers stay out of the totals: the case is known to fail.
	uncounted bool
}

const poolYAML = `apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: m}
spec:
  model: {name: m, tokenizer: %s}
  selector: {matchLabels: {app: m}}
%s`

const policyYAML = `apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: m}
spec:
  targetRefs: [{name: m}]
  decisions: {answerHeaders: Always%s}
%s`

// patientTokens lets a busy machine make tokens in time.
const patientTokens = "  tokens: {budgetMilliseconds: 5000, engineBudgetMilliseconds: 5000}\n"

// startPicker starts a picker in front of engines and waits until it follows their events and has exact tokens.
func startPicker(t *testing.T, engines []*engine, config pickerConfig) *picker {
	t.Helper()
	p := &picker{t: t, config: config, dir: t.TempDir(), engines: engines}
	reason, _ := known(t.Name())
	p.uncounted = reason != ""
	source := "{type: Engine}"
	if config.files {
		source = "{type: Directory, directory: {path: " + filepath.Base(engines[0].dir) + "}}"
	}
	if config.source != "" {
		source = config.source
	}
	spec := config.spec
	if ranks := engines[0].config.ranks; ranks > 1 {
		spec += fmt.Sprintf("  engine: {dataParallel: {ranks: %d}}\n", ranks)
	}
	if config.reporter {
		spec = "  engine: {events: {source: Reporter}}\n" + spec
	}
	if config.secret != "" {
		p.write("secret.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: keys}\nstringData: {token: "+config.secret+"}\n")
	}
	p.write("pool.yaml", fmt.Sprintf(poolYAML, source, spec))
	p.write("policy.yaml", config.policyFile())
	for i := range engines {
		p.describe(i, "{ready: true, serving: true, terminating: false}")
	}
	p.start()
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("log of the picker:\n%s", p.log.tail(60000))
		}
	})
	if !config.partly {
		p.until("events are synced and tokens exact", p.ready)
	}
	return p
}

// policyFile is the policy of a picker.
func (c pickerConfig) policyFile() string {
	more, logged := c.policy, ""
	if !c.defaults {
		more = patientTokens + more
	}
	if c.decisions {
		logged = ", logPercent: 100"
	}
	return fmt.Sprintf(policyYAML, logged, more)
}

// startReporter starts the reporter of an engine that publishes to a port of 127.0.0.1, and stops it at the test's end. It
// returns the URL of its wait endpoint.
func startReporter(t *testing.T, e *engine, events, report int) (wait string) {
	t.Helper()
	drain := fmt.Sprintf("127.0.0.1:%d", freePort(t, 1))
	log := &logger{}
	process := exec.Command(program(t, "reporter"), "--pod", e.uid, "--insecure", "--events-listen", fmt.Sprintf("127.0.0.1:%d", events),
		"--replay", fmt.Sprintf("127.0.0.1:%d", e.replay), "--pickers", fmt.Sprintf("127.0.0.1:%d", report),
		"--engine-metrics", e.url+"/metrics", "--model-dir", e.dir, "--drain-address", drain, "--drain-settle", "100ms", "--status-address", fmt.Sprintf("127.0.0.1:%d", freePort(t, 1)))
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
		if t.Failed() {
			t.Logf("log of the reporter of %s:\n%s", e.name, log.tail(3000))
		}
	})
	return "http://" + drain
}

// startPair starts two pickers that exchange their placements, in front of the same engines.
func startPair(t *testing.T, engines []*engine) (first, second *picker) {
	t.Helper()
	dir := t.TempDir()
	key, secret := filepath.Join(dir, "key"), filepath.Join(dir, "secret")
	for path, text := range map[string]string{key: strings.Repeat("k", 32), secret: strings.Repeat("s", 16)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	addresses := []string{fmt.Sprintf("127.0.0.1:%d", freePort(t, 1)), fmt.Sprintf("127.0.0.1:%d", freePort(t, 1))}
	var pickers []*picker
	for _, address := range addresses {
		pickers = append(pickers, startPicker(t, engines, pickerConfig{files: true, flags: []string{"--key-file", key, "--report-address", address,
			"--report-insecure", "--peers", strings.Join(addresses, ","), "--peers-secret-file", secret}}))
	}
	for _, p := range pickers {
		p.until("the other picker is connected", func() error {
			if heard, told := p.metric("kvasir_peers_heard"), p.metric("kvasir_peers_told"); heard != 1 || told != 1 {
				return fmt.Errorf("kvasir_peers_heard is %v and kvasir_peers_told %v", heard, told)
			}
			return nil
		})
	}
	return pickers[0], pickers[1]
}

// write replaces a file of the picker's directory by a rename.
func (p *picker) write(name, text string) {
	p.t.Helper()
	temp := filepath.Join(p.dir, "."+name)
	if err := os.WriteFile(temp, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(temp, filepath.Join(p.dir, name)); err != nil {
		p.t.Fatal(err)
	}
}

// describe writes the slice of engine i with the conditions of its pod.
func (p *picker) describe(i int, conditions string) {
	p.t.Helper()
	e := p.engines[i]
	ports := fmt.Sprintf(", {name: kv-events, port: %d}, {name: kv-replay, port: %d}", e.events, e.replay)
	if p.config.portless {
		ports = ""
	}
	role := ""
	if p.config.roles != nil {
		role = ", kvasir.dev/role: " + p.config.roles[i]
	}
	p.write(fmt.Sprintf("slice-%d.yaml", i), fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: m-%d, labels: {kvasir.dev/pool: m%s}}
addressType: IPv4
ports: [{name: http, port: %d}%s]
endpoints:
- {addresses: [127.0.0.1], conditions: %s, targetRef: {kind: Pod, name: pod-%d, uid: %s}}
`, i, role, e.http, ports, conditions, i, e.uid))
}

// start starts the process, on new ports, and waits until it is ready.
func (p *picker) start() {
	p.t.Helper()
	address := func() string { return "127.0.0.1:" + strconv.Itoa(freePort(p.t, 1)) }
	proxy, metrics, health := address(), address(), address()
	p.proxy, p.metrics, p.health = "http://"+proxy, "http://"+metrics, "http://"+health
	argv := append([]string{"--standalone", p.dir, "--proxy-address", proxy, "--metrics-address", metrics, "--health-address", health,
		"--ext-proc-address", "", "--lame-duck", "0s", "--drain-timeout", "2s", "--model-root", filepath.Join(run.root, "models")}, p.config.flags...)
	if p.config.decisions {
		argv = append(argv, "--decision-log", filepath.Join(p.dir, ".decisions"))
	}
	p.log, p.exited, p.ended = &logger{}, make(chan struct{}), false
	p.process = exec.Command(program(p.t, "picker"), argv...)
	p.process.Stdout, p.process.Stderr = p.log, p.log
	if err := p.process.Start(); err != nil {
		p.t.Fatal(err)
	}
	process, exited := p.process, p.exited
	go func() { _ = process.Wait(); close(exited) }()
	p.until("the picker is ready", func() error {
		select {
		case <-exited:
			p.t.Fatalf("The picker ended:\n%s", p.log.tail(6000))
		default:
		}
		if status, body := callURL(http.MethodGet, p.health+"/readyz", nil); status != http.StatusOK {
			return fmt.Errorf("readyz answers %d: %s", status, body)
		}
		return nil
	})
}

// stop ends the process as an orderly shutdown does.
func (p *picker) stop() {
	if p.ended {
		return
	}
	p.ended = true
	_ = p.process.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(patience):
		_ = p.process.Process.Kill()
		<-p.exited
		p.t.Error("the picker did not end on SIGTERM")
	}
}

// until polls until a condition returns nil.
func (p *picker) until(what string, condition func() error) {
	p.t.Helper()
	if err := within(patience, condition); err != nil {
		stop(p.t, fmt.Errorf("not within %v: %s: %w\n%s", patience, what, err, p.log.tail(3000)))
	}
}

// within polls until a condition returns nil, and returns its last error otherwise.
func within(limit time.Duration, condition func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := condition()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// condition is one of the pool's status.
type condition struct {
	Type, Status, Reason, Message string
}

// status is what the picker says of the pool: its conditions, and how many blocks it thinks that each endpoint holds.
type status struct {
	conditions map[string]condition
	endpoints  []endpoint
}

type endpoint struct {
	pod, events string
	rank        int
	blocks      int
}

func (p *picker) status() (status, error) {
	code, body := callURL(http.MethodGet, p.metrics+"/status?output=json", nil)
	if code != http.StatusOK {
		return status{}, fmt.Errorf("/status answers %d: %s", code, body)
	}
	var raw struct {
		Items []struct {
			Kind   string
			Status struct{ Conditions []condition }
		}
		Live struct {
			Pools []struct {
				Pods []struct {
					Name      string
					Endpoints []struct {
						Rank, Blocks int
						Events       string
					}
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &raw); err != nil {
		return status{}, fmt.Errorf("reading /status: %w", err)
	}
	s := status{conditions: map[string]condition{}}
	for _, item := range raw.Items {
		if item.Kind == "InferencePool" {
			for _, c := range item.Status.Conditions {
				s.conditions[c.Type] = c
			}
		}
	}
	for _, pool := range raw.Live.Pools {
		for _, pod := range pool.Pods {
			for _, e := range pod.Endpoints {
				s.endpoints = append(s.endpoints, endpoint{pod: pod.Name, events: e.Events, rank: e.Rank, blocks: e.Blocks})
			}
		}
	}
	return s, nil
}

// ready returns nil once events are synced and the tokens of each request are exact: made in process where the picker has
// the model's files, and by an engine otherwise.
func (p *picker) ready() error {
	if err := p.conditionsAreTrue("EventsSynced"); err != nil {
		return err
	}
	s, err := p.status()
	if err != nil {
		return err
	}
	if c := s.conditions["TokensExact"]; c.Status != "True" && (p.config.files || c.Reason != "EngineRender") {
		return fmt.Errorf("TokensExact is %q, %s: %s", c.Status, c.Reason, c.Message)
	}
	return nil
}

// conditionsAreTrue returns nil if all of some conditions of the pool are True.
func (p *picker) conditionsAreTrue(types ...string) error {
	s, err := p.status()
	if err != nil {
		return err
	}
	for _, kind := range types {
		if c := s.conditions[kind]; c.Status != "True" {
			return fmt.Errorf("%s is %q, %s: %s", kind, c.Status, c.Reason, c.Message)
		}
	}
	return nil
}

// isNoCandidate returns nil if a new request would not go to a pod whatever happens.
func (p *picker) isNoCandidate(pod string) error {
	r := chat("-", say("user", "Where would this go?"))
	status, body := callURL(http.MethodPost, p.metrics+"/explain?path="+r.path, r.body)
	var explanation struct {
		Candidates []struct{ Pod string }
	}
	if err := json.Unmarshal([]byte(body), &explanation); err != nil || status != http.StatusOK {
		return fmt.Errorf("/explain answers %d: %s", status, body)
	}
	for _, candidate := range explanation.Candidates {
		if candidate.Pod == pod {
			return fmt.Errorf("%s is a candidate", pod)
		}
	}
	return nil
}

// settled waits until the picker's index holds, for each engine, as many blocks as the engine's block pool does.
func (p *picker) settled(engines []*engine) error {
	return within(10*time.Second, func() error {
		s, err := p.status()
		if err != nil {
			return err
		}
		var faults []error
		for i, e := range engines {
			var index, truth []int
			for _, have := range s.endpoints {
				if have.pod == fmt.Sprintf("pod-%d", i) {
					index = append(index, have.blocks)
				}
			}
			pools, err := e.holds()
			if err != nil {
				return err
			}
			for _, pool := range pools {
				truth = append(truth, pool.keys)
			}
			slices.Sort(index)
			slices.Sort(truth)
			if !slices.Equal(index, truth) {
				faults = append(faults, fmt.Errorf("pod-%d: the index holds %v keys, the engine %v", i, index, truth))
			}
		}
		return errors.Join(faults...)
	})
}

// holdsTheSame is settled and, beyond the numbers, compares the keys: each prefix that an engine of one rank holds without a
// gap must be found in the picker's index, to its end. Where the numbers are equal, the index then holds nothing else but
// for blocks behind a gap, which no request can find. Right after a start the picker can count half of a match until it
// knows that it misses no events.
func (p *picker) holdsTheSame(engines []*engine) error {
	if err := p.settled(engines); err != nil {
		return err
	}
	for i, e := range engines {
		chains, err := e.chains()
		if err != nil {
			return err
		}
		for _, chain := range chains {
			next := chain[len(chain)-1] + 1 // engines compute at least the last token
			err := within(10*time.Second, func() error { return p.finds(fmt.Sprintf("pod-%d", i), append(chain, next), len(chain)) })
			if err != nil {
				return err
			}
		}
		if pools, err := e.holds(); err != nil || len(chains) == 0 && pools[0].keys > 0 {
			return errors.Join(err, fmt.Errorf("pod-%d: no prefix of %+v is known", i, pools))
		}
	}
	return nil
}

// finds returns nil if the index knows that a pod holds a number of tokens of a prompt.
func (p *picker) finds(pod string, prompt []int, want int) error {
	return p.confirms(pod, completion("-", prompt), want)
}

// confirms is finds for a request of any shape.
func (p *picker) confirms(pod string, r request, want int) error {
	status, body := callURL(http.MethodPost, p.metrics+"/explain?path="+r.path, r.body)
	var explanation struct {
		Candidates []struct {
			Pod       string
			Confirmed int
		}
	}
	if err := json.Unmarshal([]byte(body), &explanation); err != nil || status != http.StatusOK {
		return fmt.Errorf("/explain answers %d: %s", status, body)
	}
	for _, candidate := range explanation.Candidates {
		if candidate.Pod == pod && candidate.Confirmed == want {
			return nil
		}
	}
	return fmt.Errorf("%s holds %d tokens, and the index does not know all of them: %s", pod, want, body)
}

// keyTokens are in one key of the index.
const keyTokens = 16

// metric sums the samples of one of the picker's metrics.
func (p *picker) metric(name string, labels ...string) float64 {
	_, text := callURL(http.MethodGet, p.metrics+"/metrics", nil)
	return sumMetric(text, name, labels...)
}

// sumMetric adds up the samples of a metric whose labels contain all of the given texts.
func sumMetric(text, name string, labels ...string) float64 {
	sum := 0.0
	for line := range strings.Lines(text) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || (series != name && !strings.HasPrefix(series, name+"{")) {
			continue
		}
		matches := true
		for _, label := range labels {
			matches = matches && strings.Contains(series, label)
		}
		if v, err := strconv.ParseFloat(value, 64); matches && err == nil {
			sum += v
		}
	}
	return sum
}

// Package e2e tests the picker as its users run it: the real program, real sockets, simulated engines.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/freeport"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// patience is the limit for operations that should take milliseconds.
const patience = 20 * time.Second

var pickerBinary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "kvasir-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		pickerBinary = filepath.Join(dir, "picker")
		build := exec.Command("go", "build", "-o", dir+"/", "github.com/kvasir-dev/kvasir/cmd/picker",
			"github.com/kvasir-dev/kvasir/cmd/reporter", "github.com/kvasir-dev/kvasir/cmd/vllmsim", "github.com/kvasir-dev/kvasir/cmd/kubectl-kvasir")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "building the programs: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// fleet is a picker process with the simulated engines it picks from.
type fleet struct {
	t       *testing.T
	dir     string
	engines []*vllmsim.Engine
	config  vllmsim.Config
	proxy   string // base URL
	metrics string
	health  string
	picker  *exec.Cmd
	args    []string // of the picker, besides the usual
	env     []string // of the picker, besides that of the test
	exited  chan struct{}
	logs    *logBuffer
	output  *os.File // takes the place of logs, if it is set
	confine func(picker *exec.Cmd)
	client  *http.Client
	// requests is a directory with requests in files, for the command line; empty for this one.
	requests string
}

// newFleet starts n engines and a picker with one pool, m, under the given strategy.
func newFleet(t *testing.T, n int, config vllmsim.Config, strategy string) *fleet {
	t.Helper()
	return newFleetWith(t, n, config, strategy, func(*fleet) {})
}

// newFleetWith lets prepare change files and arguments before the picker starts.
func newFleetWith(t *testing.T, n int, config vllmsim.Config, strategy string, prepare func(*fleet)) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: t.TempDir(), config: config, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	f.config.ServedModelNames = []string{"m"}
	for range n {
		f.engines = append(f.engines, f.startEngine(f.config))
	}
	f.write("pool.yaml", poolYAML)
	f.write("policy.yaml", fmt.Sprintf(policyYAML, strategy))
	f.writeSlices(nil)
	prepare(f)
	f.startPicker()
	return f
}

const poolYAML = `apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: m}
spec:
  model: {name: m}
  selector: {matchLabels: {app: m}}
`

const policyYAML = `apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: m}
spec:
  targetRefs: [{name: m}]
  strategy: {type: %s}
  tokens: {engineBudgetMilliseconds: 5000}
  decisions: {answerHeaders: Always}
`

func (f *fleet) startEngine(config vllmsim.Config) *vllmsim.Engine {
	f.t.Helper()
	e, err := vllmsim.Start(config)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = e.Close() })
	return e
}

// write replaces a file of the directory as careful editors do: by a rename.
func (f *fleet) write(name, text string) {
	f.t.Helper()
	temp := filepath.Join(f.dir, "."+name+".new")
	if err := os.WriteFile(temp, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(temp, filepath.Join(f.dir, name)); err != nil {
		f.t.Fatal(err)
	}
}

// writeSlices describes the engines; change can alter the conditions of one.
func (f *fleet) writeSlices(conditions map[int]string) {
	f.t.Helper()
	for i, e := range f.engines {
		c := conditions[i]
		if c == "" {
			c = "{ready: true, serving: true, terminating: false}"
		}
		f.write(fmt.Sprintf("slice-%d.yaml", i), fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: m-%d, labels: {kvasir.dev/pool: m}}
addressType: IPv4
ports: [{name: http, port: %s}, {name: kv-events, port: %s}, {name: kv-replay, port: %s}]
endpoints:
- {addresses: [127.0.0.1], conditions: %s, targetRef: {kind: Pod, name: pod-%d, uid: uid-%d}}
`, i, port(f.t, e.Addr()), port(f.t, e.EventsAddr()), port(f.t, e.ReplayAddr()), c, i, i))
	}
}

func port(t *testing.T, addr string) string {
	t.Helper()
	_, p, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// freeAddress is one that no process listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	all, err := freeport.Addresses("127.0.0.1", 1)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// startPicker starts the picker process and waits until it is ready and follows every engine's events.
func (f *fleet) startPicker() {
	f.t.Helper()
	proxy, metrics, health := freeAddress(f.t), freeAddress(f.t), freeAddress(f.t)
	f.proxy, f.metrics, f.health = "http://"+proxy, "http://"+metrics, "http://"+health
	f.logs = &logBuffer{}
	f.picker = exec.Command(pickerBinary, append([]string{"--standalone", f.dir, "--proxy-address", proxy,
		"--metrics-address", metrics, "--health-address", health, "--ext-proc-address", "", "--lame-duck", "0s"}, f.args...)...)
	f.picker.Stdout, f.picker.Stderr, f.picker.Env = f.logs, f.logs, append(os.Environ(), f.env...)
	if f.output != nil {
		f.picker.Stdout, f.picker.Stderr = f.output, f.output
	}
	if f.confine != nil {
		f.confine(f.picker)
	}
	if err := f.picker.Start(); err != nil {
		f.t.Fatal(err)
	}
	picker := f.picker
	exited := make(chan struct{})
	f.exited = exited
	go func() { _ = picker.Wait(); close(exited) }()
	f.t.Cleanup(func() {
		_ = picker.Process.Signal(syscall.SIGTERM)
		select {
		case <-exited:
		case <-time.After(patience):
			_ = picker.Process.Kill()
			<-exited
			f.t.Error("the picker did not end on SIGTERM")
		}
		if f.t.Failed() {
			f.t.Logf("picker:\n%s", f.logs)
		}
	})
	f.until("the picker is ready", func() bool {
		select {
		case <-exited:
			f.t.Fatalf("the picker ended:\n%s", f.logs)
		default:
		}
		status, _ := f.get(f.health + "/readyz")
		return status == http.StatusOK
	})
	f.until("every engine's events are followed", func() bool {
		for _, e := range f.engines {
			if e.Subscribers() < 1 {
				return false
			}
		}
		return true
	})
}

// until polls a condition that must become true.
func (f *fleet) until(what string, condition func() bool) {
	f.t.Helper()
	deadline := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(deadline) {
			f.t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (f *fleet) get(url string) (status int, body string) {
	resp, err := f.client.Get(url)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// metric sums the samples of a metric whose labels contain all of the given texts.
func (f *fleet) metric(name string, labels ...string) float64 {
	f.t.Helper()
	_, text := f.get(f.metrics + "/metrics")
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

// answer is what a client sees.
type answer struct {
	status    int
	pod       int // that served, -1 unknown
	predicted int
	confirmed int
	tokens    string // where the prompt's ids came from
	body      string
	cached    int // prompt tokens the engine found in its cache, -1 when it did not say
	chunks    int // server-sent events with data
}

// tokens makes a prompt of n ids that share no block with other families.
func tokens(family, n int) []int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = family*10_000 + i%9_000
	}
	return ids
}

// completion is a streamed completion of a prompt of ids.
func completion(prompt []int, maxTokens int) map[string]any {
	return map[string]any{"model": "m", "prompt": prompt, "max_tokens": maxTokens, "stream": true,
		"stream_options": map[string]any{"include_usage": true}}
}

// start sends a request through the proxy and returns once the answer's header is there; the result is read by the
// returned function.
func (f *fleet) start(ctx context.Context, path string, body any) (finish func() answer, err error) {
	payload, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.proxy+path, bytes.NewReader(payload))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	return func() answer { return readAnswer(resp) }, nil
}

// do sends a request and reads the entire answer.
func (f *fleet) do(path string, body any) answer {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	finish, err := f.start(ctx, path, body)
	if err != nil {
		f.t.Fatal(err)
	}
	return finish()
}

func readAnswer(resp *http.Response) answer {
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, pod: -1, cached: -1, tokens: resp.Header.Get("x-kvasir-tokens")}
	if name, _, ok := strings.Cut(resp.Header.Get("x-kvasir-endpoint"), "/"); ok {
		if i, err := strconv.Atoi(strings.TrimPrefix(name, "pod-")); err == nil {
			a.pod = i
		}
	}
	a.predicted, _ = strconv.Atoi(resp.Header.Get("x-kvasir-predicted-tokens"))
	a.confirmed, _ = strconv.Atoi(resp.Header.Get("x-kvasir-confirmed-tokens"))
	var all strings.Builder
	scanner := bufio.NewScanner(resp.Body)
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		line := scanner.Text()
		all.WriteString(line + "\n")
		data, streamed := strings.CutPrefix(line, "data: ")
		if streamed {
			a.chunks++
		}
		var usage struct {
			Usage *struct {
				Details *struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			} `json:"usage"`
		}
		if json.Unmarshal([]byte(data), &usage) == nil && usage.Usage != nil {
			a.cached = 0
			if usage.Usage.Details != nil {
				a.cached = usage.Usage.Details.Cached
			}
		}
	}
	a.body = all.String()
	return a
}

// post sends JSON and returns the answer's status.
func (f *fleet) post(url string, body any) int {
	f.t.Helper()
	payload, err := json.Marshal(body)
	if err != nil {
		f.t.Fatal(err)
	}
	resp, err := f.client.Post(url, "application/json", bytes.NewReader(payload))
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// direct sends a completion straight to an engine, past the picker.
func (f *fleet) direct(pod int, body any) {
	f.t.Helper()
	payload, err := json.Marshal(body)
	if err != nil {
		f.t.Fatal(err)
	}
	resp, err := f.client.Post(f.engines[pod].URL()+"/v1/completions", "application/json", bytes.NewReader(payload))
	if err != nil {
		f.t.Fatal(err)
	}
	if a := readAnswer(resp); a.status != http.StatusOK {
		f.t.Fatalf("engine %d answered %d: %s", pod, a.status, a.body)
	}
}

// background sends a request that the test ends later; its result is on the channel.
func (f *fleet) background(path string, body any) (cancel context.CancelFunc, result <-chan answer) {
	ctx, cancel := context.WithCancel(context.Background())
	f.t.Cleanup(cancel)
	out := make(chan answer, 1)
	go func() {
		finish, err := f.start(ctx, path, body)
		if err != nil {
			out <- answer{status: -1, body: err.Error()}
			return
		}
		out <- finish()
	}()
	return cancel, out
}

// inFlight is what the picker counts on a pod, all pods for -1.
func (f *fleet) inFlight(pod int) float64 {
	f.t.Helper()
	if pod < 0 {
		return f.metric("kvasir_endpoint_inflight_requests")
	}
	return f.metric("kvasir_endpoint_inflight_requests", fmt.Sprintf(`endpoint="pod-%d/0"`, pod))
}

// held is how many blocks the index holds for a pod.
func (f *fleet) held(pod int) float64 {
	f.t.Helper()
	return f.metric("kvasir_index_held_blocks", fmt.Sprintf(`endpoint="pod-%d/0"`, pod))
}

// untilIndexed waits until the picker's index of a pod equals the engine's own blocks, and the picker counts them in full.
func (f *fleet) untilIndexed(pod int) {
	f.t.Helper()
	f.until(fmt.Sprintf("the index of pod %d equals its cache", pod), func() bool {
		return int(f.held(pod)) == len(f.engines[pod].Blocks()) && f.metric("kvasir_endpoint_doubted", fmt.Sprintf(`endpoint="pod-%d/0"`, pod)) == 0
	})
}

// logBuffer keeps what a process prints.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

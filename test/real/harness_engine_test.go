package real

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/test/real/vllmcpu"
)

const (
	// atOnce engines run at most.
	atOnce = 2
	// blockTokens are in one block of every engine: the CPU backend takes multiples of 32.
	blockTokens = 32
	// defaultBlocks of an engine's cache; vLLM needs enough for one sequence of maxModelLen.
	defaultBlocks = 264
	maxModelLen   = 8192
)

// engineConfig is how an engine is started. The zero value is the engine of the documentation: a model, the event plane,
// and --enable-prompt-tokens-details.
type engineConfig struct {
	model  string   // of models; "qwen2" if empty
	blocks int      // of the cache; defaultBlocks if 0
	ranks  int      // data-parallel; 1 if 0
	flags  []string // more of them
	env    []string // more of it
	// dial is where the event publisher connects, for an engine with a reporter; it listens if empty.
	dial string
	kv   object // more of --kv-events-config
	// worker: the model has a process of its own, which is what the CPU build does without other flags.
	worker bool
	// connector transfers blocks between engines: nixl or mooncake.
	connector string
}

// whole is the configuration with its defaults.
func (c engineConfig) whole() engineConfig {
	if c.model == "" {
		c.model = "qwen2"
	}
	if c.blocks == 0 {
		c.blocks = defaultBlocks
	}
	c.ranks = max(c.ranks, 1)
	return c
}

// engine is a running vLLM.
type engine struct {
	config  engineConfig
	name    string // of the pod, in slices
	uid     string
	url     string
	http    int // ports
	events  int
	replay  int
	side    int    // of the connector
	dir     string // of the model
	truth   string // directory of sockets
	log     *logger
	process *exec.Cmd
	guard   *exec.Cmd
	exited  chan struct{}
}

// places bounds how many engines run at a time.
type places struct{ taken int }

// sharedEngines returns the two engines that the tests of a run have in common. On SIGTERM the first ends at once, and the
// second when its requests have ended, where the release can do that. The first keeps idle connections, the second closes them.
func sharedEngines(t *testing.T) []*engine {
	t.Helper()
	need(t)
	for _, e := range run.shared {
		if !e.alive() {
			t.Logf("A shared engine had ended, log:\n%s", e.log.tail(4000))
			stopShared()
			break
		}
	}
	if run.shared == nil {
		stopAhead()
		flags := []string{"--enable-auto-tool-choice", "--tool-call-parser", "hermes"}
		first := engineConfig{model: "beginning", flags: flags, env: []string{keepsIdle}, worker: true}
		second := engineConfig{model: "beginning", flags: flags, worker: true}
		if atLeast("0.18") {
			second.flags = append(slices.Clone(flags), "--shutdown-timeout", "10")
		}
		engines := launchAll(t, first, second)
		serveAll(t, engines)
		run.shared = engines
	}
	for _, e := range run.shared {
		reportLog(t, e)
	}
	return run.shared
}

func stopShared() {
	for _, e := range run.shared {
		e.stop()
	}
	run.shared = nil
}

// startEngines starts several engines at the same time, at most atOnce. It takes the one that startAhead has launched, if it is
// among them.
func startEngines(t *testing.T, configs ...engineConfig) []*engine {
	t.Helper()
	need(t)
	ahead := run.ahead
	at := slices.IndexFunc(configs, func(c engineConfig) bool {
		return ahead != nil && ahead.alive() && reflect.DeepEqual(ahead.config, c.whole())
	})
	if at < 0 {
		if run.places.taken+len(configs) > atOnce {
			stopAhead()
		}
	} else {
		run.ahead, configs = nil, slices.Delete(slices.Clone(configs), at, at+1)
	}
	if run.places.taken+len(configs) > atOnce {
		stopShared()
	}
	engines := launchAll(t, configs...)
	if at >= 0 {
		engines = slices.Insert(engines, at, ahead)
	}
	serveAll(t, engines)
	for _, e := range engines {
		t.Cleanup(e.stop)
		reportLog(t, e)
	}
	return engines
}

// startAhead launches the engine of the next test while the present one runs: most of a run is spent on starting engines. It
// does nothing if both places are taken, or if -test.run selects tests.
func startAhead(t *testing.T, config engineConfig) {
	t.Helper()
	if run.ahead != nil || run.places.taken >= atOnce || flag.Lookup("test.run").Value.String() != "" {
		return
	}
	e, err := launch(t, config, 0)
	if err != nil {
		t.Fatal(err)
	}
	run.ahead = e
}

func stopAhead() {
	if run.ahead != nil {
		run.ahead.stop()
		run.ahead = nil
	}
}

func reportLog(t *testing.T, e *engine) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of engine %s:\n%s", e.name, e.log.tail(6000))
		}
	})
}

// launchAll launches engines, which do not serve yet.
func launchAll(t *testing.T, configs ...engineConfig) []*engine {
	t.Helper()
	if run.places.taken+len(configs) > atOnce {
		t.Fatalf("%d engines run and %d more are wanted; at most %d may", run.places.taken, len(configs), atOnce)
	}
	var engines []*engine
	for i, config := range configs {
		e, err := launch(t, config, i)
		if err != nil {
			t.Fatal(err)
		}
		engines = append(engines, e)
	}
	return engines
}

// serveAll waits until all of some engines serve, and ends them if one does not.
func serveAll(t *testing.T, engines []*engine) {
	t.Helper()
	for _, e := range engines {
		if err := e.untilServing(); err != nil {
			for _, e := range engines {
				e.stop()
			}
			stop(t, err)
		}
	}
}

// launch starts an engine's processes, in a group of their own that ends with this process.
func launch(t *testing.T, config engineConfig, number int) (*engine, error) {
	t.Helper()
	config = config.whole()
	dir, err := vllmcpu.WriteModel(run.root, config.model)
	if err != nil {
		return nil, err
	}
	truth, err := os.MkdirTemp(run.dir, "t")
	if err != nil {
		return nil, fmt.Errorf("making a directory for sockets: %w", err)
	}
	e := &engine{config: config, dir: dir, truth: truth, name: fmt.Sprintf("vllm-%d", number),
		http: freePort(t, 1), events: freePort(t, config.ranks), replay: freePort(t, config.ranks), side: freePort(t, config.ranks)}
	e.url = fmt.Sprintf("http://127.0.0.1:%d", e.http)
	return e, e.run()
}

// run starts the processes; again after stop, on the same ports, as another life of the pod's container.
func (e *engine) run() error {
	e.uid = fmt.Sprintf("uid-%s-%d", e.name, e.http)
	argv := append(strings.Fields(*wrapFlag), filepath.Join(run.venv, "bin", "vllm"), "serve", e.dir)
	argv = append(argv, e.flags()...)
	e.log, e.exited = &logger{}, make(chan struct{})
	e.process = exec.Command(argv[0], argv[1:]...)
	e.process.Env = append(os.Environ(), vllmcpu.Environment(run.venv, run.release, e.config.ranks)...)
	connected, err := e.connectorEnvironment()
	if err != nil {
		return err
	}
	e.process.Env = append(e.process.Env, "VLLM_SERVER_DEV_MODE=1", "KVASIR_TRUTH="+e.truth)
	e.process.Env = append(append(e.process.Env, connected...), e.config.env...)
	e.process.Stdout, e.process.Stderr = e.log, e.log
	e.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	e.process.WaitDelay = time.Second
	if err := e.process.Start(); err != nil {
		return fmt.Errorf("starting an engine: %w", err)
	}
	run.places.taken++
	process, exited := e.process, e.exited
	go func() { _ = process.Wait(); close(exited) }()
	// The guard ends the engine's processes when this process ends, however it does: its input is a pipe of ours.
	e.guard = exec.Command("sh", "-c", `read x; kill -9 "-$1"`, "sh", strconv.Itoa(process.Process.Pid))
	e.guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if _, err := e.guard.StdinPipe(); err != nil {
		return fmt.Errorf("making the pipe of an engine's guard: %w", err)
	}
	if err := e.guard.Start(); err != nil {
		return fmt.Errorf("starting the guard of an engine: %w", err)
	}
	return nil
}

// flags of vLLM. Weights are made by the engine unless the model has some; everything behind them is what docs/install-vllm.md says.
func (e *engine) flags() []string {
	endpoint := fmt.Sprintf("tcp://*:%d", e.events)
	if e.config.dial != "" {
		endpoint = e.config.dial
	}
	events := object{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": endpoint,
		"replay_endpoint": fmt.Sprintf("tcp://*:%d", e.replay)}
	maps.Copy(events, e.config.kv)
	kv, err := json.Marshal(events)
	if err != nil {
		panic(err) // strings and booleans
	}
	flags := []string{"--served-model-name", "m", "--host", "127.0.0.1", "--port", strconv.Itoa(e.http),
		"--max-model-len", strconv.Itoa(maxModelLen), "--block-size", strconv.Itoa(blockTokens), "--enforce-eager", "--uvicorn-log-level", "warning",
		"--num-gpu-blocks-override", strconv.Itoa(e.config.blocks),
		"--enable-prompt-tokens-details", "--kv-events-config", string(kv)}
	if e.config.model != attentive {
		flags = append(flags, "--load-format", "dummy")
	}
	flags = append(flags, e.connectorFlags()...)
	if e.config.ranks > 1 {
		flags = append(flags, "--data-parallel-size", strconv.Itoa(e.config.ranks), "--api-server-count", "1")
	}
	if atLeast("0.30") && !slices.Contains(e.config.flags, noScaleOut) {
		flags = append(flags, "--enable-scale-out")
	}
	if !e.config.worker && atLeast("0.32") {
		flags = append(flags, "--distributed-executor-backend", oneProcess)
	}
	for _, flag := range e.config.flags {
		if flag != noScaleOut {
			flags = append(flags, flag)
		}
	}
	return flags
}

// oneProcess executes the model in the scheduler's process, as vLLM does by default with one GPU. The CPU backend starts a process
// of its own for it, because of threads that do not run here, even where "uni" is asked for by name: half as long again to start.
// Engines whose end is judged have the worker all the same: after SIGTERM vLLM 0.32 without it can keep a stream open for good.
const oneProcess = "vllm.v1.executor.uniproc_executor.UniProcExecutor"

// noScaleOut, among an engine's flags, leaves out --enable-scale-out (0.30 and newer), without which routes that render
// requests answer 403.
const noScaleOut = "no --enable-scale-out"

// untilServing waits until the engine answers.
func (e *engine) untilServing() error {
	deadline := time.Now().Add(*startFlag)
	for time.Now().Before(deadline) {
		select {
		case <-e.exited:
			return fmt.Errorf("engine %s ended while starting:\n%s", e.name, e.log.tail(8000))
		case <-time.After(250 * time.Millisecond):
		}
		if status, _ := e.call(http.MethodGet, "/health", nil); status == http.StatusOK {
			return nil
		}
	}
	return fmt.Errorf("engine %s does not serve after %v:\n%s", e.name, *startFlag, e.log.tail(8000))
}

func (e *engine) alive() bool {
	select {
	case <-e.exited:
		return false
	default:
		return true
	}
}

// kill ends all processes of the engine at once.
func (e *engine) kill() {
	if e.process == nil || e.process.Process == nil {
		return
	}
	_ = e.guard.Process.Kill()
	_ = e.guard.Wait()
	_ = syscall.Kill(-e.process.Process.Pid, syscall.SIGKILL)
	<-e.exited
	e.process = nil
	run.places.taken--
	for _, ending := range []string{"*.sock", "*.chains"} {
		if sockets, err := filepath.Glob(filepath.Join(e.truth, ending)); err == nil {
			for _, socket := range sockets {
				_ = os.Remove(socket)
			}
		}
	}
}

func (e *engine) stop() { e.kill() }

// terminate sends SIGTERM to the engine's first process, as the kubelet does.
func (e *engine) terminate() error {
	if err := e.process.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("terminating engine %s: %w", e.name, err)
	}
	return nil
}

// call sends a request to the engine itself, past the picker. Status is 0 if there is no answer.
func (e *engine) call(method, path string, body any) (status int, answer string) {
	return callURL(method, e.url+path, body)
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Minute}

func callURL(method, url string, body any) (status int, answer string) {
	var reader io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			panic(err) // bodies are made by the tests
		}
		reader = strings.NewReader(string(raw))
	}
	request, err := http.NewRequest(method, url, reader)
	if err != nil {
		return 0, err.Error()
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	raw, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(raw)
}

// metric sums the samples of one of the engine's metrics.
func (e *engine) metric(name string, labels ...string) float64 {
	_, text := e.call(http.MethodGet, "/metrics", nil)
	return sumMetric(text, name, labels...)
}

// held is what an engine's block pool contains.
type held struct {
	distinct int // blocks by hash and group; copies count once
	keys     int // keys of 16 tokens in the blocks of the group with the most: groups with windows hold some of the same
	copies   int // physical blocks with a hash
	total    int // physical blocks of the pool
}

// holds asks the engine's own block pools what they contain: one of them for each data-parallel rank, in no order.
func (e *engine) holds() ([]held, error) {
	answers, err := askPools[struct {
		Blocks [][3]any `json:"blocks"` // hash, group, what the first 16 tokens end
		Total  int      `json:"total"`
	}](e, "sock")
	var all []held
	for _, answer := range answers {
		distinct, keys := map[[2]any]bool{}, map[any]map[string]bool{}
		for _, block := range answer.Blocks {
			hash, group, half := block[0], block[1], block[2]
			distinct[[2]any{hash, group}] = true
			if keys[group] == nil {
				keys[group] = map[string]bool{}
			}
			keys[group][fmt.Sprint("block ", hash)], keys[group][fmt.Sprint("half ", half)] = true, true
		}
		one := held{distinct: len(distinct), copies: len(answer.Blocks), total: answer.Total}
		for _, of := range keys {
			one.keys = max(one.keys, len(of))
		}
		all = append(all, one)
	}
	return all, err
}

// chains asks the engine's block pool for the tokens of the longest prefixes that it holds without a gap, apart from those
// with adapters or salts. The engine has one rank.
func (e *engine) chains() ([][]int, error) {
	pools, err := askPools[[][]int](e, "chains")
	if err != nil {
		return nil, err
	}
	if len(pools) != 1 {
		return nil, fmt.Errorf("engine %s has %d block pools", e.name, len(pools))
	}
	return pools[0], nil
}

// askPools reads the sockets with an ending of all block pools of an engine.
func askPools[T any](e *engine, ending string) (all []T, err error) {
	sockets, err := filepath.Glob(filepath.Join(e.truth, "*."+ending))
	if err != nil || len(sockets) == 0 {
		return nil, fmt.Errorf("engine %s has no block pool to ask (%d sockets)", e.name, len(sockets))
	}
	for _, socket := range sockets {
		conn, err := net.DialTimeout("unix", socket, patience)
		if err != nil {
			return nil, fmt.Errorf("asking the block pool of %s: %w", e.name, err)
		}
		raw, err := io.ReadAll(conn)
		_ = conn.Close()
		var answer T
		if err == nil {
			err = json.Unmarshal(raw, &answer)
		}
		if err != nil {
			return nil, fmt.Errorf("reading the block pool of %s: %w", e.name, err)
		}
		all = append(all, answer)
	}
	return all, nil
}

package attack

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
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

// patience is the limit for what should take much less.
const patience = 30 * time.Second

const (
	goodKey, badKey = "sk-good-0123456789abcdef", "sk-bad-0123456789abcdef"
	secret          = "0123456789abcdef0123456789abcdef"
	engines         = 4
	// hostileEngines are of a pool of their own.
	hostileEngines = 2
)

// targets are where a picker listens.
type targets struct {
	Proxy, ExtProc, Reports, Metrics, Health string
	// Engines are where hostile engines are to listen.
	Engines []string
}

// victim is a picker process in a memory cgroup, in front of simulated engines.
type victim struct {
	t      *testing.T
	group  *group
	at     targets
	client *http.Client
	exited chan struct{}

	mu  sync.Mutex
	log bytes.Buffer // guarded by mu
}

// Write keeps what the picker logs.
func (v *victim) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.log.Len() < 1<<20 {
		v.log.Write(p)
	}
	return len(p), nil
}

func startVictim(t *testing.T, binary string, limit int64) *victim {
	t.Helper()
	v := &victim{t: t, group: newGroup(t, limit), exited: make(chan struct{}),
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}}
	dir := t.TempDir()
	v.at.Engines = make([]string, hostileEngines)
	addresses := []*string{&v.at.Proxy, &v.at.ExtProc, &v.at.Reports, &v.at.Metrics, &v.at.Health}
	for i := range v.at.Engines {
		addresses = append(addresses, &v.at.Engines[i])
	}
	free, err := freeport.Addresses("127.0.0.1", len(addresses))
	if err != nil {
		t.Fatal(err)
	}
	for i, address := range addresses {
		*address = free[i]
	}
	v.configure(dir)
	cmd := v.group.command(binary, "--standalone", filepath.Join(dir, "objects"), "--model-root", filepath.Join(dir, "models"),
		"--proxy-address", v.at.Proxy,
		"--ext-proc-address", v.at.ExtProc, "--ext-proc-plaintext", "--metrics-address", v.at.Metrics, "--health-address", v.at.Health,
		"--report-address", v.at.Reports, "--report-insecure", "--report-secret-file", filepath.Join(dir, "secret"),
		"--peers", v.at.Reports, "--peers-secret-file", filepath.Join(dir, "secret"), "--pprof", "--lame-duck", "0s", "--drain-timeout", "5s")
	cmd.Stdout, cmd.Stderr = v, v
	cmd.Env = append(os.Environ(), "GOTRACEBACK=single")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = cmd.Wait(); close(v.exited) }()
	t.Cleanup(func() { v.end(cmd) })
	v.until("the picker is ready", func() bool {
		status, _ := v.get(v.at.Health, "/readyz")
		return status == http.StatusOK
	})
	v.until("the picker makes the engines' tokens", func() bool {
		_, text := v.get(v.at.Metrics, "/metrics")
		return strings.Contains(text, "kvasir_tokens_exact_texts{namespace=\"default\",pool=\"m\"} 1") &&
			strings.Contains(text, "kvasir_tokens_exact_chats{namespace=\"default\",pool=\"m\"} 1")
	})
	return v
}

// end ends the picker, so that its group can be removed.
func (v *victim) end(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-v.exited:
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		<-v.exited
		v.t.Error("the picker did not end on SIGTERM")
	}
	if v.t.Failed() {
		v.mu.Lock()
		defer v.mu.Unlock()
		text := v.log.String()
		v.t.Logf("picker:\n%s", text[max(0, len(text)-8<<10):])
	}
}

// configure writes the objects of a pool with two tenants, one of whom is hostile and has limits.
func (v *victim) configure(dir string) {
	v.t.Helper()
	files := map[string]string{
		"secret": secret,
		"objects/pool.yaml": `apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: m}
spec:
  model: {name: m, tokenizer: {type: Directory, directory: {path: qwen}}}
  selector: {matchLabels: {app: m}}
`,
		"objects/hostile.yaml": `apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: h}
spec:
  model: {name: h}
  selector: {matchLabels: {app: h}}
`,
		"objects/policy.yaml": `apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: m}
spec:
  targetRefs: [{name: m}, {name: h}]
  decisions: {answerHeaders: Always}
  admission:
    tenants:
      identification: APIKey
      unknown: Reject
      defaultClass: bad
      secretRefs: [{name: tenants}]
      classes: [{name: good}, {name: bad, maxConcurrent: 16}]
`,
		"objects/secret.yaml": fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: tenants}
stringData:
  acme: '{"class":"good","sha256":["%s"]}'
  mallory: '{"class":"bad","sha256":["%s"]}'
`, sum(goodKey), sum(badKey)),
	}
	model := filepath.Join(dir, "models", "qwen")
	writeModel(v.t, model)
	config := engineOf(v.t, model)
	for i := range engines {
		e, err := vllmsim.Start(config)
		if err != nil {
			v.t.Fatal(err)
		}
		v.t.Cleanup(func() { _ = e.Close() })
		files[fmt.Sprintf("objects/slice-%d.yaml", i)] = sliceOf("m", fmt.Sprint("pod-", i), fmt.Sprint("uid-", i), e.Addr(), e.EventsAddr(), e.ReplayAddr())
	}
	for i, address := range v.at.Engines {
		name := fmt.Sprint("hostile-", i)
		files["objects/"+name+".yaml"] = sliceOf("h", name, name, address, address, address)
	}
	if err := os.Mkdir(filepath.Join(dir, "objects"), 0o755); err != nil {
		v.t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			v.t.Fatal(err)
		}
	}
}

func sum(key string) string {
	s := sha256.Sum256([]byte(key))
	return hex.EncodeToString(s[:])
}

func port(address string) string {
	_, p, _ := net.SplitHostPort(address)
	return p
}

// until polls a condition that must become true.
func (v *victim) until(what string, condition func() bool) {
	v.t.Helper()
	deadline := time.Now().Add(patience)
	for !condition() {
		select {
		case <-v.exited:
			v.t.Fatalf("the picker has ended; %d of its group were killed for their memory", v.group.killed())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			v.t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// remember fills what the picker remembers of prompts: that stays, and is no trace of an attack. The engines refuse the requests.
func (v *victim) remember(limit int64) {
	const size, perByte, share = 48 << 10, 3, 0.1 // more than the texts take with their ids, and than the cache has of the limit
	for range int(share * float64(limit) / (perByte * size)) {
		var text strings.Builder
		for text.Len() < size {
			fmt.Fprintf(&text, " %x", rand.Uint32())
		}
		body := fmt.Sprintf(`{"model":"m","max_tokens":1,"temperature":-1,"prompt":%q}`, text.String())
		r, err := http.NewRequestWithContext(v.t.Context(), http.MethodPost, "http://"+v.at.Proxy+"/v1/completions", strings.NewReader(body))
		if err != nil {
			v.t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+goodKey)
		answer, err := v.client.Do(r)
		if err != nil {
			v.t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
	}
}

func (v *victim) get(address, path string) (status int, body string) {
	r, err := v.client.Get("http://" + address + path)
	if err != nil {
		return 0, ""
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(text)
}

// state is what the picker holds, by its own account.
type state struct {
	goroutines, heap, clients, descriptors float64
}

// look reads the state after a garbage collection; false if it could not be read.
func (v *victim) look() (s state, ok bool) {
	if status, _ := v.get(v.at.Metrics, "/debug/pprof/heap?gc=1"); status != http.StatusOK {
		return s, false
	}
	status, text := v.get(v.at.Metrics, "/metrics")
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		switch family, _, _ := strings.Cut(name, "{"); family {
		case "go_goroutines":
			s.goroutines = n
		case "go_memstats_heap_alloc_bytes":
			s.heap = n
		case "kvasir_client_memory_bytes":
			s.clients += n
		case "process_open_fds":
			s.descriptors = n
		}
	}
	return s, status == http.StatusOK
}

// attackers start the hostile clients in a process of their own, with the lowest priority, wait until all have begun, and return
// what ends them.
func (v *victim) attackers() (stop func() string) {
	v.t.Helper()
	text, err := json.Marshal(v.at)
	if err != nil {
		v.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		v.t.Fatal(err)
	}
	cmd := exec.Command("nice", "-n", "19", self)
	cmd.Env = append(os.Environ(), attackEnv+"="+string(text), "GOMEMLIMIT=2GiB")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // for Setpriority
	out, err := cmd.StdoutPipe()
	if err != nil {
		v.t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		v.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		v.t.Fatal(err)
	}
	text = make([]byte, len(inForce)+1)
	if _, err := io.ReadFull(out, text); err != nil {
		v.t.Fatal("starting the attackers: ", err)
	}
	stop = sync.OnceValue(func() string {
		_ = in.Close()
		_ = syscall.Setpriority(syscall.PRIO_PGRP, cmd.Process.Pid, 0) // or their end takes minutes on a busy machine
		done, acts := make(chan error, 1), []byte(nil)
		go func() {
			acts, _ = io.ReadAll(out)
			done <- cmd.Wait()
		}()
		select {
		case err = <-done:
		case <-time.After(patience):
			_ = cmd.Process.Kill()
			if ended := <-done; ended != nil {
				v.t.Logf("the attackers were killed: %v", ended)
			}
		}
		if err != nil {
			v.t.Errorf("the attackers: %v", err)
		}
		return string(acts)
	})
	v.t.Cleanup(func() { stop() })
	return stop
}

// sliceOf is the slice of one pod of a pool, whose engine is at addresses of this machine.
func sliceOf(pool, pod, uid, http, events, replay string) string {
	return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, labels: {kvasir.dev/pool: %s}}
addressType: IPv4
ports: [{name: http, port: %s}, {name: kv-events, port: %s}, {name: kv-replay, port: %s}]
endpoints:
- {addresses: [127.0.0.1], conditions: {ready: true, serving: true}, targetRef: {kind: Pod, name: %s, uid: %s}}
`, pod, pool, port(http), port(events), port(replay), pod, uid)
}

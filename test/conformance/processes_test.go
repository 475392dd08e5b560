package conformance

import (
	"bufio"
	"bytes"
	"fmt"
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

// patience is the limit for operations that should take seconds.
const patience = time.Minute

// model is the one of the pool on the page.
const model = "Qwen/Qwen3-32B"

// bin is where the programs lie that Makefile has built: the picker, the simulated engine and the objects of the page.
func bin(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("KVASIR_BIN")
	if dir == "" {
		t.Fatal("KVASIR_BIN names no folder: run make conformance")
	}
	return filepath.Join(dir, name)
}

// output is what a process has written.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// process is a program that runs until the test ends.
type process struct {
	*exec.Cmd
	logs *output
}

func execute(t *testing.T, program string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(program, args...), logs: &output{}}
	p.Stdout, p.Stderr = p.logs, p.logs
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			text := p.logs.text.String()
			t.Logf("%s:\n%s", filepath.Base(program), text[max(0, len(text)-8000):])
		}
	})
	return p
}

// kill ends the process as SIGKILL does.
func (p *process) kill() {
	if p.ProcessState == nil {
		_ = p.Process.Kill()
		_ = p.Wait()
	}
}

// startEngines starts the engines of the pool.
func (p pool) startEngines(t *testing.T) {
	t.Helper()
	for _, pod := range p.engines {
		execute(t, bin(t, "vllmsim"), "--host", pod, "--port", "8000", "--served-model-name", model, "--speed-up", "100")
		until(t, "the engine serves", func() bool { return get("http://"+pod+":8000/health") == http.StatusOK })
	}
}

// startPicker starts the picker of the pool without a cluster: it gets the pool of the page and its engines from files.
func (p pool) startPicker(t *testing.T) *process {
	t.Helper()
	dir := t.TempDir()
	var slice strings.Builder
	fmt.Fprint(&slice, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: engines, namespace: llm, labels: {kvasir.dev/pool: "+p.name+"}}\n"+
		"addressType: IPv4\nports: [{name: http, port: 8000}]\nendpoints:\n")
	for i, pod := range p.engines {
		fmt.Fprintf(&slice, "- {addresses: [%s], targetRef: {kind: Pod, name: engine-%d, namespace: llm, uid: engine-%d}}\n", pod, i, i)
	}
	files := map[string]string{
		"engines.yaml": slice.String(),
		"pool.yaml": fmt.Sprintf("apiVersion: kvasir.dev/v1alpha1\nkind: InferencePool\nmetadata: {name: %s, namespace: llm}\n"+
			"spec: {selector: {matchLabels: {app: vllm}}, model: {name: %s}}\n", p.name, model),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	started := execute(t, bin(t, "picker"), "--standalone", dir, "--ext-proc-address", p.picker+":9002", "--health-address", p.picker+":9003",
		"--metrics-address", p.picker+":9090", "--proxy-address", p.picker+":8080")
	until(t, "the picker is ready", func() bool { return get("http://"+p.picker+":9003/readyz") == http.StatusOK })
	return started
}

// sum is the sum of a counter of a process, over all labels.
func sum(t *testing.T, pod, counter string) int {
	t.Helper()
	r, err := http.Get("http://" + pod + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	n := 0
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if name, _, _ = strings.Cut(name, "{"); name == counter {
			v, err := strconv.ParseFloat(value[strings.LastIndex(value, " ")+1:], 64)
			if err != nil {
				t.Fatal(err)
			}
			n += int(v)
		}
	}
	return n
}

func get(url string) int {
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get(url)
	if err != nil {
		return 0
	}
	_ = r.Body.Close()
	return r.StatusCode
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// Package envoy tests the picker behind a real Envoy, whose release hack/envoy/requirements.txt pins, with simulated
// engines. Envoy is configured as the translators of gateways do it (gateways_test.go).
package envoy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
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

var (
	update = flag.Bool("update", false, "write the tables of docs/gateways.md")
	vllm   = flag.String("real", "", "URL of a vLLM that serves the model m, in place of simulated engines, for the tests that end no engine")
	storm  = flag.Duration("storm", 0, "how long each failure is repeated under load; 0 for once")
)

// required makes a machine without Envoy a failure. CI sets it where packages can be had.
const required = "KVASIR_ENVOY_REQUIRED"

// patience is the limit for operations that should take milliseconds.
const patience = time.Minute

// program is Envoy, installed by the project's own script.
func program(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "../../hack/envoy/install.sh").Output()
	if err == nil {
		return strings.TrimSpace(string(out))
	}
	why := err.Error()
	if e := (*exec.ExitError)(nil); errors.As(err, &e) {
		why = strings.TrimSpace(string(e.Stderr))
	}
	if os.Getenv(required) != "" {
		t.Fatalf("%s is set, and there is no Envoy: %s", required, why)
	}
	t.Skipf("There is no Envoy here: %s", why)
	return ""
}

// proxy is a running Envoy.
type proxy struct {
	program, dir string
	admin        *http.Client
	worker       *http.Client // asks for the mark
	marks        int
	run          *exec.Cmd
	over         chan struct{} // closed when it has ended
	logs         *output
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

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start starts one Envoy with a listener for each gateway, before the pickers and engines at some addresses.
func start(t *testing.T, pickers, engines []string, all ...gateway) *proxy {
	t.Helper()
	envoy := program(t)
	dir, err := os.MkdirTemp("", "kvasir-envoy-") // short: paths of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	discover(t, dir, pickersFile, pickers)
	discover(t, dir, enginesFile, engines)
	setMark(t, dir, 0)
	if err := os.WriteFile(filepath.Join(dir, "envoy.json"), bootstrap(t, dir, all), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &proxy{program: envoy, dir: dir, logs: &output{},
		admin:  &http.Client{Timeout: patience, Transport: unix(filepath.Join(dir, "admin"))},
		worker: &http.Client{Timeout: patience, Transport: unix(filepath.Join(dir, markSocket))}}
	p.execute(t, "--use-dynamic-base-id", "--base-id-path", filepath.Join(dir, "base"))
	until(t, "Envoy is ready", func() bool { return strings.Contains(p.ask("/ready"), "LIVE") })
	for _, g := range all {
		if g.pickers == "" || g.pickers == checked {
			for _, a := range pickers {
				until(t, "Envoy finds the picker healthy", func() bool { return p.healthy(g, a) })
			}
		}
	}
	p.settle(t)
	return p
}

// execute starts the program, until the test ends.
func (p *proxy) execute(t *testing.T, args ...string) {
	t.Helper()
	run := exec.Command(p.program, append(args, "-c", filepath.Join(p.dir, "envoy.json"), "--concurrency", "1", "--log-level", "error",
		"--file-flush-interval-msec", "20", "--drain-time-s", "1", "--parent-shutdown-time-s", "4")...)
	run.Stdout, run.Stderr = p.logs, p.logs
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	p.run, p.over = run, make(chan struct{})
	go func(over chan struct{}) {
		_ = run.Wait()
		close(over)
	}(p.over)
	over := p.over
	t.Cleanup(func() {
		_ = run.Process.Kill()
		<-over
		if t.Failed() {
			t.Logf("Envoy:\n%s", p.logs.String())
		}
	})
}

// kill ends Envoy as SIGKILL does.
func (p *proxy) kill() {
	_ = p.run.Process.Kill()
	<-p.over
}

// restart has another process take over from Envoy (its hot restart), and waits until the old one has ended.
func (p *proxy) restart(t *testing.T, epoch int) {
	t.Helper()
	base, err := os.ReadFile(filepath.Join(p.dir, "base"))
	if err != nil {
		t.Fatal(err)
	}
	old := p.over
	p.execute(t, "--base-id", strings.TrimSpace(string(base)), "--restart-epoch", strconv.Itoa(epoch))
	<-old
}

// settle waits until Envoy's worker has applied every change of addresses and health that the administrative interface shows.
//
// That interface is the main thread's. The worker, which chooses the picker of a request, receives each change as a message
// and applies it in its turn: until then it opens connections to a picker that is already gone. The mark is sent to the
// worker in the same way after those changes; there is one worker, and it applies messages in order.
func (p *proxy) settle(t *testing.T) {
	t.Helper()
	p.marks++
	mark := strconv.Itoa(p.marks)
	setMark(t, p.dir, p.marks)
	until(t, "Envoy's worker has the mark", func() bool { return get(p.worker, "/") == mark })
}

// ask asks Envoy's administrative interface. The answer is empty when there is none.
func (p *proxy) ask(path string) string { return get(p.admin, path) }

func get(c *http.Client, path string) string {
	r, err := c.Get("http://envoy" + path)
	if err != nil {
		return ""
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(r.Body)
	return string(b)
}

// healthy reports whether Envoy has found a picker healthy. Its worker can be later to know (settle).
func (p *proxy) healthy(g gateway, picker string) bool {
	return strings.Contains(p.ask("/clusters"), g.pickersName()+"::"+picker+"::health_flags::healthy")
}

// lists reports whether a picker is among the addresses that Envoy has found. Its worker can be later to know (settle).
func (p *proxy) lists(g gateway, picker string) bool {
	return strings.Contains(p.ask("/clusters"), g.pickersName()+"::"+picker+"::")
}

// knows reports whether an engine is among the addresses that Envoy has found.
func (p *proxy) knows(g gateway, engine string) bool {
	return strings.Contains(p.ask("/clusters"), g.poolName()+"::"+engine+"::")
}

// stat is a counter of Envoy's.
func (p *proxy) stat(t *testing.T, name string) int {
	t.Helper()
	for line := range strings.Lines(p.ask("/stats?filter=^" + name + "$")) {
		if key, value, ok := strings.Cut(line, ": "); ok && key == name {
			n := json.Number(strings.TrimSpace(value))
			if v, err := n.Int64(); err == nil {
				return int(v)
			}
		}
	}
	t.Fatalf("Envoy has no counter %s", name)
	return 0
}

// line is a line of Envoy's access log.
type line struct {
	Listener, ID, Host, Flags, Protocol, Details string
	Code, Sent                                   int64
}

// lines are those of a listener's requests.
func (p *proxy) lines(t *testing.T, g gateway) []line {
	t.Helper()
	f, err := os.Open(filepath.Join(p.dir, "access.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []line
	for s := bufio.NewScanner(f); s.Scan(); {
		var l line
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			break // it is being written
		}
		if l.Listener == g.name {
			all = append(all, l)
		}
	}
	return all
}

func unix(path string) *http.Transport {
	return &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 100, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
}

// The versions of HTTP that clients speak to Envoy.
const (
	http11 = "HTTP/1.1"
	http2  = "HTTP/2"
)

// client speaks HTTP with a gateway, until the test ends.
func (p *proxy) client(t *testing.T, g gateway, version string) *http.Client {
	t.Helper()
	transport := unix(filepath.Join(p.dir, g.socket()))
	if version == http2 {
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Timeout: patience, Transport: transport}
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// patience is the limit for operations that should take milliseconds.
const patience = 30 * time.Second

// instance is a picker that runs in this process.
type instance struct {
	t         testing.TB
	listeners *listeners
	logs      *buffer
	stop      context.CancelFunc
	done      chan struct{}
	err       error // of run, once done is closed
	client    *http.Client
}

// buffer collects the log.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// runOn runs a picker on a directory until the test ends.
func runOn(t testing.TB, dir string, args ...string) *instance {
	t.Helper()
	i, o := listenOn(t, dir, args...)
	i.run(o)
	return i
}

// listenOn prepares a picker.
func listenOn(t testing.TB, dir string, args ...string) (*instance, *options) {
	t.Helper()
	return listenWith(t, append([]string{"--standalone", dir}, args...)...)
}

// listenWith prepares a picker whose arguments say what it serves.
func listenWith(t testing.TB, args ...string) (*instance, *options) {
	t.Helper()
	const local = "127.0.0.1:0"
	args = append([]string{"--proxy-address", local, "--health-address", local, "--metrics-address", local, "--ext-proc-address", local, "--lame-duck", "0s"}, args...)
	o, err := parse(args, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	i := &instance{t: t, logs: &buffer{}, stop: func() {}, done: make(chan struct{}), client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	if i.listeners, err = listen(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.listeners.close)
	return i, o
}

// run runs what was prepared.
func (i *instance) run(o *options) {
	i.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	i.stop = stop
	go func() {
		defer close(i.done)
		i.err = run(ctx, o, i.listeners, logging.New(i.logs, o.logLevel, o.logFormat))
	}()
	t := i.t
	t.Cleanup(func() {
		stop()
		select {
		case <-i.done:
			if i.err != nil {
				t.Errorf("run ended with %v", i.err)
			}
		case <-time.After(patience):
			t.Error("run does not end")
		}
		if t.Failed() {
			t.Log(i.logs)
		}
	})
}

func url(l net.Listener, path string) string { return "http://" + l.Addr().String() + path }

// get asks for a page.
func (i *instance) get(l net.Listener, path string) (int, string) {
	i.t.Helper()
	return i.do(http.MethodGet, url(l, path), "")
}

// complete asks for two tokens.
func (i *instance) complete(model string) (int, string) {
	i.t.Helper()
	return i.do(http.MethodPost, url(i.listeners.proxy, "/v1/completions"),
		fmt.Sprintf(`{"model":%q,"prompt":"one two three","max_tokens":2}`, model))
}

// do returns status and body; 0 without an answer.
func (i *instance) do(method, url, body string) (int, string) {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		i.t.Fatal(err)
	}
	resp, err := i.client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

// eventually polls until ok.
func (i *instance) eventually(what string, ok func() bool) {
	i.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			i.t.Fatalf("never: %s", what)
		}
	}
}

func (i *instance) awaitReady() {
	i.t.Helper()
	i.eventually("ready", func() bool { status, _ := i.get(i.listeners.health, "/readyz"); return status == http.StatusOK })
}

// engine starts a simulated engine that serves a model.
func engine(t testing.TB, model string) *vllmsim.Engine {
	t.Helper()
	e, err := vllmsim.Start(vllmsim.Config{ServedModelNames: []string{model}, SpeedUp: 1000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

func portOf(t testing.TB, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// put replaces a file by a rename.
func put(t testing.TB, path, text string) {
	t.Helper()
	temporary := filepath.Join(filepath.Dir(path), ".new")
	if err := os.WriteFile(temporary, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temporary, path); err != nil {
		t.Fatal(err)
	}
}

func poolText(name, model, more string) string {
	return fmt.Sprintf("apiVersion: kvasir.dev/v1alpha1\nkind: InferencePool\nmetadata: {name: %s}\n"+
		"spec: {model: {name: %s%s}, selector: {matchLabels: {app: x}}}\n", name, model, more)
}

func sliceText(t testing.TB, pool, pod string, e *vllmsim.Engine) string {
	t.Helper()
	return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, labels: {kvasir.dev/pool: %s}}
addressType: IPv4
ports: [{name: http, port: %s}, {name: kv-events, port: %s}, {name: kv-replay, port: %s}]
endpoints:
- {addresses: [127.0.0.1], targetRef: {kind: Pod, name: %[1]s}}
`, pod, pool, portOf(t, e.Addr()), portOf(t, e.EventsAddr()), portOf(t, e.ReplayAddr()))
}

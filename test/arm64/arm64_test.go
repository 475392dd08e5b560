//go:build linux

// Package arm64 starts the programs of arm64 on a machine of another kind, under the emulator of Debian's package qemu-user-static, and sends
// requests through a picker to engines. An emulated program is ten times slower; nothing here depends on time.
package arm64

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/freeport"
)

var (
	wanted = flag.Bool("arm64", false, "build the programs for arm64 and start them")
	built  = flag.String("arm64.bin", "", "directory with the programs, built already")
)

// patience bounds what is waited for.
const patience = 5 * time.Minute

// emulator is qemu's, by KVASIR_QEMU or in PATH; empty on arm64 itself.
func emulator(t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv("KVASIR_QEMU"), "qemu-aarch64-static", "qemu-aarch64"} {
		if name == "" {
			continue
		}
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("no emulator: install Debian's qemu-user-static, or name qemu-aarch64 in KVASIR_QEMU")
	return ""
}

// world is the programs and their emulator.
type world struct{ qemu, bin string }

func start(t *testing.T) *world {
	t.Helper()
	if !*wanted {
		t.Skip("-arm64 is not set (`make test-arm64`)")
	}
	w := &world{qemu: emulator(t), bin: *built}
	if w.bin == "" {
		w.bin = t.TempDir()
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", w.bin+"/", "../../cmd/...")
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=arm64")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return w
}

// run starts a program that ends with the test.
func (w *world) run(t *testing.T, program string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), w.qemu, append([]string{filepath.Join(w.bin, program)}, args...)...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()                          // its output says why
		if t.Failed() {
			t.Logf("%s:\n%s", program, output.String())
		}
	})
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

func request(ctx context.Context, method, url, body string) (status int, answer string, err error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close() // read to its end
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

func await(t *testing.T, what string, done func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := done(ctx)
		if err == nil {
			return
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}

func TestEveryProgramStarts(t *testing.T) {
	w := start(t)
	for _, program := range []string{"manager", "picker", "reporter", "vllmsim", "kubectl-kvasir", "kvasir-bench", "kvasir-lab"} {
		out, err := exec.CommandContext(t.Context(), w.qemu, filepath.Join(w.bin, program), "version").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "linux/arm64") {
			t.Errorf("%s: %v: %s", program, err, out)
		}
	}
}

// A picker of arm64 follows the events of an engine of arm64: the second request hits its cache, as predicted.
func TestARequestHitsACache(t *testing.T) {
	w := start(t)
	engine, events, replay := freeAddress(t), freeAddress(t), freeAddress(t)
	port := func(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }
	w.run(t, "vllmsim", "--served-model-name", "m", "--port", port(engine), "--kv-events-port", port(events), "--kv-replay-port", port(replay))
	proxy, metrics, health := freeAddress(t), freeAddress(t), freeAddress(t)
	w.run(t, "picker", "--engines", fmt.Sprintf("http://%s?events=%s&replay=%s", engine, port(events), port(replay)), "--model", "m",
		"--proxy-address", proxy, "--metrics-address", metrics, "--health-address", health, "--ext-proc-address", freeAddress(t))
	await(t, "the picker is ready", func(ctx context.Context) error {
		status, text, err := request(ctx, http.MethodGet, "http://"+health+"/readyz", "")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d: %s", status, text)
		}
		return err
	})
	body := `{"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "` + strings.Repeat("wells of wisdom ", 60) + `"}]}`
	await(t, "a request finds its prompt in the cache", func(ctx context.Context) error {
		status, text, err := request(ctx, http.MethodPost, "http://"+proxy+"/v1/chat/completions", body)
		if err != nil {
			return err
		}
		if status != http.StatusOK || !strings.Contains(text, `"cached_tokens":`) || strings.Contains(text, `"cached_tokens":0`) {
			return fmt.Errorf("status %d: %s", status, text)
		}
		return nil
	})
	await(t, "the picker has predicted it", func(ctx context.Context) error {
		_, text, err := request(ctx, http.MethodGet, "http://"+metrics+"/metrics", "")
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "kvasir_predicted_hit_tokens_total") && !strings.HasSuffix(strings.TrimSpace(line), " 0") {
				return nil
			}
		}
		if err == nil {
			err = fmt.Errorf("no predicted hits in the metrics")
		}
		return err
	})
}

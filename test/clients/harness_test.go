package clients

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/freeport"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
	"github.com/kvasir-dev/kvasir/test/certstest"
	"github.com/kvasir-dev/kvasir/test/envoyfront"
)

var (
	run    = flag.Bool("clients", false, "install and run clients")
	engine = flag.String("clients.engine", "", "`HOST:PORT` of a running engine, instead of simulated ones")
	model  = flag.String("clients.model", "m", "the `name` of its model")
)

const (
	// patience bounds what should take a moment, atMost one program.
	patience, atMost = 30 * time.Second, 5 * time.Minute
	root             = "../.."
	tokenizers       = root + "/internal/tokens/tokenizer/testdata/qwen2_5"
)

// cache is where environments are kept.
func cache(t *testing.T) string {
	t.Helper()
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		base = filepath.Join(home, ".cache")
	}
	return filepath.Join(base, "kvasir", "clients")
}

// environment is the directory of a client's environment, installed if it is not there. Its name has a hash of the pins,
// so that a change of them makes another.
func environment(t *testing.T, name string) string {
	t.Helper()
	pins, install := filepath.Join("envs", name, "requirements.txt"), python
	if name == "node" {
		pins, install = filepath.Join("envs", name, "package.json"), node
	}
	text, err := os.ReadFile(pins)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	dir := filepath.Join(cache(t), name+"-"+hex.EncodeToString(sum[:])[:12])
	done := filepath.Join(dir, ".done")
	if _, err := os.Stat(done); err == nil {
		return dir
	}
	t.Logf("Installing %s into %s", name, dir)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	install(t, dir, pins)
	if err := os.WriteFile(done, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// python installs packages with uv, which is installed with pip where it is missing.
func python(t *testing.T, dir, pins string) {
	t.Helper()
	uv, err := exec.LookPath("uv")
	if err != nil {
		tools := filepath.Join(cache(t), "uv")
		command(t, nil, "python3", "-m", "venv", tools)
		command(t, nil, filepath.Join(tools, "bin", "pip"), "install", "--quiet", "-r", filepath.Join("envs", "uv", "requirements.txt"))
		uv = filepath.Join(tools, "bin", "uv")
	}
	command(t, nil, uv, "venv", "--quiet", "--python", interpreter(t), dir)
	command(t, nil, uv, "pip", "install", "--quiet", "--python", filepath.Join(dir, "bin", "python"), "-r", pins)
}

// interpreter is a Python that all clients support: KVASIR_PYTHON, or the first that works.
func interpreter(t *testing.T) string {
	t.Helper()
	candidates := []string{os.Getenv("KVASIR_PYTHON"), "python3.13", "python3.12", "python3"}
	found, err := filepath.Glob(filepath.Join(os.Getenv("HOME"), ".pyenv", "versions", "3.1[23].*", "bin", "python3"))
	if err == nil {
		candidates = append(candidates, found...)
	}
	for _, python := range candidates {
		if python != "" && exec.Command(python, "-c", "import sys; sys.exit(not (3, 12) <= sys.version_info[:2] <= (3, 13))").Run() == nil {
			return python
		}
	}
	t.Skip("clients need Python 3.12 or 3.13: name one in KVASIR_PYTHON")
	return ""
}

// node installs packages with npm.
func node(t *testing.T, dir, pins string) {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("npm is not installed")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(pins)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, nil, "npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", dir)
}

// command runs a program, and fails the test when it fails. It returns what was printed. A program that takes too long is
// aborted, so that Python prints where it was.
func command(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), atMost)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	// Python compiles the thousands of modules of a client in each run unless it can keep them.
	cmd.Env = append(append(os.Environ(), "PYTHONDONTWRITEBYTECODE=", "PYTHONFAULTHANDLER=1"), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGABRT) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return string(out)
}

// house is the proxy with engines behind it.
type house struct {
	url, metrics string
	extProc      string // address of ext_proc
	behind       bool   // url is that of an Envoy
	// ca signs the proxy's certificate, and caFile has its own; nil without TLS.
	ca     *certstest.CA
	caFile string
}

// start builds and starts the picker, in front of two engines and beside a pool without any.
func start(t *testing.T) *house { return launch(t, new(house)) }

// startOverTLS is start with a proxy that speaks TLS, with a certificate of an authority that no system knows.
func startOverTLS(t *testing.T) *house {
	dir := t.TempDir()
	h := &house{ca: certstest.New(t), caFile: filepath.Join(dir, "ca.crt")}
	write(t, dir, "ca.crt", string(h.ca.PEM()))
	cert, key := certstest.Write(t, dir, h.ca.Server())
	return launch(t, h, "--proxy-cert", cert, "--proxy-key", key)
}

// launch starts a picker with further arguments.
func launch(t *testing.T, h *house, args ...string) *house {
	t.Helper()
	if !*run {
		t.Skip("run make test-clients")
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "picker")
	command(t, []string{"CGO_ENABLED=0"}, "go", "build", "-o", binary, root+"/cmd/picker")
	objects := filepath.Join(dir, "objects")
	if err := os.Mkdir(objects, 0o755); err != nil {
		t.Fatal(err)
	}
	for i, address := range engines(t) {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		write(t, objects, fmt.Sprintf("slice-%d.yaml", i), fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: e-%d, labels: {kvasir.dev/pool: served}}
addressType: IPv4
ports: [{name: http, port: %s}]
endpoints: [{addresses: ["%s"], conditions: {ready: true}, targetRef: {kind: Pod, name: e-%d, uid: uid-%d}}]
`, i, port, host, i, i))
	}
	for pool, name := range map[string]string{"served": *model, "empty": "nobody-serves-this"} {
		write(t, objects, pool+".yaml", fmt.Sprintf(`apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: %s}
spec:
  model: {name: %q}
  selector: {matchLabels: {app: %s}}
  engine: {events: {source: None}}
`, pool, name, pool))
	}
	// By default a request waits for a pool's first endpoint.
	write(t, objects, "policy.yaml", `apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: empty}
spec: {targetRefs: [{name: empty}], admission: {holdSeconds: 0}}
`)
	proxy := free(t)
	h.url, h.metrics, h.extProc = "http://"+proxy, "http://"+free(t), free(t)
	if h.ca != nil {
		h.url = "https://" + strings.Replace(proxy, "127.0.0.1", "localhost", 1)
	}
	health := "http://" + free(t)
	var logs bytes.Buffer
	cmd := exec.Command(binary, append([]string{"--standalone", objects, "--proxy-address", proxy, "--lame-duck", "0s",
		"--metrics-address", strings.TrimPrefix(h.metrics, "http://"), "--health-address", strings.TrimPrefix(health, "http://"),
		"--ext-proc-address", h.extProc, "--log-level", "debug"}, args...)...)
	cmd.Stdout, cmd.Stderr = &logs, &logs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("picker:\n%s", logs.String())
		}
	})
	h.ready(t, "/health")
	return h
}

// ready waits for an answer.
func (h *house) ready(t *testing.T, path string) {
	t.Helper()
	client := &http.Client{Timeout: patience}
	if h.ca != nil {
		client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: h.ca.Pool()}}
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if r, err := client.Get(h.url + path); err == nil {
			_ = r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s%s did not become ready", h.url, path)
		}
	}
}

// behindEnvoy is the same picker behind a gateway.
func (h *house) behindEnvoy(t *testing.T) *house {
	t.Helper()
	program, err := envoyfront.Program(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	address := free(t)
	config, err := envoyfront.Config(address, h.extProc, "")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, dir, "envoy.json", string(config))
	cmd := exec.Command(program, "-c", filepath.Join(dir, "envoy.json"), "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error")
	var logs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &logs, &logs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("Envoy:\n%s", logs.String())
		}
	})
	front := &house{url: "http://" + address, metrics: h.metrics, behind: true}
	front.ready(t, "/v1/models")
	return front
}

// engines are the addresses of what serves.
func engines(t *testing.T) []string {
	t.Helper()
	if *engine != "" {
		return []string{*engine}
	}
	var all []string
	for range 2 {
		e, err := vllmsim.Start(vllmsim.Config{ServedModelNames: []string{*model}, SpeedUp: 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		all = append(all, e.Addr())
	}
	return all
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func free(t *testing.T) string {
	t.Helper()
	all, err := freeport.Addresses("127.0.0.1", 1)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// files unpacks a tokenizer for load tools, which count tokens themselves.
func files(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	packed, err := os.Open(tokenizers + "/tokenizer.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	text, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(text)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "tokenizer.json", string(raw))
	settings, err := os.ReadFile(tokenizers + "/tokenizer_config.json")
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "tokenizer_config.json", string(settings))
	write(t, dir, "config.json", `{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}`)
	return dir
}

package envoy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/freeport"
)

// sidecarRequired makes a machine without the sidecar a failure.
const sidecarRequired = "KVASIR_SIDECAR_REQUIRED"

// sidecarProgram is the routing sidecar of llm-d. It is built only on demand (make sidecar), because that takes minutes.
func sidecarProgram(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "../../hack/sidecar/install.sh", "--installed").Output()
	if err == nil {
		return strings.TrimSpace(string(out))
	}
	why := err.Error()
	if e := (*exec.ExitError)(nil); errors.As(err, &e) {
		why = strings.TrimSpace(string(e.Stderr))
	}
	if os.Getenv(sidecarRequired) != "" {
		t.Fatalf("%s is set: %s", sidecarRequired, why)
	}
	t.Skipf("There is no sidecar here: %s", why)
	return ""
}

// sidecar is a running sidecar of llm-d in front of an engine that decodes.
type sidecar struct {
	address string
	process *os.Process
	over    chan struct{} // closed when the process has ended
	logs    *output
}

// kill ends the sidecar, and returns when it is gone: until then it can accept connections that it resets.
func (s *sidecar) kill() {
	_ = s.process.Kill()
	<-s.over
}

// startSidecar starts the sidecar in front of an engine's address on 127.0.0.1.
func startSidecar(t *testing.T, engine string, flags ...string) *sidecar {
	return startSidecarWith(t, engine, nil, flags...)
}

func startSidecarWith(t *testing.T, engine string, env []string, flags ...string) *sidecar {
	t.Helper()
	program := sidecarProgram(t)
	_, enginePort, err := net.SplitHostPort(engine)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 { // another process can take the port before the sidecar does
		s := &sidecar{address: freeAddress(t), over: make(chan struct{}), logs: &output{}}
		_, port, _ := net.SplitHostPort(s.address)
		run := exec.CommandContext(context.Background(), program, append([]string{"--port", port, "--model-server-port", enginePort, "--metrics-port", "0",
			"--secure-proxy=false", "--kv-connector", "nixlv2"}, flags...)...)
		run.Stdout, run.Stderr, run.Env = s.logs, s.logs, append(os.Environ(), env...)
		if err := run.Start(); err != nil {
			t.Fatal(err)
		}
		s.process = run.Process
		go func() { _ = run.Wait(); close(s.over) }()
		t.Cleanup(func() {
			s.kill()
			if t.Failed() {
				t.Logf("the sidecar at %s:\n%s", s.address, s.logs.String())
			}
		})
		started := false
		until(t, "the sidecar answers or has ended", func() bool {
			select {
			case <-s.over:
				return true
			default:
				started = healthy(s.address)
				return started
			}
		})
		if started {
			return s
		}
	}
	t.Fatal("the sidecar does not start")
	return nil
}

// healthy reports whether the sidecar answers, with an error if it serves TLS.
func healthy(address string) bool {
	answer, err := http.Get("http://" + address + "/health")
	if err == nil {
		_ = answer.Body.Close()
	}
	return err == nil
}

// kubeconfig names an API server in which the pool ns/pool selects one pod, with an address that no engine has. It is what the sidecar
// reads for its list of engines that it sends prompts to.
func kubeconfig(t *testing.T) string {
	t.Helper()
	list := func(group, kind, item string) string {
		return `{"apiVersion":"` + group + `","kind":"` + kind + `List","metadata":{"resourceVersion":"1"},"items":[` + item + `]}`
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch query := r.URL.Query(); {
		case query.Get("sendInitialEvents") != "": // as API servers without this feature do
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Invalid","code":422}`)
		case query.Get("watch") != "":
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		case r.URL.Path == "/apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools":
			_, _ = io.WriteString(w, list("inference.networking.k8s.io/v1", "InferencePool", `{"apiVersion":"inference.networking.k8s.io/v1",
				"kind":"InferencePool","metadata":{"name":"pool","namespace":"ns"},"spec":{"selector":{"matchLabels":{"app":"m"}}}}`))
		case r.URL.Path == "/api/v1/namespaces/ns/pods":
			_, _ = io.WriteString(w, list("v1", "Pod",
				`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"ns"},"status":{"podIP":"10.0.0.1"}}`))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],` +
		`"users":[{"name":"u","user":{}}],"clusters":[{"name":"c","cluster":{"server":"` + server.URL + `"}}]}`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// freeAddress is an address that nothing listens at.
func freeAddress(t *testing.T) string {
	t.Helper()
	all, err := freeport.Addresses("127.0.0.1", 1)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

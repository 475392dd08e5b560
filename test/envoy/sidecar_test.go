package envoy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
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
	logs    *output
}

// startSidecar starts the sidecar in front of an engine's address on 127.0.0.1.
func startSidecar(t *testing.T, engine string, flags ...string) *sidecar {
	t.Helper()
	program := sidecarProgram(t)
	_, enginePort, err := net.SplitHostPort(engine)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 { // another process can take the port before the sidecar does
		s := &sidecar{address: freePort(t), logs: &output{}}
		_, port, _ := net.SplitHostPort(s.address)
		run := exec.CommandContext(context.Background(), program, append([]string{"--port", port, "--model-server-port", enginePort, "--metrics-port", "0",
			"--secure-proxy=false", "--kv-connector", "nixlv2"}, flags...)...)
		run.Stdout, run.Stderr = s.logs, s.logs
		if err := run.Start(); err != nil {
			t.Fatal(err)
		}
		s.process = run.Process
		over := make(chan struct{})
		go func() { _ = run.Wait(); close(over) }()
		t.Cleanup(func() {
			_ = run.Process.Kill()
			<-over
			if t.Failed() {
				t.Logf("the sidecar at %s:\n%s", s.address, s.logs.String())
			}
		})
		started := false
		until(t, "the sidecar answers or has ended", func() bool {
			select {
			case <-over:
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

func healthy(address string) bool {
	answer, err := http.Get("http://" + address + "/health")
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// freePort is an address that nothing listens at.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

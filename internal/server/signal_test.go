//go:build unix

package server

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/version"
)

// asProgram makes the test binary the program.
const asProgram = "PICKER_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(Main(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// The first signal drains and ends with status 0; the second one ends at once.
func TestSignals(t *testing.T) {
	for name, twice := range map[string]bool{"once": false, "twice": true} {
		t.Run(name, func(t *testing.T) {
			dir, e := t.TempDir(), engine(t, "m")
			put(t, filepath.Join(dir, "all.yaml"), poolText("m", "m", "")+"---\n"+sliceText(t, "m", "pod", e))
			p := startProgram(t, dir, "--lame-duck", "0s")
			i := p.instance
			e.Pause()
			defer e.Resume()
			answer := make(chan int, 1)
			go func() {
				status, _ := i.do(http.MethodPost, p.proxy+"/v1/completions", `{"model":"m","prompt":[1],"max_tokens":1}`)
				answer <- status
			}()
			i.eventually("a request is in the pod", func() bool { return requests(e) == 1 })
			p.signal()
			i.eventually("it drains", func() bool { return regexp.MustCompile("msg=Draining").MatchString(p.logs.String()) })
			if twice {
				p.signal()
				p.wantExit(1)
				if status := <-answer; status == http.StatusOK {
					t.Error("the request was answered by a pod that stands still")
				}
				return
			}
			e.Resume()
			if status := <-answer; status != http.StatusOK {
				t.Errorf("status %d, want 200", status)
			}
			p.wantExit(0)
		})
	}
}

// After the signal, /readyz reports the end before anything stops, and new requests from clients that have not seen it yet
// are still answered.
func TestRequestsAreTakenWhileTheEndIsTold(t *testing.T) {
	dir, e := t.TempDir(), engine(t, "m")
	put(t, filepath.Join(dir, "all.yaml"), poolText("m", "m", "")+"---\n"+sliceText(t, "m", "pod", e))
	p := startProgram(t, dir, "--lame-duck", "1h")
	p.eventually("ready", func() bool { status, _ := p.do(http.MethodGet, p.health+"/readyz", ""); return status == http.StatusOK })
	p.signal()
	p.eventually("readyz reports draining", func() bool {
		status, body := p.do(http.MethodGet, p.health+"/readyz", "")
		return status == http.StatusServiceUnavailable && body == "draining\n"
	})
	if status, body := p.do(http.MethodPost, p.proxy+"/v1/completions", `{"model":"m","prompt":[1],"max_tokens":1}`); status != http.StatusOK {
		t.Errorf("status %d, want 200: %s", status, body)
	}
	p.signal()
	p.wantExit(1)
}

// program is the picker as a process of its own.
type program struct {
	*instance
	cmd           *exec.Cmd
	proxy, health string // URLs
	ended         chan error
}

// startProgram starts the picker on a directory and waits until objects are applied.
func startProgram(t *testing.T, dir string, args ...string) *program {
	t.Helper()
	const local = "127.0.0.1:0"
	args = append([]string{"--standalone", dir, "--proxy-address", local, "--health-address", local, "--metrics-address", local, "--ext-proc-address", ""}, args...)
	p := &program{
		instance: &instance{t: t, logs: &buffer{}, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}},
		cmd:      exec.Command(os.Args[0], args...),
		ended:    make(chan error, 1),
	}
	p.cmd.Env, p.cmd.Stderr = append(os.Environ(), asProgram+"=1"), p.logs
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() }) // it has ended in the good case
	go func() { p.ended <- p.cmd.Wait() }()
	p.eventually("the log tells the addresses and that objects were applied", func() bool {
		text := p.logs.String()
		found := regexp.MustCompile(`msg=Serving proxy=(\S+) health=(\S+)`).FindStringSubmatch(text)
		if found == nil || !regexp.MustCompile(`msg="Objects applied" pools=1`).MatchString(text) {
			return false
		}
		p.proxy, p.health = "http://"+found[1], "http://"+found[2]
		return true
	})
	return p
}

func (p *program) signal() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
}

func (p *program) wantExit(status int) {
	p.t.Helper()
	var exit *exec.ExitError
	switch err := <-p.ended; {
	case errors.As(err, &exit) && exit.ExitCode() == status, err == nil && status == 0:
	default:
		p.t.Errorf("it ended with %v, want status %d\n%s", err, status, p.logs)
	}
}

func TestTheVersionIsPrinted(t *testing.T) {
	command := exec.CommandContext(t.Context(), os.Args[0], "--pool", "a/b", "--version")
	command.Env = append(os.Environ(), asProgram+"=1")
	out, err := command.Output()
	if want := "picker " + version.Get().String() + "\n"; err != nil || string(out) != want {
		t.Errorf("%q, %v; want %q", out, err, want)
	}
}

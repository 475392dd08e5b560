// Package h2check runs the conformance cases of h2spec against the ports of a picker that speak HTTP/2.
package h2check

import (
	"bufio"
	"fmt"
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

	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"
)

// patience is the limit for what should take much less, and await that of a case for each frame that it expects.
const patience, await = time.Minute, 5 * time.Second

// attempts is how often a case is run that does not pass: the order of a case's frames and of answers to earlier ones is not certain.
const attempts = 3

// TestPorts runs every case on each port: each passes, or is in the list of exceptions.
func TestPorts(t *testing.T) {
	excepted := exceptions(t)
	proxy, plain, encrypted := startPickers(t)
	for _, p := range []struct {
		name, kind, address, path string
		tls                       bool
	}{
		{"proxy", "proxy", proxy, "/v1/completions", false},
		{"ext_proc", "ext_proc", plain, "/", false},
		{"ext_proc with TLS", "ext_proc", encrypted, "/", true},
	} {
		host, number, err := net.SplitHostPort(p.address)
		if err != nil {
			t.Fatal(err)
		}
		port, err := strconv.Atoi(number)
		if err != nil {
			t.Fatal(err)
		}
		at := config.Config{Host: host, Port: port, Path: p.path, TLS: p.tls, Insecure: true, Timeout: await, MaxHeaderLen: 4000}
		known := map[string]bool{}
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			for _, g := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
				play(t, at, g, excepted[p.kind], known)
			}
			for name := range excepted[p.kind] {
				if !known[name] {
					t.Errorf("%s is excepted, and no case", name)
				}
			}
		})
	}
}

// play starts a test for each case of a group and of those within, and adds their names to known.
func play(t *testing.T, at config.Config, g *spec.TestGroup, excepted map[string]string, known map[string]bool) {
	for i, tc := range append(g.Tests, g.StrictTests...) {
		name := fmt.Sprintf("%s/%d", g.ID(), i+1)
		known[name] = true
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reason, exception := excepted[name]
			err := run(at, tc)
			for n := 1; n < attempts && err != nil && !exception; n++ {
				err = run(at, tc)
			}
			switch {
			case err != nil && !exception:
				t.Errorf("%s. %s Want one of, and got last:\n%v", tc.Desc, tc.Requirement, err)
			case err == nil && exception:
				t.Errorf("%s. It passes, and exceptions.txt says: %s", tc.Desc, reason)
			}
		})
	}
	for _, g := range g.Groups {
		play(t, at, g, excepted, known)
	}
}

// run runs a case on a connection of its own.
func run(at config.Config, tc *spec.TestCase) error {
	conn, err := spec.Dial(&at) // which writes to at
	if err != nil {
		return err
	}
	defer conn.Close()
	return tc.Run(&at, conn)
}

// exceptions are the reasons why cases do not pass, by port and case.
func exceptions(t *testing.T) map[string]map[string]string {
	t.Helper()
	f, err := os.Open("exceptions.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := map[string]map[string]string{"proxy": {}, "ext_proc": {}}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if line := lines.Text(); line != "" && line[0] != '#' {
			part := strings.Split(line, "\t")
			if len(part) != 3 || all[part[1]] == nil || part[2] == "" || all[part[1]][part[0]] != "" {
				t.Fatalf("exceptions.txt: want once CASE, PORT and REASON, with tabs: %q", line)
			}
			all[part[1]][part[0]] = part[2]
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// startPickers starts a picker with plain ports and one with TLS for gateways, before an engine that never answers.
func startPickers(t *testing.T) (proxy, plain, encrypted string) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "picker")
	if out, err := exec.Command("go", "-C", "../..", "build", "-trimpath", "-o", binary, "./cmd/picker").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	free := freeAddresses(t, 3)
	proxy, plain, encrypted = free[0], free[1], free[2]
	start(t, binary, "--proxy-address", proxy, "--ext-proc-address", plain, "--ext-proc-plaintext")
	start(t, binary, "--proxy-address", "", "--ext-proc-address", encrypted)
	for end := time.Now().Add(patience); !serves(proxy, encrypted); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the pickers do not serve")
		}
	}
	return proxy, plain, encrypted
}

// freeAddresses are below the ports of outgoing connections, so that none of those takes one before it is listened on.
func freeAddresses(t *testing.T, n int) (all []string) {
	t.Helper()
	for len(all) < n {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)))
		if err != nil {
			continue
		}
		defer l.Close()
		all = append(all, l.Addr().String())
	}
	return all
}

// start starts a picker, before an engine that is not there.
func start(t *testing.T, binary string, args ...string) {
	t.Helper()
	out := &output{}
	cmd := exec.Command(binary, append(args, "--engines", "http://127.0.0.1:9", "--model", "m", "--report-address", "",
		"--health-address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0", "--lame-duck", "0s", "--drain-timeout", "1s")...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || strings.Contains(out.String(), "panic") {
			t.Errorf("picker: %v\n%s", err, out)
		}
	})
}

// serves reports whether the pickers do, on their last ports.
func serves(proxy, encrypted string) bool {
	r, err := http.Get("http://" + proxy + "/v1/models")
	if err != nil {
		return false
	}
	_ = r.Body.Close()
	c, err := net.Dial("tcp", encrypted)
	if err != nil {
		return false
	}
	_ = c.Close()
	return r.StatusCode == http.StatusOK
}

// output is what a picker logs.
type output struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
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

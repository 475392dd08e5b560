//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/hack/demo/report"
	"github.com/kvasir-dev/kvasir/hack/demo/summary"
)

// programs are built once for all tests of the package, into a directory that TestMain removes.
var (
	builtIn string
	build   = sync.OnceValue(func() error {
		out, err := exec.Command("go", "build", "-o", builtIn+string(filepath.Separator),
			"github.com/kvasir-dev/kvasir/cmd/picker", "github.com/kvasir-dev/kvasir/cmd/vllmsim", "github.com/kvasir-dev/kvasir/hack/demo").CombinedOutput()
		if err != nil {
			return fmt.Errorf("building the programs: %w\n%s", err, out)
		}
		return nil
	})
)

func TestMain(m *testing.M) {
	var err error
	code := 1
	if builtIn, err = os.MkdirTemp("", "kvasir-demo-test-"); err == nil {
		code = m.Run()
		err = os.RemoveAll(builtIn)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// bin is where the programs are.
func bin(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes for some seconds")
	}
	if err := build(); err != nil {
		t.Fatal(err)
	}
	return builtIn
}

// read reads a report and its requests.
func read(t *testing.T, dir string) (report.Report, map[string][]summary.Sample) {
	t.Helper()
	var r report.Report
	text, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	samples := map[string][]summary.Sample{}
	text, err = os.ReadFile(filepath.Join(dir, "requests.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var x struct {
			Strategy string
			summary.Sample
		}
		if err := json.Unmarshal(line, &x); err != nil {
			t.Fatal(err)
		}
		samples[x.Strategy] = append(samples[x.Strategy], x.Sample)
	}
	return r, samples
}

// TestASmallDemoRunsToItsEnd says nothing about times, and of predictions only what holds on a machine that is busy
// with other things: the demo's own checks judge the rest.
func TestASmallDemoRunsToItsEnd(t *testing.T) {
	dir := bin(t)
	temp, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	t.Setenv("TMPDIR", temp)
	var stdout, stderr strings.Builder
	code := command(context.Background(), []string{
		"--bin", dir, "--out", out, "--pods", "2", "--duration", "3s", "--speed-up", "20", "--rate", "0.2", "--strategy", "RoundRobin,MarginalCost",
	}, &stdout, &stderr)
	if code != 0 && code != exitWrong {
		t.Fatalf("exit code %d\n%s\n%s", code, stderr.String(), stdout.String())
	}
	r, samples := read(t, out)
	if len(r.Runs) != 2 {
		t.Fatalf("%d runs", len(r.Runs))
	}
	failed := 0
	for i := range r.Runs {
		run := &r.Runs[i]
		failed += len(run.Wrong)
		if want := r.Config.TraceRequests + r.Config.ChatRequests; run.Errors != 0 || run.Requests != want || r.Config.ChatRequests <= r.Config.ChatSessions {
			t.Errorf("%s: %d requests, %d errors, want %d and none: %q", run.Strategy, run.Requests, run.Errors, want, run.Wrong)
		}
		if len(run.RequestsPerPod) != 2 {
			t.Errorf("%s: requests per pod are %v", run.Strategy, run.RequestsPerPod)
		}
		checkPredictions(t, run.Strategy, samples[run.Strategy])
	}
	if want := map[bool]int{true: exitWrong}[failed > 0]; code != want {
		t.Errorf("exit code %d with %d failed checks", code, failed)
	}
	for _, want := range []string{"STRATEGY", "MarginalCost", "Requests per pod", "in flight"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, stdout.String())
		}
	}
	if page, err := os.ReadFile(filepath.Join(out, "report.html")); err != nil || !bytes.Contains(page, []byte("<svg")) {
		t.Errorf("no page: %v", err)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// checkPredictions compares what was predicted with what the engines found, for the requests whose tokens the picker
// had in time.
func checkPredictions(t *testing.T, strategy string, samples []summary.Sample) {
	t.Helper()
	var seeing []summary.Sample
	for _, x := range samples {
		if !x.Blind {
			seeing = append(seeing, x)
		}
	}
	s := summary.Of(seeing)
	if s.Miscounted > 0 || s.Delivered == 0 || s.RequestDeviation() > summary.MaxRequestDeviation {
		t.Errorf("%s: %d prompts counted differently, %d tokens predicted, %d delivered, %d off", strategy, s.Miscounted, s.Predicted, s.Delivered, s.AbsDiff)
	}
}

// started starts the demo as a program, with all its files in a directory, and returns when requests are on their way. It starts it
// again where another process was faster to take a port that the demo has found free.
func started(t *testing.T, temp string) *exec.Cmd {
	t.Helper()
	dir := bin(t)
	for attempt := 1; ; attempt++ {
		cmd := exec.Command(filepath.Join(dir, "demo"), "--pods", "2", "--duration", "10m", "--speed-up", "1", "--out", filepath.Join(temp, "out"))
		cmd.Env = append(os.Environ(), "TMPDIR="+temp)
		var stderr bytes.Buffer // of cmd until it has ended
		cmd.Stderr = &stderr
		stdout, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if cmd.ProcessState == nil {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
		})
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if strings.Contains(lines.Text(), "in flight") {
				return cmd
			}
		}
		err = cmd.Wait()
		taken := strings.Contains(stderr.String(), "another program listens") || strings.Contains(stderr.String(), "address already in use")
		if attempt == 3 || !taken {
			t.Fatalf("the demo has ended (%v): %s", err, stderr.String())
		}
	}
}

// children are the processes whose environment names a directory.
func children(t *testing.T, temp string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, []byte("TMPDIR="+temp+"\x00")) {
			out = append(out, file)
		}
	}
	return out
}

func TestASignalEndsEverything(t *testing.T) {
	for name, tc := range map[string]struct {
		signal syscall.Signal
		// cleans says that the demo lives long enough to take its files away.
		cleans bool
	}{
		"Ctrl-C":           {syscall.SIGINT, true},
		"a polite kill":    {syscall.SIGTERM, true},
		"a terminal's end": {syscall.SIGHUP, true},
		"a hard kill":      {syscall.SIGKILL, false},
	} {
		t.Run(name, func(t *testing.T) {
			if !tc.cleans && runtime.GOOS != "linux" {
				t.Skip("only Linux ends children with their parent")
			}
			t.Parallel()
			temp := t.TempDir()
			cmd := started(t, temp)
			if n := len(children(t, temp)); n != 4 && hasProc() {
				t.Errorf("%d processes run, want the demo, 2 pods and the picker", n)
			}
			if err := cmd.Process.Signal(tc.signal); err != nil {
				t.Fatal(err)
			}
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) {
				t.Fatalf("the demo ended with %v", err)
			}
			if tc.cleans && exit.ExitCode() != exitInterrupted {
				t.Errorf("exit code %d, want %d", exit.ExitCode(), exitInterrupted)
			}
			for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				left := children(t, temp)
				if len(left) == 0 {
					break
				}
				if tc.cleans || time.Now().After(end) {
					t.Fatalf("left running: %v", left)
				}
			}
			if left, err := os.ReadDir(temp); tc.cleans && (err != nil || len(left) > 0) {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// hasProc reports whether processes can be looked at.
func hasProc() bool {
	_, err := os.Stat("/proc/self/environ")
	return err == nil
}

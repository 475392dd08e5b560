package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/kvasir-dev/kvasir/internal/cli/view"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
	"github.com/kvasir-dev/kvasir/test/docpage"
)

var update = flag.Bool("update", false, "rewrite the outputs in the docs")

// cli runs kubectl-kvasir against the picker.
func (f *fleet) cli(input string, args ...string) (status int, out, errs string) {
	f.t.Helper()
	cmd := exec.CommandContext(f.t.Context(), filepath.Join(filepath.Dir(pickerBinary), "kubectl-kvasir"), args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	cmd.Dir = f.requests
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		f.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// ran runs kubectl-kvasir, which must succeed.
func (f *fleet) ran(args ...string) string {
	f.t.Helper()
	status, out, errs := f.cli("", append(args, "--picker", f.metrics)...)
	if status != 0 {
		f.t.Fatalf("%v: status %d, %s%s", args, status, out, errs)
	}
	return out
}

// TestTheCommandLineShowsWhatAPickerSees: of a picker without a cluster.
func TestTheCommandLineShowsWhatAPickerSees(t *testing.T) {
	f := newFleetWith(t, 2, vllmsim.Config{SpeedUp: 10}, "MarginalCost", func(f *fleet) {
		key := filepath.Join(t.TempDir(), "key") // so that ties fall as they did in the docs
		if err := os.WriteFile(key, bytes.Repeat([]byte{7}, 32), 0o600); err != nil {
			t.Fatal(err)
		}
		f.args = append(f.args, "--name", "picker-0", "--key-file", key)
	})
	for i := range 6 {
		if got := f.do("/v1/completions", completion(append(tokens(1, 320), tokens(100+i, 64)...), 1)); got.status != 200 {
			t.Fatal(got)
		}
	}
	holder := ""
	var pools view.Statuses
	f.until("the answers are counted, and the blocks known", func() bool {
		if err := json.Unmarshal([]byte(f.ran("status", "-o", "json")), &pools); err != nil {
			t.Fatal(err)
		}
		for _, m := range pools.Pools[0].Members {
			if m.Live.Unique > 0 {
				holder = m.Name
			}
		}
		l := pools.Pools[0].Live
		return l != nil && l.Hits != nil && l.Hits.Answers == 6 && holder != ""
	})
	if h := pools.Pools[0].Live.Hits; h.Hit < 0.5 || h.Divergence > 0.1 || len(pools.Pools[0].Problems) != 0 {
		t.Errorf("%+v, problems %+v", h, pools.Pools[0].Problems)
	}

	request, err := json.Marshal(completion(append(tokens(1, 320), tokens(999, 64)...), 1))
	if err != nil {
		t.Fatal(err)
	}
	f.requests = t.TempDir()
	if err := os.WriteFile(filepath.Join(f.requests, "request.json"), request, 0o600); err != nil {
		t.Fatal(err)
	}
	var e api.Explanation
	if err := json.Unmarshal([]byte(f.ran("explain", "-f", "request.json", "-o", "json")), &e); err != nil {
		t.Fatal(err)
	}
	if len(e.Candidates) != 2 || e.Candidates[0].Pod != holder || e.Candidates[0].Matched < 304 || len(e.Candidates[0].Terms) == 0 || e.Candidates[0].Cost > e.Candidates[1].Cost {
		t.Errorf("explained as %+v", e)
	}

	var last api.Decision
	f.until("a decision is reported", func() bool {
		lines := strings.Split(strings.TrimSpace(f.ran("decisions", "-o", "json")), "\n")
		return json.Unmarshal([]byte(lines[len(lines)-1]), &last) == nil
	})
	if last.Outcome != "completed" || len(last.Candidates) != 2 {
		t.Errorf("the last decision is %+v", last)
	}

	var hot struct {
		Prefixes []api.Prefix `json:"prefixes"`
	}
	if err := json.Unmarshal([]byte(f.ran("prefixes", "m", "-o", "json")), &hot); err != nil {
		t.Fatal(err)
	}
	if len(hot.Prefixes) == 0 || hot.Prefixes[0].Holders[0].Pod != holder {
		t.Errorf("hot are %+v", hot)
	}
	for _, most := range [][]string{{"decisions", "--tail", "0"}, {"decisions", "--tail", "512"}, {"prefixes", "--limit", "1"}, {"trace", "--limit", "100"}} {
		f.ran(most...) // pickers take what the command line takes
	}
	if out := f.ran("top", "--once"); !strings.Contains(out, "default/m") || !strings.Contains(out, holder) {
		t.Errorf("top shows\n%s", out)
	}
	if out := f.ran("doctor"); !strings.Contains(out, ", 0 failures") {
		t.Errorf("doctor finds\n%s", out)
	}
	f.documented()
}

// TestTopRunsOnATerminal: it shows the picker, follows the terminal's size, and quits on q.
func TestTopRunsOnATerminal(t *testing.T) {
	f := newFleet(t, 2, vllmsim.Config{SpeedUp: 10}, "MarginalCost")
	cmd := exec.CommandContext(t.Context(), filepath.Join(filepath.Dir(pickerBinary), "kubectl-kvasir"), "top", "--interval", "200ms", "--picker", f.metrics)
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: 200, Rows: 40})
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	seen := &logBuffer{}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(seen, terminal)
	}()
	f.until("pods are shown in colours", func() bool {
		return strings.Contains(seen.String(), "pod-1") && strings.Contains(seen.String(), "\x1b[32mServing\x1b[0m")
	})
	if err := pty.Setsize(terminal, &pty.Winsize{Cols: 20, Rows: 10}); err != nil {
		t.Fatal(err)
	}
	f.until("the small terminal is filled", func() bool {
		return strings.HasSuffix(strings.TrimRight(seen.String(), " "), "\x1b[J") && strings.Contains(seen.String(), "kubectl kvasir top  \x1b[K")
	})
	if _, err := terminal.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	<-read
	if !strings.Contains(seen.String(), "\x1b[?1049l") {
		t.Error("the screen is not given back")
	}
}

// TestTheUIServesThePickersPage until it is interrupted.
func TestTheUIServesThePickersPage(t *testing.T) {
	f := newFleet(t, 1, vllmsim.Config{SpeedUp: 10}, "MarginalCost")
	cmd := exec.CommandContext(t.Context(), filepath.Join(filepath.Dir(pickerBinary), "kubectl-kvasir"), "ui", "--picker", f.metrics)
	out := &logBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url := ""
	f.until("the address is printed", func() bool {
		url, _, _ = strings.Cut(out.String(), " ")
		return strings.HasPrefix(url, "http://127.0.0.1:")
	})
	if status, body := f.get(url); status != 200 || !strings.Contains(strings.ToLower(body), "<html") {
		t.Errorf("status %d, %s", status, body)
	}
	if status, body := f.get(url + "status?output=json"); status != 200 || !strings.Contains(body, `"live"`) {
		t.Errorf("status %d, %s", status, body)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, out.String())
	}
}

// documented runs the examples of the page that ask a picker without a cluster.
func (f *fleet) documented() {
	f.t.Helper()
	for _, c := range []string{
		"status --picker http://127.0.0.1:9090", "explain -f request.json --picker http://127.0.0.1:9090", "decisions --tail 3 --picker http://127.0.0.1:9090",
		"prefixes m --picker http://127.0.0.1:9090", "doctor --picker http://127.0.0.1:9090",
	} {
		address := strings.TrimPrefix(f.metrics, "http://")
		status, out, errs := f.cli("", strings.Fields(strings.ReplaceAll(c, "127.0.0.1:9090", address))...)
		if status != 0 {
			f.t.Errorf("%s: status %d, %s", c, status, errs)
		}
		if err := docpage.Check("kubectl-kvasir.md", "kubectl kvasir "+c, strings.ReplaceAll(out, address, "127.0.0.1:9090"), *update); err != nil {
			f.t.Error(err)
		}
	}
}

package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// TestALogThatTakesNothingStopsNoRequest: a container's log is a pipe that is not read while the node's disk is full, in some
// runtimes; or a file on that disk. The picker serves, and ends when it is to.
func TestALogThatTakesNothingStopsNoRequest(t *testing.T) {
	unread := func(t *testing.T) *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		return w
	}
	full := func(t *testing.T) *os.File {
		f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skip("there is no /dev/full")
		}
		return f
	}
	for name, open := range map[string]func(*testing.T) *os.File{"a pipe that is not read": unread, "a full disk": full} {
		t.Run(name, func(t *testing.T) {
			output := open(t)
			defer output.Close()
			f := newFleetWith(t, 1, vllmsim.Config{}, "RoundRobin", func(f *fleet) {
				f.output, f.args = output, []string{"--log-level", "trace"}
			})
			for n := range 500 { // more than a pipe holds, which is 64 KiB
				if a := f.do("/v1/completions", completion([]int{n, 2, 3}, 1)); a.status != http.StatusOK {
					t.Fatalf("request %d: status %d", n, a.status)
				}
			}
			if status, body := f.get(f.health + "/readyz"); status != http.StatusOK {
				t.Errorf("readiness: %d %s", status, body)
			}
		})
	}
}

// TestAPickerStartsAndServesOnAFullDisk: with a decision log that cannot be written, which begins once there is room.
func TestAPickerStartsAndServesOnAFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full")
	}
	log := t.TempDir()
	files := map[string]string{"kvasir_decision_log_records_total": filepath.Join(log, "decisions.jsonl"), "kvasir_usage_records_total": filepath.Join(log, "usage.jsonl")}
	for _, file := range files {
		if err := os.Symlink("/dev/full", file); err != nil {
			t.Fatal(err)
		}
	}
	f := newFleetWith(t, 1, vllmsim.Config{}, "RoundRobin", func(f *fleet) {
		f.write("policy.yaml", `apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: m}
spec:
  targetRefs: [{name: m}]
  strategy: {type: RoundRobin}
  decisions: {logPercent: 100}
`)
		f.args = []string{"--decision-log", log, "--usage-log", log}
	})
	ask := func() {
		if a := f.do("/v1/completions", completion([]int{1, 2, 3}, 1)); a.status != http.StatusOK {
			t.Fatalf("status %d", a.status)
		}
	}
	ask()
	for metric, file := range files {
		f.until("the record is counted as dropped: "+metric, func() bool { return f.metric(metric, `result="dropped"`) > 0 })
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		f.until("records are written again: "+metric, func() bool {
			ask()
			return f.metric(metric, `result="written"`) > 0
		})
	}
}

package server

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/usagelog"
)

// TestUsageIsRecorded: a line for each request, counted and served; the lines that wait are written at the end, and the next
// process continues the file. Without the flag there is nothing.
func TestUsageIsRecorded(t *testing.T) {
	dir, log, e := t.TempDir(), t.TempDir(), engine(t, "m")
	put(t, filepath.Join(dir, "all.yaml"), poolText("m", "m", "")+"---\n"+sliceText(t, "m", "pod", e))
	const n = 5
	for life := 1; life <= 2; life++ {
		t.Run("", func(t *testing.T) {
			p := runOn(t, dir, "--usage-log", log)
			p.awaitReady()
			for range n {
				if status, body := p.complete("m"); status != http.StatusOK {
					t.Fatalf("%d: %s", status, body)
				}
			}
			if status, _ := p.complete("none"); status != http.StatusNotFound {
				t.Fatalf("%d for an unknown model", status)
			}
			if life == 2 {
				return
			}
			p.eventually("all are written", func() bool {
				_, page := p.get(p.listeners.metrics, "/metrics")
				return strings.Contains(page, `kvasir_usage_records_total{result="written"} 6`) &&
					strings.Contains(page, `kvasir_usage_records_total{result="dropped"} 0`)
			})
			text, err := os.ReadFile(filepath.Join(log, "usage.jsonl"))
			if status, served := p.get(p.listeners.metrics, "/usage-log"); status != http.StatusOK || err != nil || served != string(text) {
				t.Errorf("%d %v: the log is served as\n%s\nwant\n%s", status, err, served, text)
			}
		})
	}
	text, err := os.ReadFile(filepath.Join(log, "usage.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]int{}
	for line := range strings.Lines(string(text)) {
		var r usagelog.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		outcomes[r.Outcome]++
		if completed := r.Outcome == "completed"; completed && (r.Endpoint != "pod/0" || r.CompletionTokens != 2 || r.Pool != "m") || !completed && r.Reason != "model" {
			t.Errorf("%s", line)
		}
	}
	if outcomes["completed"] != 2*n || outcomes["refused"] != 2 || len(outcomes) != 2 {
		t.Errorf("records of two processes: %v", outcomes)
	}

	without := runOn(t, dir)
	without.awaitReady()
	if _, page := without.get(without.listeners.metrics, "/metrics"); strings.Contains(page, "kvasir_usage") {
		t.Error("records that are not made are counted")
	}
	if status, _ := without.get(without.listeners.metrics, "/usage-log"); status != http.StatusNotFound {
		t.Errorf("a log that is not there is served with %d", status)
	}
}

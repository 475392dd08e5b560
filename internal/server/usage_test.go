package server

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	"google.golang.org/protobuf/proto"

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

// TestUsageIsExported: a log record for each request arrives at the collector, also those that wait when the process ends; they are
// counted, and no file is needed. While the collector does not answer, requests are served.
func TestUsageIsExported(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "http/protobuf")
	var got, hanging atomic.Int64
	release := make(chan struct{})
	station := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		in := new(collector.ExportLogsServiceRequest)
		if err != nil || r.URL.Path != "/v1/logs" || proto.Unmarshal(body, in) != nil {
			t.Errorf("%s: %v", r.URL, err)
		}
		hanging.Add(1)
		<-release
		for _, of := range in.GetResourceLogs() {
			for _, scope := range of.GetScopeLogs() {
				got.Add(int64(len(scope.GetLogRecords())))
			}
		}
		w.WriteHeader(http.StatusOK)
	}))
	t.Cleanup(station.Close)
	dir, e := t.TempDir(), engine(t, "m")
	put(t, filepath.Join(dir, "all.yaml"), poolText("m", "m", "")+"---\n"+sliceText(t, "m", "pod", e))
	const n = 5
	t.Run("", func(t *testing.T) {
		p := runOn(t, dir, "--usage-endpoint", station.URL)
		p.awaitReady()
		ask := func() {
			for range n {
				if status, body := p.complete("m"); status != http.StatusOK {
					t.Fatalf("%d: %s", status, body)
				}
			}
		}
		ask()
		p.eventually("the collector is asked", func() bool { return hanging.Load() > 0 })
		ask() // while it does not answer
		close(release)
		p.eventually("all are sent", func() bool {
			_, page := p.get(p.listeners.metrics, "/metrics")
			return strings.Contains(page, `kvasir_usage_exports_total{result="sent"} 10`) && strings.Contains(page, `kvasir_usage_exports_total{result="lost"} 0`)
		})
		if status, _ := p.get(p.listeners.metrics, "/usage-log"); status != http.StatusNotFound {
			t.Errorf("a log that is not there is served with %d", status)
		}
		ask() // which the end of the process sends
	})
	if got.Load() != 3*n {
		t.Errorf("%d records arrived of %d requests", got.Load(), 3*n)
	}
}

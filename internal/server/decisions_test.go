package server

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/decisionlog"
)

// TestDecisionsAreLogged: a line for each request with what the choice was made of and what became of it, and a metric
// that counts them; nothing without the flag.
func TestDecisionsAreLogged(t *testing.T) {
	dir, log, e := t.TempDir(), t.TempDir(), engine(t, "m")
	put(t, filepath.Join(dir, "all.yaml"), poolText("m", "m", "")+"---\n"+sliceText(t, "m", "pod", e)+`---
apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: m, namespace: default}
spec: {targetRefs: [{name: m}], decisions: {logPercent: 100}}
`)
	p := runOn(t, dir, "--decision-log", log)
	p.awaitReady()
	const n = 5
	for range n {
		if status, body := p.complete("m"); status != http.StatusOK {
			t.Fatalf("%d: %s", status, body)
		}
	}
	p.eventually("all are written", func() bool {
		_, page := p.get(p.listeners.metrics, "/metrics")
		return strings.Contains(page, `kvasir_decision_log_records_total{result="written"} 5`) &&
			strings.Contains(page, `kvasir_decision_log_records_total{result="dropped"} 0`)
	})
	text, err := os.ReadFile(filepath.Join(log, "decisions.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	records, skipped, err := decisionlog.Read(bytes.NewReader(text))
	if err != nil || skipped.Lines > 0 || len(records) != n {
		t.Fatalf("%d records, %d lines skipped, %v", len(records), skipped.Lines, err)
	}
	for _, r := range records {
		if r.Outcome != "completed" || r.Endpoint != "pod/0" || r.Scored != 1 || len(r.Candidates) != 1 || r.Candidates[0].Endpoint != r.Endpoint ||
			r.Candidates[0].Predicted <= 0 || r.Output != 2 || r.Strategy != "MarginalCost" {
			t.Errorf("%+v", r)
		}
	}

	if status, served := p.get(p.listeners.metrics, "/decision-log"); status != http.StatusOK || served != string(text) {
		t.Errorf("%d: the log is served as\n%s\nwant\n%s", status, served, text)
	}

	without := runOn(t, dir)
	without.awaitReady()
	if _, page := without.get(without.listeners.metrics, "/metrics"); strings.Contains(page, "kvasir_decision_log") {
		t.Error("a log that is not there is counted")
	}
	if status, _ := without.get(without.listeners.metrics, "/decision-log"); status != http.StatusNotFound {
		t.Errorf("a log that is not there is served with %d", status)
	}
}

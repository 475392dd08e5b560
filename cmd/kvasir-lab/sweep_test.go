package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestASweepGoesOnWhereItWasInterrupted: what a file keeps is not run again, and is not taken for another sweep's.
func TestASweepGoesOnWhereItWasInterrupted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sweep.json")
	sweep := func(args ...string) (out, progress string, err error) {
		var o, e bytes.Buffer
		root := newRoot(stdio{Out: &o, Err: &e})
		root.SetArgs(append([]string{
			"sweep", "--workloads", "chat", "--requests", "40", "--pods", "2", "--kv-tokens", "0", "--profiles", "8b-h100", "--loads", "0.5", "--seeds", "1",
			"--policies", "LMetric,MarginalCost*4", "--resume", file, "-o", "json",
		}, args...))
		err = root.ExecuteContext(t.Context())
		return o.String(), e.String(), err
	}
	first, ran, err := sweep()
	if err != nil || !strings.Contains(ran, "2 of 2") {
		t.Fatalf("%s: %v", ran, err)
	}
	second, ran, err := sweep("--parallel", "2")
	if err != nil || strings.Contains(ran, "of") || first != second {
		t.Errorf("%s: %v\n%s\nfirst\n%s", ran, err, second, first)
	}
	if _, _, err := sweep("--engine-model", "uneven"); err == nil || !strings.Contains(err.Error(), "other parameters") {
		t.Errorf("another sweep went on with it: %v", err)
	}
	if _, _, err := sweep("--engine-model", "odd"); err == nil {
		t.Error("an engine model of no such name is accepted")
	}
}

// TestASweepTellsATraceFromWhatIsGenerated under the same name, and refuses two traces of one name.
func TestASweepTellsATraceFromWhatIsGenerated(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "trace.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	one, two := filepath.Join(dir, "chat.jsonl"), filepath.Join(dir, "chat.2.jsonl")
	for _, file := range []string{one, two} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sweep := "sweep --workloads chat --requests 40 --pods 2 --kv-tokens 0 --profiles 8b-h100 --loads 0.5 --seeds 1 --policies LMetric --cells --traces "
	if status, out, errs := exec(t, "", strings.Fields(sweep+one)...); status != 0 || !strings.Contains(out, "chat (trace), 2 x") || !strings.Contains(out, "\nchat, 2 x") {
		t.Errorf("status %d, %s%s", status, out, errs)
	}
	if status, _, errs := exec(t, "", strings.Fields(sweep+one+","+two)...); status != 2 || !strings.Contains(errs, "two workloads") {
		t.Errorf("status %d, %s", status, errs)
	}
}

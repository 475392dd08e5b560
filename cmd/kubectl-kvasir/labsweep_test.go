package main

import (
	"bytes"
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
			"lab", "sweep", "--workloads", "chat", "--requests", "40", "--pods", "2", "--kv-tokens", "0", "--profiles", "8b-h100", "--loads", "0.5", "--seeds", "1",
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

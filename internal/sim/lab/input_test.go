package lab

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/decisionlog"
	"github.com/kvasir-dev/kvasir/internal/sim/trace"
)

// TestAPickersLogIsAWorkload: what a picker wrote of a run replays: the same requests in the same order with the same
// lengths, prefixes and sessions, and a run of it finds about as much in the caches.
func TestAPickersLogIsAWorkload(t *testing.T) {
	dir := t.TempDir()
	log, err := decisionlog.Open(decisionlog.Options{Dir: dir, FileBytes: 1 << 30, Files: 1})
	if err != nil {
		t.Fatal(err)
	}
	w, err := Generate("agentic", 400, 1)
	if err != nil {
		t.Fatal(err)
	}
	c := small(t, "MarginalCost")
	c.Workload, c.Decisions = w, log
	first := run(t, c)
	log.Close()
	if written, dropped, err := log.Stats(); written != 400 || dropped != 0 || err != nil {
		t.Fatalf("%d written, %d dropped, %v", written, dropped, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "decisions.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	again, skipped, err := Read("log", strings.NewReader(string(text)+`{"timestamp": 5, "inp`))
	if err != nil || skipped.Lines != 1 {
		t.Fatalf("%d lines skipped, %v", skipped.Lines, err)
	}
	if len(again.Requests) != len(w.Requests) || again.Sessions != w.Sessions {
		t.Fatalf("%d requests of %d sessions, want %d of %d", len(again.Requests), again.Sessions, len(w.Requests), w.Sessions)
	}
	sessions := map[int]int{}
	for i := range w.Requests {
		a, b := &w.Requests[i], &again.Requests[i]
		apart := (a.At - w.Requests[0].At) - (b.At - again.Requests[0].At)
		if a.Input != b.Input || a.Output != b.Output || a.Turn != b.Turn || apart.Abs() > 2*time.Millisecond {
			t.Fatalf("request %d: %+v, was %+v", i, b, a)
		}
		if s, ok := sessions[a.Session]; ok && s != b.Session {
			t.Fatalf("request %d is of another session", i)
		}
		sessions[a.Session] = b.Session
	}
	// Ids cover 512 tokens, and a part of fewer is known only as far as its blocks are full.
	c.Workload, c.Decisions = again, nil
	if second := run(t, c); math.Abs(second.HitRatio-first.HitRatio) > 0.1 || second.Requests != first.Requests {
		t.Errorf("%d requests with %.3f hits, were %d with %.3f", second.Requests, second.HitRatio, first.Requests, first.HitRatio)
	}
}

func TestATraceIsNoLog(t *testing.T) {
	for name, text := range map[string]string{
		"of Mooncake": `{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}` + "\n",
		"empty":       "",
		"no JSON":     strings.Repeat("x", 100),
	} {
		w, _, err := Read(name, bytes.NewReader([]byte(text)))
		if (err == nil && len(w.Requests) == 1) != (name == "of Mooncake") {
			t.Errorf("%s: %v, %v", name, w, err)
		}
	}
	if slices.Contains(Generated(), "log") {
		t.Error("a workload has the name of a log")
	}
}

// TestWhatNoEngineAnsweredIsCounted: requests that were refused when they were logged are not played, and are counted in the
// report; a log without any others is an error, and answers of no tokens get one.
func TestWhatNoEngineAnsweredIsCounted(t *testing.T) {
	line := func(ms int, outcome string) string {
		return fmt.Sprintf(`{"timestamp":%d,"input_length":600,"output_length":0,"hash_ids":[1,2],"strategy":"s","outcome":%q}`+"\n", ms, outcome)
	}
	w, skipped, err := Read("log", strings.NewReader(line(1, "rejected")+line(2, "completed")+"{\n"))
	if err != nil || len(w.Requests) != 1 || w.Dropped.Refused != 1 || skipped.Lines != 1 || w.Requests[0].Output < 2 {
		t.Errorf("%+v, %d lines skipped, %v", w, skipped.Lines, err)
	}
	for name, text := range map[string]string{"a log": line(1, "rejected"), "an empty file": ""} {
		if _, _, err := Read(name, strings.NewReader(text)); !errors.Is(err, errNoRequests) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w, _, err = Read("trace", strings.NewReader(`{"timestamp": 0, "input_length": 600, "output_length": 0, "hash_ids": [0, 1]}`))
	if err != nil || w.Requests[0].Output != 1 {
		t.Errorf("%+v, %v", w, err)
	}
}

// TestAnAzureTraceIsAWorkload without prefixes: requests arrive as recorded, and no cache finds anything.
func TestAnAzureTraceIsAWorkload(t *testing.T) {
	text := trace.AzureHeader + "\n"
	for i := range 60 {
		text += fmt.Sprintf("2023-11-16 18:15:%02d.5000000,700,20\n", i)
	}
	w, skipped, err := Read("azure", strings.NewReader(text))
	if err != nil || skipped.Lines != 0 || len(w.Requests) != 60 || w.Sessions != 60 || w.Requests[59].At != 59*time.Second {
		t.Fatalf("%+v, %v", w, err)
	}
	c := small(t, "MarginalCost")
	c.Workload = w
	if r := run(t, c); r.Requests != 60 || r.HitRatio != 0 {
		t.Errorf("%d requests, hits %v", r.Requests, r.HitRatio)
	}
	if _, _, err := Read("azure", strings.NewReader(trace.AzureHeader+"\n")); !errors.Is(err, errNoRequests) {
		t.Errorf("no requests: %v", err)
	}
}

package lab

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/decisionlog"
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
	if err != nil || skipped != 1 {
		t.Fatalf("%d lines skipped, %v", skipped, err)
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
	// Ids stand for 512 tokens, and a part of fewer is known only as far as its blocks are whole.
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

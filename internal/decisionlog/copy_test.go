package decisionlog

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestACopyHasEveryKeptRecordOnce: over several files, in the order of time, and without a record that is written in part.
func TestACopyHasEveryKeptRecordOnce(t *testing.T) {
	dir := t.TempDir()
	w := open(t, Options{Dir: dir, FileBytes: 1 << 10, Files: 3})
	for i := range 40 {
		w.Write(record(i))
	}
	w.Close()
	want, _ := readAll(t, dir)

	again := open(t, Options{Dir: dir, FileBytes: 1 << 10, Files: 3})
	defer again.Close()
	f, err := os.OpenFile(filepath.Join(dir, fileName+".jsonl"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(`{"timestamp": 1, "input_l`); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := again.Copy(&text); err != nil {
		t.Fatal(err)
	}
	got, skipped, err := Read(&text)
	if err != nil || skipped.Lines > 0 {
		t.Fatalf("error %v, %d lines are no records", err, skipped.Lines)
	}
	if len(got) != len(want) || len(got) == 0 {
		t.Fatalf("%d records, want the %d that are kept", len(got), len(want))
	}
	seen := map[int64]bool{}
	for i := range got {
		if seen[got[i].Timestamp] || got[i].Timestamp != want[i].Timestamp {
			t.Fatalf("record %d is of %d, want %d", i, got[i].Timestamp, want[i].Timestamp)
		}
		seen[got[i].Timestamp] = true
	}
}

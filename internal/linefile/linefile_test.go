package linefile

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// tight is a file on a disk with little room.
type tight struct {
	text  []byte
	room  int
	stuck bool // it cannot be made shorter
}

func (f *tight) Write(p []byte) (int, error) {
	n := min(len(p), f.room-len(f.text))
	f.text = append(f.text, p[:n]...)
	if n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

func (f *tight) Truncate(size int64) error {
	if f.stuck {
		return syscall.EIO
	}
	f.text = f.text[:size]
	return nil
}

// TestAFullDiskLeavesNoTornLine: a record that does not fit is taken back, and if that fails, it is reported.
func TestAFullDiskLeavesNoTornLine(t *testing.T) {
	f := &tight{room: 13}
	size, whole, err := appendLine(f, 0, []byte("one line\n"))
	if err != nil || !whole {
		t.Fatal(whole, err)
	}
	if size, whole, err = appendLine(f, size, []byte("another\n")); err == nil || !whole || size != 9 {
		t.Errorf("size %d, whole %v, %v", size, whole, err)
	}
	f.room = 100
	if _, _, err = appendLine(f, size, []byte("a third\n")); err != nil || string(f.text) != "one line\na third\n" {
		t.Errorf("%q, %v", f.text, err)
	}
	if _, whole, err = appendLine(&tight{room: 3, stuck: true}, 0, []byte("another\n")); err == nil || whole {
		t.Errorf("whole %v, %v", whole, err)
	}
}

// TestFilesOfOthersAreLeftAlone: they are neither removed nor read as records.
func TestFilesOfOthersAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	foreign := filepath.Join(dir, "usage-2024-export.jsonl")
	if err := os.WriteFile(foreign, []byte("foreign\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := Open[string](Options{Title: "log", Dir: dir, Name: "usage", FileBytes: 1 << 10, Files: 2})
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		record := strings.Repeat("x", 900)
		w.Write(&record)
	}
	w.Close()
	var all strings.Builder
	if err := w.Copy(&all); err != nil || strings.Contains(all.String(), "foreign") || strings.Count(all.String(), "\n") != 2 {
		t.Errorf("%d records, %v", strings.Count(all.String(), "\n"), err)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Error(err)
	}
}

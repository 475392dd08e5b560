package decisionlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/sim/trace"
)

func record(i int) *Record {
	return &Record{
		Timestamp: int64(1000 + i), Input: 1000, Output: 10, Blocks: []uint64{1, uint64(2 + i)}, Session: 7, Pool: "p", Model: "m",
		Strategy: "MarginalCost", Tokens: "exact", Candidates: []Candidate{{Endpoint: "pod/0", Matched: 512}}, Scored: 1,
		Outcome: "completed", Cached: 512, Duration: 12.5,
	}
}

func open(t *testing.T, o Options) *Writer {
	t.Helper()
	w, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func readAll(t *testing.T, dir string) (list []Record, skipped int) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	list, bad, err := Read(&all)
	if err != nil {
		t.Fatal(err)
	}
	return list, bad.Lines
}

func TestWhatIsWrittenIsReadSortedByTime(t *testing.T) {
	dir := t.TempDir()
	w := open(t, Options{Dir: dir, FileBytes: 1 << 20, Files: 2})
	for _, i := range []int{3, 1, 2} {
		w.Write(record(i))
	}
	w.Close()
	if n, dropped, err := w.Stats(); n != 3 || dropped != 0 || err != nil {
		t.Errorf("%d written, %d dropped, %v", n, dropped, err)
	}
	list, _ := readAll(t, dir)
	if diff := cmp.Diff([]Record{*record(1), *record(2), *record(3)}, list); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The same lines are a trace.
	b, err := os.ReadFile(filepath.Join(dir, fileName+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(b), "\n")
	requests, err := trace.Read(strings.NewReader(lines[1] + lines[2] + lines[0]))
	if err != nil || len(requests) != 3 || requests[0].Input != 1000 || requests[0].Blocks[1] != 3 {
		t.Errorf("as a trace: %v %v", requests, err)
	}
}

func TestFilesAreBoundedInSizeAndNumber(t *testing.T) {
	dir := t.TempDir()
	now := time.Unix(0, 0)
	w := open(t, Options{Dir: dir, FileBytes: 2 << 10, Files: 3, Now: func() time.Time { now = now.Add(time.Second); return now }})
	for i := range 100 {
		w.Write(record(i))
	}
	w.Close()
	names, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if len(names) != 3 {
		t.Errorf("files %v, want 3", names)
	}
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil || info.Size() > 2<<10 || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
	if list, _ := readAll(t, dir); list[len(list)-1].Timestamp != 1099 {
		t.Errorf("the last record is of %d", list[len(list)-1].Timestamp)
	}
}

// TestTheNewestRecordsAreKept: however the clock is set meanwhile.
func TestTheNewestRecordsAreKept(t *testing.T) {
	for _, set := range []time.Duration{0, time.Hour, -time.Hour} {
		dir := t.TempDir()
		now, calls := time.Unix(1_800_000_000, 0), 0
		w := open(t, Options{Dir: dir, FileBytes: 2 << 10, Files: 3, Now: func() time.Time {
			if calls++; calls == 4 {
				now = now.Add(set)
			}
			return now
		}})
		for i := range 100 {
			w.Write(record(i))
		}
		w.Close()
		list, _ := readAll(t, dir)
		if calls < 6 || len(list) < 10 {
			t.Fatalf("%d files were ended, %d records are left", calls, len(list))
		}
		for i, r := range list {
			if want := int64(1100 - len(list) + i); r.Timestamp != want {
				t.Errorf("clock set by %s: record %d of %d is of %d, want %d", set, i, len(list), r.Timestamp, want)
				break
			}
		}
		var copied bytes.Buffer
		if err := w.Copy(&copied); err != nil {
			t.Fatal(err)
		}
		last := int64(0)
		for line := range bytes.Lines(copied.Bytes()) {
			var r Record
			if err := json.Unmarshal(line, &r); err != nil || r.Timestamp <= last {
				t.Fatalf("clock set by %s: a record of %d is copied behind one of %d: %v", set, r.Timestamp, last, err)
			}
			last = r.Timestamp
		}
	}
}

func TestALogGoesOnAfterAKill(t *testing.T) {
	dir := t.TempDir()
	o := Options{Dir: dir, FileBytes: 1 << 20, Files: 2}
	w := open(t, o)
	salt := w.Salt()
	w.Write(record(1))
	w.Close()
	f, err := os.OpenFile(filepath.Join(dir, fileName+".jsonl"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"timestamp":17,"inp`); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	w = open(t, o)
	if w.Salt() != salt {
		t.Error("the salt has changed")
	}
	w.Write(record(2))
	w.Close()
	list, skipped := readAll(t, dir)
	if len(list) != 2 || skipped != 1 {
		t.Errorf("%d records, %d skipped", len(list), skipped)
	}
}

func TestAFullDiskIsToldAndPasses(t *testing.T) {
	dir := t.TempDir()
	w := open(t, Options{Dir: dir, FileBytes: 1 << 10, Files: 2, Now: func() time.Time { return time.Unix(0, 0) }})
	// A directory where an ended file would go: renaming fails.
	blocked := filepath.Join(dir, "decisions-19700101T000000.000000000.jsonl")
	if err := os.MkdirAll(filepath.Join(blocked, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		w.Write(record(i))
	}
	w.Close()
	if n, dropped, err := w.Stats(); err == nil || dropped == 0 || n+dropped != 20 {
		t.Errorf("%d written, %d dropped, %v", n, dropped, err)
	}
}

// TestALogBeginsOnAFullDisk: the picker that writes it must start, and the log begins once there is room, with one salt.
func TestALogBeginsOnAFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full")
	}
	for name, torn := range map[string]int{"nothing is there": -1, "an empty salt": 0, "half of a salt": 4} {
		dir := t.TempDir()
		if torn >= 0 {
			if err := os.WriteFile(filepath.Join(dir, saltFile), make([]byte, torn), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("/dev/full", filepath.Join(dir, saltFile+".new")); err != nil {
			t.Fatal(err)
		}
		o := Options{Dir: dir, FileBytes: 1 << 20, Files: 2}
		w := open(t, o)
		if _, _, err := w.Stats(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: the fault is %v", name, err)
		}
		salt := w.Salt()
		w.Write(record(1))
		w.Write(record(2))
		w.Close()
		if written, dropped, _ := w.Stats(); written != 2 || dropped != 0 {
			t.Errorf("%s: %d records are written and %d dropped once there is room", name, written, dropped)
		}
		if w = open(t, o); w.Salt() != salt {
			t.Errorf("%s: the salt has changed", name)
		}
		w.Close()
	}
}

func TestIDsTellPrefixesApartAndNothingElse(t *testing.T) {
	keys := map[int]uint64{0: 0, 512: 11, 1008: 12, 1024: 13}
	at := func(n int) uint64 { // keys of full blocks of 16
		best := 0
		for end := range keys {
			if end <= n && end > best {
				best = end
			}
		}
		return keys[best]
	}
	salt := Salt(1)
	long, short := salt.AppendBlocks(nil, 1024, at), salt.AppendBlocks(nil, 1010, at)
	if len(long) != 2 || len(short) != 2 || long[0] != short[0] || long[1] == short[1] {
		t.Errorf("%v %v", long, short)
	}
	if exact := salt.AppendBlocks(nil, 512, at); len(exact) != 1 || exact[0] != long[0] {
		t.Errorf("512 tokens are %v", exact)
	}
	if none := salt.AppendBlocks(nil, 0, at); len(none) != 0 {
		t.Errorf("0 tokens are %v", none)
	}
	for _, id := range long {
		if id == 0 || id >= 1<<53 || id == 11 || id == 13 {
			t.Errorf("id %d", id)
		}
	}
	if other := Salt(2).AppendBlocks(nil, 1024, at); other[0] == long[0] {
		t.Error("another log has the same ids")
	}
}

func TestReadRefusesWhatIsNoLog(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":     "hello\nworld\n",
		"wrong ids":   `{"timestamp":1,"input_length":600,"output_length":1,"hash_ids":[1]}`,
		"no time":     `{"input_length":1,"output_length":1,"hash_ids":[1]}`,
		"a long line": `{"timestamp":1,"pool":"` + strings.Repeat("x", maxLine) + `"}`,
	} {
		if _, _, err := Read(strings.NewReader(text)); err == nil {
			t.Errorf("%s: read", name)
		} else if name != "a long line" && !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOpenTellsWhatIsWrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]Options{
		"no directory": {Dir: file, FileBytes: 1 << 20, Files: 1},
		"no size":      {Dir: t.TempDir(), Files: 1},
		"no files":     {Dir: t.TempDir(), FileBytes: 1 << 20},
	} {
		if _, err := Open(o); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
}

// TestBadLinesAreSkippedAndTold: whatever is wrong with them, by their numbers; empty ones are none.
func TestBadLinesAreSkippedAndTold(t *testing.T) {
	good, err := json.Marshal(record(1))
	if err != nil {
		t.Fatal(err)
	}
	text := string(good) + "\n{\"timestamp\":1\n\n" + `{"timestamp":1,"input_length":600,"output_length":1,"hash_ids":[1]}` + "\n" + strings.Repeat("x\n", 20) + string(good)
	list, skipped, err := Read(strings.NewReader(text))
	if err != nil || len(list) != 2 || skipped.Lines != 22 {
		t.Fatalf("%d records, %d lines skipped, %v", len(list), skipped.Lines, err)
	}
	for i, want := range []int{2, 4, 5} {
		if l := skipped.First[i]; l.Number != want || l.Err == nil {
			t.Errorf("line %d is reported as %d: %v", want, l.Number, l.Err)
		}
	}
	if told := skipped.String(); len(skipped.First) != maxTold || !strings.Contains(told, "22; line 2: ") || !strings.Contains(told, "line 4: 1 ids for 600 tokens") || !strings.HasSuffix(told, "...") {
		t.Errorf("told: %s", told)
	}
	if _, none, err := Read(strings.NewReader("x\ny\n")); !errors.Is(err, ErrFormat) || none.Lines != 2 {
		t.Errorf("a log without a record: %v", err)
	}
	if all := (&Skipped{}).String(); all != "" {
		t.Errorf("no skipped lines are reported as %q", all)
	}
}

func TestAnswersOfUnknownLengthAreAsLongAsUsual(t *testing.T) {
	list := []Record{*record(1), *record(2)}
	list[0].Output, list[1].Output = 0, 0
	for _, q := range Trace(list) {
		if q.Output != usualAnswer {
			t.Errorf("an answer of %d tokens", q.Output)
		}
	}
}

func FuzzRead(f *testing.F) {
	line, err := json.Marshal(record(1))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add([]byte(fmt.Sprintf("%s\n%s\n{", line, line)))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, _, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		for i := range list {
			if i > 0 && list[i].Timestamp < list[i-1].Timestamp {
				t.Fatal("out of order")
			}
		}
	})
}

func BenchmarkWrite(b *testing.B) {
	w, err := Open(Options{Dir: b.TempDir(), FileBytes: 64 << 20, Files: 2})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	r := record(1)
	b.ReportAllocs()
	for b.Loop() {
		w.Write(r)
	}
}

func TestALogBecomesATrace(t *testing.T) {
	list := []Record{*record(1), *record(2), *record(3), *record(4), *record(5), *record(6)}
	list[1].Output, list[1].Blocks = 0, nil
	list[2].Outcome = "rejected"
	list[4].Outcome = "refused"
	list[5].Tokens = "none"
	got := Trace(list)
	if len(got) != 3 || got[0].Timestamp != 0 || got[2].Timestamp != 3 || got[1].Output != 10 {
		t.Fatalf("%+v", got)
	}
	if got[0].Blocks[0] != got[2].Blocks[0] || got[0].Blocks[1] == got[2].Blocks[1] || *got[0].Session != *got[2].Session {
		t.Errorf("prefixes are not kept: %+v", got)
	}
	for _, id := range got[1].Blocks {
		if id == got[0].Blocks[0] || id == got[0].Blocks[1] {
			t.Error("a prompt that is not known shares a prefix")
		}
	}
	var text bytes.Buffer
	if err := trace.WriteGzip(&text, got); err != nil {
		t.Fatal(err)
	}
	if _, err := trace.ReadGzip(&text); err != nil {
		t.Errorf("it is no trace: %v", err)
	}
}

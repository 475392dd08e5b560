package logging

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
)

// entry is a line of a log.
type entry struct {
	Msg      string
	N, Lines int
}

func decode(t *testing.T, line []byte) (e entry) {
	t.Helper()
	if err := json.Unmarshal(line, &e); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return e
}

// TestALogThatTakesNothingStopsNobody: lines are dropped while the pipe is full, and counted once it is read again; those that are
// written are whole and in their order.
func TestALogThatTakesNothingStopsNobody(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	log := New(w, Levels["info"], JSON)
	const lines = 50_000 // several MiB
	var writing sync.WaitGroup
	writing.Go(func() {
		for n := range lines {
			log.Info("A line with some text in it, as most lines have", "n", n+1)
		}
	})
	writing.Wait()

	seen, last, lost := 0, 0, 0
	in := bufio.NewReader(r)
	for n := lines; last < lines+1 && lost+seen < lines+1; {
		line, err := in.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		switch e := decode(t, line); {
		case e.Lines > 0:
			lost += e.Lines
		case e.N <= last:
			t.Fatalf("line %d follows %d", e.N, last)
		default:
			seen, last = seen+1, e.N
		}
		if n == lines { // one more, after which the count of the lost comes at the latest
			n++
			go log.Info("The last line", "n", lines+1)
		}
	}
	if lost == 0 || seen+lost != lines+1 {
		t.Errorf("%d lines are written, %d are lost, of %d", seen, lost, lines+1)
	}
	_ = w.Close()
	_ = r.Close()
}

// full is a file on a disk that has room for so many bytes.
type full struct {
	bytes.Buffer
	room int
}

func (f *full) Write(p []byte) (int, error) {
	n := min(len(p), f.room)
	f.room -= n
	f.Buffer.Write(p[:n])
	if n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

// TestAFullDiskLosesLinesAndSaysSo: once there is room again, the next line says how many were lost.
func TestAFullDiskLosesLinesAndSaysSo(t *testing.T) {
	for room := range 400 {
		f := &full{room: room}
		log := New(f, Levels["info"], JSON)
		for n := range 5 {
			log.Info("A line", "n", n+1)
		}
		f.room = 1 << 20
		log.Info("A line", "n", 6)
		log.Info("A line", "n", 7)
		seen, lost, torn := map[int]bool{}, 0, 0
		for line := range bytes.Lines(f.Bytes()) {
			if !json.Valid(line) {
				torn++
				continue
			}
			e := decode(t, line)
			seen[e.N] = e.N > 0
			lost += e.Lines
		}
		delete(seen, 0)
		if len(seen)+lost != 7 || torn > 1 || !seen[6] || !seen[7] {
			t.Fatalf("room for %d bytes: lines %v are there, %d were lost, %d are torn:\n%s", room, seen, lost, torn, f)
		}
	}
}

// TestLinesAreWrittenBeforeTheProgramGoesOn: one that ends at once loses none.
func TestLinesAreWrittenBeforeTheProgramGoesOn(t *testing.T) {
	var out bytes.Buffer
	log := New(&out, Levels["info"], Text)
	for n := range 1000 {
		log.Info("A line", "n", n)
		if want := fmt.Sprintf("msg=\"A line\" n=%d\n", n); !bytes.HasSuffix(out.Bytes(), []byte(want)) {
			t.Fatalf("line %d is not written: %s", n, out.Bytes())
		}
	}
}

func BenchmarkALine(b *testing.B) {
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	log := New(f, Levels["info"], JSON)
	for b.Loop() {
		log.Info("A line", "n", 1)
	}
}

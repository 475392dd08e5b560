package progress

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

var half = State{
	Title: "RoundRobin", Done: 500, Total: 1000, InFlight: 12, Failed: 1,
	Elapsed: 31 * time.Second, Expected: 62 * time.Second, CPU: 0.42,
}

func TestLineTellsAllOfTheState(t *testing.T) {
	got := Line(half, 160)
	for _, part := range []string{"RoundRobin [████████████████████····················] 0:31 of about 1:02", " 500/1000 requests,  12 in flight, 1 failed, CPU  42 %"} {
		if !strings.Contains(got, part) {
			t.Errorf("%q lacks %q", got, part)
		}
	}
}

func TestLineFitsAnyWidth(t *testing.T) {
	for width := range 200 {
		if n := utf8.RuneCountInString(Line(half, width)); n > max(width, minWidth) {
			t.Fatalf("a line for %d columns has %d", width, n)
		}
	}
}

func TestLineLeavesOutWhatIsNotKnown(t *testing.T) {
	s := half
	s.CPU, s.Expected = -1, 0
	if got := Line(s, 160); strings.Contains(got, "CPU") || strings.Contains(got, "about") {
		t.Error(got)
	}
}

func TestBarIsFullAtTheEndOnly(t *testing.T) {
	for total := range 50 {
		last := -1
		for done := range total + 1 {
			bar := Bar(done, total, 20)
			if n := utf8.RuneCountInString(bar); n != 20 {
				t.Fatalf("%d of %d: %d columns", done, total, n)
			}
			full := strings.Count(bar, "█")
			if full < last {
				t.Fatalf("%d of %d: the bar has shrunk to %d", done, total, full)
			}
			last = full
			if total > 0 && (full == 20) != (done == total) {
				t.Fatalf("%d of %d: %d columns are full", done, total, full)
			}
		}
	}
	if got := Bar(7, 3, 5); got != "█████" {
		t.Errorf("more than all is %q", got)
	}
}

func TestShowDrawsOneLineOnATerminalAndManyElsewhere(t *testing.T) {
	for name, tc := range map[string]struct {
		width        int
		every        time.Duration
		lines, drawn int
	}{
		"a terminal": {100, TerminalEvery, 1, 127},
		"a file":     {0, PlainEvery, 4, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				done := make(chan struct{})
				go func() {
					time.Sleep(25*time.Second + 100*time.Millisecond)
					close(done)
				}()
				var out strings.Builder
				if err := Show(&out, tc.width, tc.every, done, func() State { return half }); err != nil {
					t.Fatal(err)
				}
				if n := strings.Count(out.String(), "\n"); n != tc.lines {
					t.Errorf("%d lines, want %d", n, tc.lines)
				}
				if n := strings.Count(out.String(), "\r"); n != tc.drawn {
					t.Errorf("drawn over %d times, want %d", n, tc.drawn)
				}
			})
		})
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestShowEndsWhereNobodyListens(t *testing.T) {
	if err := Show(broken{}, 80, TerminalEvery, nil, func() State { return half }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("error is %v", err)
	}
}

func TestAFileHasNoWidth(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	if w := Width(f); w != 0 {
		t.Errorf("a file is %d columns wide", w)
	}
}

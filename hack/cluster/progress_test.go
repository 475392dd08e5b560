//go:build linux

package main

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"strings"
	"testing"
	"time"
)

// TestABuildReportsHowFarItIs: the packages that were compiled, and for how long the others take at most; all else that a
// build prints is passed on.
func TestABuildReportsHowFarItIs(t *testing.T) {
	var rest, reports bytes.Buffer
	log.SetOutput(&reports)
	defer log.SetOutput(os.Stderr)
	now := time.Unix(0, 0)
	p := newProgress(&rest, 100, func() time.Time { return now })
	for i := range 20 {
		now = now.Add(time.Second)
		line := fmt.Sprintf("example.com/a-b/v%d\n", i)
		for _, part := range []string{line[:3], line[3:]} { // as pipes cut it
			if n, err := p.Write([]byte(part)); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
		}
	}
	if want := "15 packages compiled in 15s, at most 85 more: about 1m30s at this rate"; !strings.Contains(reports.String(), want) {
		t.Errorf("reports %q, want %q", &reports, want)
	}
	earlier := reports.String()
	reports.Reset()
	few := newProgress(&rest, 3000, func() time.Time { return now })
	now = now.Add(time.Hour)
	if _, err := few.Write([]byte("example.com/a\n")); err != nil {
		t.Fatal(err)
	}
	if got := reports.String(); !strings.Contains(got, "1 packages compiled in 1h0m0s, at most 2999 more\n") {
		t.Errorf("with a warm cache: %q", got)
	}
	if n := strings.Count(earlier, "compiled"); n != 1 {
		t.Errorf("%d reports within 20 s", n)
	}
	const printed = "go: downloading k8s.io/api v0.1.0\n# example.com/a\n"
	if _, err := p.Write([]byte(printed)); err != nil {
		t.Fatal(err)
	}
	if rest.String() != printed {
		t.Errorf("passed on %q, want %q", &rest, printed)
	}
}

package picker

import (
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/kvasir-dev/kvasir/internal/load"
)

// TestAStallIsAWarning, its end is not: a person should look at an engine that hangs.
func TestAStallIsAWarning(t *testing.T) {
	var logs []string
	c := newClock()
	p := New(Options{Now: c.Now, Log: funcr.New(func(_, args string) { logs = append(logs, args) }, funcr.Options{})})
	spec := testSpec(t, 1)
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	id := spec.Endpoints[0].ID
	m, ok := p.current.Load().pools[0].find(id)
	if !ok {
		t.Fatal("the endpoint is not there")
	}
	m.load.Book(c.Now(), load.WorkOf(1000, 0), true).FirstToken(c.Now())
	for i := range 300 { // the first 20 reports and the last one show progress
		c.advance(200 * time.Millisecond)
		r := load.Report{Running: 1, Generated: float64(min(i, 20))}
		if i == 299 {
			r.Generated++
		}
		p.Observe(id, c.Now(), r)
	}
	if len(logs) != 2 || !strings.Contains(logs[0], `"severity"="warning"`) || !strings.Contains(logs[0], "shows no progress") ||
		strings.Contains(logs[1], "warning") || !strings.Contains(logs[1], "makes progress again") {
		t.Errorf("logs %q", logs)
	}
}

package picker

import (
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

func TestOnlyCorrelationIDsAreKept(t *testing.T) {
	for id, kept := range map[string]bool{
		"": false, "a": true, "0b5f6d5e-3c1a:7.Z_": true, strings.Repeat("x", MaxRequestID): true, strings.Repeat("x", MaxRequestID+1): false,
		"two words": false, "a\nlevel=ERROR": false, "a/b": false, "ü": false, `"`: false, "a=b": false, "\x00": false,
	} {
		got := RequestID(id)
		if (got == id) != kept || !kept && len(got) != 32 {
			t.Errorf("%q becomes %q", id, got)
		}
	}
	if first, second := NewRequestID(), NewRequestID(); first == second {
		t.Error("two requests have the same id")
	}
}

// TestARequestIsFoundByItsID: in the log, in what is shown of decisions, and in the decision log.
func TestARequestIsFoundByItsID(t *testing.T) {
	var lines []string
	records, shown := &memory{}, &notes{all: true}
	spec := testSpec(t, 1)
	spec.Policy.LogPercent = 100
	p := New(Options{Decisions: records, Recorder: shown,
		Log: funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{Verbosity: 1})})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	in := &Request{ID: "mine-1", Route: openai.Completions, Body: completion("m", 0, 10, true)}
	d, err := p.Pick(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	d.End(Completed)
	if text := strings.Join(lines, "\n"); !strings.Contains(text, `"request"="mine-1"`) {
		t.Errorf("the log has no id:\n%s", text)
	}
	if len(shown.ended) != 1 || shown.ended[0].Request != "mine-1" {
		t.Errorf("shown: %+v", shown.ended)
	}
	if len(records.records) != 1 || records.records[0].Request != "mine-1" {
		t.Errorf("%+v", records.records)
	}
}

package real

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/decisionlog"
)

// Why nothing was found of a prediction, in the log of decisions: nothing, and no cause that is known.
const (
	noMiss      = ""
	unknownMiss = "unknown"
)

// decided returns nil if the log of decisions has a record of each of some answers that says what the client saw and the engine
// delivered. A hit of 0 where one was predicted has a cause there.
func (p *picker) decided(answers []answer) error {
	return within(10*time.Second, func() error {
		status, text := callURL(http.MethodGet, p.metrics+"/decision-log", nil)
		if status != http.StatusOK {
			return fmt.Errorf("/decision-log answers %d: %.300s", status, text)
		}
		list, skipped, err := decisionlog.Read(strings.NewReader(text))
		if err != nil || skipped.Lines > 0 {
			return fmt.Errorf("reading the log of decisions: %w, %d lines are no records", err, skipped.Lines)
		}
		records := map[string]decisionlog.Record{}
		for _, r := range list {
			records[r.Request] = r
		}
		var faults []error
		for _, a := range answers {
			record, ok := records[a.id]
			if !ok {
				faults = append(faults, fmt.Errorf("%s: no record of request %s", a.request.shape, a.id))
			} else if err := a.agrees(record); err != nil {
				faults = append(faults, err)
			}
		}
		if len(faults) > 5 {
			faults = append(faults[:5], fmt.Errorf("and %d more", len(faults)-5))
		}
		return errors.Join(faults...)
	})
}

// agrees returns nil if a record says what the answer says.
func (a answer) agrees(r decisionlog.Record) error {
	confirmed := -1
	for _, c := range r.Candidates {
		if c.Endpoint == r.Endpoint {
			confirmed = c.Confirmed
		}
	}
	pod, _, _ := strings.Cut(r.Endpoint, "/")
	missed := a.predicted > 0 && a.delivered == 0
	if r.Outcome != "completed" || pod != a.pod || r.Cached != a.delivered || r.Input != a.promptPicker || confirmed != a.confirmed ||
		missed == (r.Miss == noMiss) || r.Miss == unknownMiss {
		return fmt.Errorf("%s on %s: predicted %d, confirmed %d, delivered %d of %d tokens; the log of decisions has %+v",
			a.request.shape, a.pod, a.predicted, a.confirmed, a.delivered, a.promptPicker, r)
	}
	return nil
}

// TestRecordsAreHeldAgainstAnswers: a record that says another thing than the answer is found, and so is a miss without a cause.
func TestRecordsAreHeldAgainstAnswers(t *testing.T) {
	a := answer{pod: "pod-0", predicted: 64, confirmed: 64, promptPicker: 100}
	record := func(change func(*decisionlog.Record)) decisionlog.Record {
		r := decisionlog.Record{Outcome: "completed", Endpoint: "pod-0/0", Input: 100, Miss: "evicted",
			Candidates: []decisionlog.Candidate{{Endpoint: "pod-1/0"}, {Endpoint: "pod-0/0", Confirmed: 64}}}
		change(&r)
		return r
	}
	for name, tc := range map[string]struct {
		change func(*decisionlog.Record)
		fine   bool
	}{
		"the same":           {func(*decisionlog.Record) {}, true},
		"another endpoint":   {func(r *decisionlog.Record) { r.Endpoint = "pod-1/0" }, false},
		"another hit":        {func(r *decisionlog.Record) { r.Cached = 32 }, false},
		"another prompt":     {func(r *decisionlog.Record) { r.Input = 99 }, false},
		"another prediction": {func(r *decisionlog.Record) { r.Candidates[1].Confirmed = 32 }, false},
		"no cause":           {func(r *decisionlog.Record) { r.Miss = noMiss }, false},
		"an unknown cause":   {func(r *decisionlog.Record) { r.Miss = unknownMiss }, false},
	} {
		if err := a.agrees(record(tc.change)); (err == nil) != tc.fine {
			t.Errorf("%s: %v", name, err)
		}
	}
	a.delivered = 64
	if err := a.agrees(record(func(r *decisionlog.Record) { r.Cached = 64 })); err == nil {
		t.Error("a hit with the cause of a miss passes")
	}
}

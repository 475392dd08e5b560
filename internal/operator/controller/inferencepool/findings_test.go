package inferencepool

import (
	"strings"
	"testing"

	"k8s.io/client-go/tools/events"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
)

// newEvents are the events since the last call, without their notes.
func (w *world) newEvents() map[string]int {
	recorder := w.r.Recorder.(*events.FakeRecorder)
	all := map[string]int{}
	for {
		select {
		case e := <-recorder.Events:
			all[strings.Fields(e)[1]]++
		default:
			return all
		}
	}
}

// lasting makes the present findings last until conditions report them.
func (w *world) lasting() {
	w.t.Helper()
	for range 2 {
		w.tick()
		w.settleDown()
		w.clock.SetTime(w.clock.Now().Add(settle))
	}
	w.tick()
	w.settleDown()
}

func TestConditionsTellWhatPickersHaveFound(t *testing.T) {
	w := newWorld(t)
	w.serve()
	if got := w.condition(v1alpha1.ConditionTokensExact); got != "Unknown Starting" {
		t.Errorf("before a picker has looked: %s", got)
	}
	w.keyID = "0123456789abcdef"
	w.tokens = operatorfeed.Finding{Verdict: operatorfeed.Good, Reason: "Exact"}
	w.predictions = operatorfeed.Finding{Verdict: operatorfeed.Unclear, Reason: "TooFewReplies", Message: "1 of 100 answers"}
	w.lasting()
	for kind, want := range map[string]string{
		v1alpha1.ConditionTokensExact: "True Exact", v1alpha1.ConditionPredictionsTrusted: "Unknown TooFewReplies",
	} {
		if got := w.condition(kind); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
	if s := w.pool().Status.KeySpace; s.KeyID != w.keyID {
		t.Errorf("key space %+v", s)
	}
	w.newEvents()
	writes := w.writes
	w.predictions.Message = "2 of 100 answers"
	w.lasting()
	if w.writes != writes {
		w.fail("a count that has changed is written")
	}

	w.keyID = "fedcba9876543210"
	w.tokens = operatorfeed.Finding{Verdict: operatorfeed.Bad, Reason: "ProbeFailed", Message: "texts: 3 differ"}
	w.tick()
	w.settleDown()
	if got := w.condition(v1alpha1.ConditionTokensExact); got != "True Exact" {
		t.Errorf("at once: %s", got)
	}
	w.predictions = operatorfeed.Finding{Verdict: operatorfeed.Bad, Reason: "Mispredicting"}
	w.lasting()
	for kind, want := range map[string]string{
		v1alpha1.ConditionTokensExact: "False ProbeFailed", v1alpha1.ConditionPredictionsTrusted: "False Mispredicting",
	} {
		if got := w.condition(kind); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
	events := w.newEvents()
	for _, want := range []string{"KeyRotated", "TokensDegraded", "PredictionsDistrusted"} {
		if events[want] != 1 {
			t.Errorf("%d events %s of %v", events[want], want, events)
		}
	}
}

func TestTokensThatNobodyWantedExactAreNoEvent(t *testing.T) {
	for reason, want := range map[string]int{"EngineRender": 0, "Approximate": 0, "FilesMissing": 1} {
		w := newWorld(t)
		w.tokens = operatorfeed.Finding{Verdict: operatorfeed.Bad, Reason: reason}
		w.serve()
		w.lasting()
		if got := w.condition(v1alpha1.ConditionTokensExact); got != "False "+reason {
			t.Errorf("%s: %s", reason, got)
		}
		if got := w.newEvents()["TokensDegraded"]; got != want {
			t.Errorf("%s: %d events, want %d", reason, got, want)
		}
	}
}

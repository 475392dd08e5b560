package status

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
)

// TestFindingsAreConditions: what a picker computes is what the operator writes.
func TestFindingsAreConditions(t *testing.T) {
	for _, want := range []metav1.Condition{
		TokensExact.True("Exact", ""), TokensExact.False("ProbeFailed", "texts: %d differ", 3), TokensExact.Unknown("NoUsage", "no answer"),
	} {
		f := Finding(&want)
		if diff := cmp.Diff(want, TokensExact.Found(&f)); diff != "" {
			t.Errorf("a condition and its finding (-want +got):\n%s", diff)
		}
	}
	if got := Finding(nil); got != (operatorfeed.Finding{}) {
		t.Errorf("no condition is the finding %+v, want none", got)
	}
}

// TestLinesNameTypeAndReason of the condition that they are made from.
func TestLinesNameTypeAndReason(t *testing.T) {
	c := EventsSynced.False(ReasonLagging, "1 of 2: slow")
	if got, want := Line(&c), "EventsSynced: Lagging: 1 of 2: slow"; got != want {
		t.Errorf("line %q, want %q", got, want)
	}
	if typ, reason, ok := ParseLine(Line(&c)); typ != EventsSynced || reason != ReasonLagging || !ok {
		t.Errorf("read back as %s, %s, %v", typ, reason, ok)
	}
	c.Message = ""
	if got, want := Line(&c), "EventsSynced: Lagging"; got != want {
		t.Errorf("line without a message %q, want %q", got, want)
	}
	if _, _, ok := ParseLine("no condition: at all"); ok {
		t.Error("other text is read as a condition")
	}
}

// TestMessagesAreBounded at the end of a character. A bounded message stays as it is when it is bounded again.
func TestMessagesAreBounded(t *testing.T) {
	for name, text := range map[string]string{
		"fits": strings.Repeat("x", maxMessage), "too long": strings.Repeat("x", maxMessage+1), "wide characters": strings.Repeat("\u00e9", maxMessage),
	} {
		got := Ready.False("Reason", "%s", text).Message
		if len(got) > maxMessage || !utf8.ValidString(got) || (got == text) != (len(text) <= maxMessage) {
			t.Errorf("%s: %d bytes %q", name, len(got), got)
		}
		if again := Ready.False("Reason", "%s", got).Message; again != got {
			t.Errorf("%s: bounded again it is %q", name, again)
		}
	}
}

// TestTimesAreOfTransitions: a condition keeps its time as long as its status.
func TestTimesAreOfTransitions(t *testing.T) {
	before, now := metav1.NewTime(time.Unix(1, 0)), metav1.NewTime(time.Unix(2, 0))
	old := []metav1.Condition{Ready.True("Serving", "1"), EventsSynced.True("Synced", "")}
	Stamp(old, nil, 1, before)
	list := []metav1.Condition{Ready.True("AtZero", "0"), EventsSynced.False("Lagging", ""), TokensExact.True("Exact", "")}
	Stamp(list, old, 2, now)
	for i, want := range []metav1.Time{before, now, now} {
		if c := &list[i]; c.LastTransitionTime != want || c.ObservedGeneration != 2 {
			t.Errorf("%s: %s, generation %d; want %s and 2", c.Type, c.LastTransitionTime, c.ObservedGeneration, want)
		}
	}
}

package status

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTheWorstConditionIsTheFirst: a cause before its effect, a fault before what ends by itself, and what is as it should be last.
func TestTheWorstConditionIsTheFirst(t *testing.T) {
	list := []metav1.Condition{
		Type("example.com/Other").False("Odd", ""), UpToDate.False(ReasonRollingOut, ""), Ready.False(ReasonNoReadyEndpoint, ""),
		TokensExact.Unknown(ReasonStarting, ""), Accepted.True(ReasonAccepted, ""), Scaled.False(ReasonScalingUp, ""),
		PodsHealthy.False(ReasonProbesMissing, ""), TokensExact.False(ReasonProbeFailed, ""), PickerAvailable.False(ReasonUnavailable, ""),
	}
	WorstFirst(list)
	var got []string
	for i := range list {
		got = append(got, list[i].Reason)
	}
	want := []string{
		ReasonUnavailable, ReasonNoReadyEndpoint, ReasonProbeFailed, "Odd", ReasonProbesMissing, ReasonScalingUp, ReasonRollingOut, ReasonStarting, ReasonAccepted,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

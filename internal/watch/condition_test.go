package watch

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/conformance"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// TestAPoolIsNotExactWhileManyRequestsAreNot: what was proven does not help when prompts are over the budget.
func TestAPoolIsNotExactWhileManyRequestsAreNot(t *testing.T) {
	for share, want := range map[float64]metav1.ConditionStatus{0: metav1.ConditionTrue, 0.05: metav1.ConditionTrue, 0.5: metav1.ConditionFalse} {
		f := &facts{tokens: conformance.Status{State: conformance.Exact, Message: "proven"}, inexact: picker.Inexact{Share: share, Last: "budget"}}
		got := tokensExact(&PoolState{Object: &v1alpha1.InferencePool{}}, f)
		if got.Status != want {
			t.Errorf("a share of %v: %s/%s: %s", share, got.Status, got.Reason, got.Message)
		}
		if share == 0.5 && got.Message != "50 % of the last requests had no exact tokens, the last one for the reason budget; for these an engine is asked for the tokens of each request" {
			t.Error(got.Message)
		}
	}
}

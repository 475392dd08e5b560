package config

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokencheck"
)

// TestMissingTokensAreNotBlamedOnAFlag: where nearly all requests are approximate nothing is predicted, whatever flags
// the engines have.
func TestMissingTokensAreNotBlamedOnAFlag(t *testing.T) {
	for share, want := range map[float64]string{0: "NoCachedTokens", 0.4: "NoCachedTokens", 0.9: "NoExactTokens"} {
		f := &facts{completed: enoughAnswers, inexact: picker.Inexact{Share: share, Last: "unavailable"}}
		if got := predictionsTrusted(f); got.Status != metav1.ConditionUnknown || got.Reason != want {
			t.Errorf("a share of %v: %s/%s: %s", share, got.Status, got.Reason, got.Message)
		}
	}
}

// TestEnginesTokensAreExact: a pool without files is exact while an engine tells the tokens of nearly all requests.
func TestEnginesTokensAreExact(t *testing.T) {
	lacking := picker.Rendering{Lacking: "m-0 (vLLM 0.32.0) runs without --enable-scale-out, which switches its /render routes off; start it with that flag"}
	for name, tc := range map[string]struct {
		share     float64
		rendering picker.Rendering
		want      string
	}{
		"rendered":                {0, picker.Rendering{}, "True/EngineRender"},
		"tokenized":               {0.05, lacking, "True/EngineTokenize"},
		"tokenized, many are not": {0.5, lacking, "False/PartlyExact"},
	} {
		f := &facts{tokens: tokencheck.Status{State: tokencheck.NoFiles}, inexact: picker.Inexact{Share: tc.share, Last: "route"}, rendering: tc.rendering}
		got := tokensExact(&PoolState{Object: &v1alpha1.InferencePool{}}, f)
		if string(got.Status)+"/"+got.Reason != tc.want {
			t.Errorf("%s: %s/%s, want %s", name, got.Status, got.Reason, tc.want)
		}
		if tc.rendering.Lacking != "" && !strings.Contains(got.Message, tc.rendering.Lacking) {
			t.Errorf("%s: %q names neither the engine nor the flag", name, got.Message)
		}
	}
}

// TestAPoolIsNotExactWhileManyRequestsAreNot: what was proven does not help when prompts are over the budget.
func TestAPoolIsNotExactWhileManyRequestsAreNot(t *testing.T) {
	for share, want := range map[float64]metav1.ConditionStatus{0: metav1.ConditionTrue, 0.05: metav1.ConditionTrue, 0.5: metav1.ConditionFalse} {
		f := &facts{tokens: tokencheck.Status{State: tokencheck.Exact, Message: "proven"}, inexact: picker.Inexact{Share: share, Last: "budget"}}
		got := tokensExact(&PoolState{Object: &v1alpha1.InferencePool{}}, f)
		if got.Status != want {
			t.Errorf("a share of %v: %s/%s: %s", share, got.Status, got.Reason, got.Message)
		}
		if share == 0.5 && got.Message != "50 % of the last requests had no exact tokens, the last one for the reason budget; an engine is asked for the tokens of each request" {
			t.Error(got.Message)
		}
	}
}

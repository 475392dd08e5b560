package config

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/openai"
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

// TestTokensThatDoNotFitAreNamed: which class of requests, at which endpoint or until when, and what it rests on.
func TestTokensThatDoNotFitAreNamed(t *testing.T) {
	until := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	off := picker.Doubt{Tokens: picker.TokensEngine, Kind: openai.KindTools, Traits: picker.TraitAdapter | picker.TraitSalt, Until: until, Misfits: 9, Answers: 20}
	odd := picker.Doubt{Tokens: picker.TokensExact, Kind: openai.KindChat, Traits: picker.TraitFields, Until: until, Misfits: 8, Answers: 8}
	one := picker.Doubt{Endpoint: "pod-1/0", Tokens: picker.TokensExact, Kind: openai.KindChat, Misfits: 8, Answers: 11}
	const asked = "; an engine is asked for the tokens of each request"
	for name, tc := range map[string]struct {
		state tokencheck.State
		list  []picker.Doubt
		want  string
	}{
		"none": {tokencheck.Exact, nil, "True/Exact: proven"},
		"of adapters with salts": {tokencheck.NoFiles, []picker.Doubt{off}, "False/TokensDoubted: the tokens of requests of kind tools for adapters and with a cache salt, " +
			"tokens engine, are not used until 2026-01-02T02:04:05Z, because engines count or announce other ones (9 of 20 answers); " +
			"all other requests and endpoints are not affected" + asked},
		"of unknown fields": {tokencheck.Exact, []picker.Doubt{odd}, "False/TokensDoubted: the tokens of requests of kind chat with fields that can concern the cache " +
			"or are not known, tokens exact, are not used until 2026-01-02T02:04:05Z, because engines count or announce other ones (8 of 8 answers); " +
			"all other requests and endpoints are not affected"},
		"of an endpoint": {tokencheck.Exact, []picker.Doubt{one}, "False/EndpointDiffers: pod-1/0 counts or announces other tokens than the other endpoints for " +
			"requests of kind chat, tokens exact; all other requests and endpoints are not affected"},
		"while others fail": {tokencheck.Failed, []picker.Doubt{one}, "False/ProbeFailed: proven" + asked + "; pod-1/0 counts or announces other tokens than the other " +
			"endpoints for requests of kind chat, tokens exact; all other requests and endpoints are not affected"},
	} {
		f := &facts{tokens: tokencheck.Status{State: tc.state, Message: "proven"}, observed: observed{doubts: tc.list}}
		got := tokensExact(&PoolState{Object: &v1alpha1.InferencePool{}}, f)
		if got := string(got.Status) + "/" + got.Reason + ": " + got.Message; got != tc.want {
			t.Errorf("%s: got  %s\nwant %s", name, got, tc.want)
		}
	}
	f := &facts{tokens: tokencheck.Status{State: tokencheck.Exact}, observed: observed{doubts: []picker.Doubt{off, odd, one, one, one}}}
	if got := tokensExact(&PoolState{Object: &v1alpha1.InferencePool{}}, f); got.Reason != "TokensDoubted" || !strings.Contains(got.Message, "; and 2 more;") {
		t.Errorf("of five: %s: %s", got.Reason, got.Message)
	}
}

package status

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/events"
)

func TestPhaseOf(t *testing.T) {
	for name, tc := range map[string]struct {
		ep   endpoint.Endpoint
		want Phase
	}{
		"ready":                             {endpoint.Endpoint{Ready: true}, PhaseServing},
		"not ready":                         {endpoint.Endpoint{Serving: true}, PhaseNotReady},
		"ready, without a connection":       {endpoint.Endpoint{Ready: true, Unreachable: true}, PhaseNotReady},
		"terminating":                       {endpoint.Endpoint{Ready: true, Terminating: true}, PhaseDraining},
		"terminating, without a connection": {endpoint.Endpoint{Terminating: true, Unreachable: true}, PhaseDraining},
	} {
		if got := PhaseOf(&tc.ep); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

// TestAPodIsAsItsWorstEndpoint, whatever the order of its ranks.
func TestAPodIsAsItsWorstEndpoint(t *testing.T) {
	rank := func(pod string, rank int, change func(*endpoint.Endpoint)) endpoint.Endpoint {
		ep := endpoint.Endpoint{ID: endpoint.ID{Pod: "uid-" + pod, Rank: rank}, Pod: pod, Ready: true}
		if change != nil {
			change(&ep)
		}
		return ep
	}
	unreachable := func(ep *endpoint.Endpoint) { ep.Unreachable = true }
	leaves := func(ep *endpoint.Endpoint) { ep.Terminating = true }
	got := Pods([]endpoint.Endpoint{
		rank("b", 0, nil), rank("a", 0, nil), rank("a", 1, nil), rank("b", 1, unreachable), rank("c", 1, leaves), rank("c", 0, unreachable),
	})
	want := []Pod{{"uid-b", "b", PhaseNotReady}, {"uid-a", "a", PhaseServing}, {"uid-c", "c", PhaseDraining}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
}

func TestAPoolIsReadyWithOneEndpoint(t *testing.T) {
	for _, tc := range []struct {
		ready, total, unreachable, unanswering int
		want                                   metav1.Condition
	}{
		{0, 0, 0, 0, Ready.False("NoReadyEndpoint", "0 of 0 endpoints")},
		{0, 2, 2, 0, Ready.False("NoReadyEndpoint", "0 of 2 endpoints; the picker cannot connect to 2")},
		{1, 2, 0, 0, Ready.True("Serving", "1 of 2 endpoints")},
		{1, 4, 1, 2, Ready.True("Serving", "1 of 4 endpoints; the picker cannot connect to 1; without an answer: 2")},
	} {
		if diff := cmp.Diff(tc.want, OfEndpoints(tc.ready, tc.total, tc.unreachable, tc.unanswering)); diff != "" {
			t.Errorf("Ready (-want +got):\n%s", diff)
		}
	}
}

// TestStreamsAreOrdered: every state has a place, and an unknown one is better than all, as it says nothing.
func TestStreamsAreOrdered(t *testing.T) {
	for i, state := range streamStates {
		if !WorseStream(state, "unknown") {
			t.Errorf("%s is not worse than an unknown state", state)
		}
		if i > 0 && (!WorseStream(state, streamStates[i-1]) || WorseStream(streamStates[i-1], state)) {
			t.Errorf("%s is not worse than %s", state, streamStates[i-1])
		}
	}
	for s := events.State(0); int(s) < len(streamStates)-1; s++ {
		if !slices.Contains(streamStates, s.String()) {
			t.Errorf("the state %s has no place", s)
		}
	}
}

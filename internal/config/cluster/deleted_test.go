package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
)

// TestADeletedPoolIsServedUntilItIsMadeAgain: the pods of a pool that is deleted with --cascade=orphan and applied again get
// requests all the time.
func TestADeletedPoolIsServedUntilItIsMadeAgain(t *testing.T) {
	s := newAPIServer(t)
	pool := defaulted(t, "InferencePool", "m", smallPool)
	s.put("inferencepools", "m", pool)
	s.put("secrets", "m-key", root("7"))
	s.put("pods", "a", pod("10.0.0.1", true, nil))
	states := follow(t, s)
	await(t, states, "the pool", picks("a@10.0.0.1:8000"))
	s.remove("inferencepools", "m")
	s.put("pods", "b", pod("10.0.0.2", true, nil)) // pods are followed on
	whole := func(state config.State) bool {
		if len(state.Specs) != 1 {
			t.Errorf("a state of %d pools", len(state.Specs))
		}
		return pickable(state) == "a@10.0.0.1:8000 b@10.0.0.2:8000"
	}
	await(t, states, "the pod of the deleted pool", whole)
	s.put("inferencepools", "m", defaulted(t, "InferencePool", "m", strings.Replace(smallPool, `"name":"m"`, `"name":"other"`, 1)))
	await(t, states, "the pool that was made again", func(state config.State) bool {
		return whole(state) && state.Specs[0].Model == "other"
	})
}

// TestADeletedPoolIsServedForAWhileOnly: for an hour from when it was seen to be gone, and again each time that it is deleted.
func TestADeletedPoolIsServedForAWhileOnly(t *testing.T) {
	s := &Source{scope: scope{namespace: "default", pool: "m"}, departed: map[string]*departed{}, log: logr.Discard()}
	own, other := &v1alpha1.InferencePool{}, &v1alpha1.InferencePool{}
	own.Name, other.Name = "m", "other"
	own.Namespace, other.Namespace = "default", "default"
	now := time.Unix(0, 0)
	check := func(after time.Duration, there, served bool) {
		t.Helper()
		now = now.Add(after)
		pools := []*v1alpha1.InferencePool{other}
		if there {
			pools = append(pools, own)
		}
		over := s.over(now)
		got := s.keep(pools, nil, now)
		if want := map[bool]int{true: 2, false: 1}[served]; len(got) != want {
			t.Errorf("%d pools after %s, want %d", len(got), after, want)
		}
		if !there && over != (after == time.Hour) {
			t.Errorf("over %t after %s", over, after)
		}
	}
	check(0, false, false) // there was none
	for range 2 {
		check(time.Minute, true, true)
		check(time.Hour*2, true, true)
		check(time.Minute, false, true)
		check(time.Hour-1, false, true)
		check(1, true, true)
		check(time.Minute, false, true)
		check(time.Hour, false, false)
		check(time.Minute, false, false)
	}
}

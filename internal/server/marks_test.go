package server

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/config"
)

// TestMarksAreAcknowledgedOnlyWhilePicksFollowThem: while a state is applied, a pick can follow the old marks or the new ones,
// so only the marks that are in both are acknowledged.
func TestMarksAreAcknowledgedOnlyWhilePicksFollowThem(t *testing.T) {
	pod := func(uid string, leaving bool) config.Pod { return config.Pod{UID: uid, Leaving: leaving} }
	var m marks
	acknowledged := func() map[string]bool {
		out := map[string]bool{}
		for _, p := range m.followed() {
			out[p.UID] = p.Leaving
		}
		return out
	}
	m.follow([]config.Pod{pod("set", false), pod("kept", true), pod("lifted", true), pod("gone", true)}, func() {
		if got := acknowledged(); got["kept"] || got["lifted"] {
			t.Errorf("acknowledged before any pick follows them: %v", got)
		}
	})
	during := map[string]bool{}
	m.follow([]config.Pod{pod("set", true), pod("kept", true), pod("lifted", false), pod("new", true)}, func() { during = acknowledged() })
	if diff := cmp.Diff(map[string]bool{"set": false, "kept": true, "lifted": false, "new": false}, during); diff != "" {
		t.Errorf("while the state is applied (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]bool{"set": true, "kept": true, "lifted": false, "new": true}, acknowledged()); diff != "" {
		t.Errorf("afterwards (-want +got):\n%s", diff)
	}
}

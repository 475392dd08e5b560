package lifecycle

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestAPodThatServedOnALostNodeIsReplacedWithoutAPause, however often its predecessors had to move. One that has not served yet keeps the
// pause, and so does one whose node only leaves.
func TestAPodThatServedOnALostNodeIsReplacedWithoutAPause(t *testing.T) {
	for _, tc := range []struct {
		node          Node
		loaded, ready bool
		want          int
	}{
		{NodeUnready, true, false, 1}, {NodeUnready, false, false, 0}, {NodeUnready, true, true, 0}, {NodeLeaves, true, true, 0}, {NodeDies, true, true, 1},
	} {
		made := 0
		for _, a := range Make(Input{Now: noon, Pool: Pool{Name: "p", Size: 1, Revision: "b", Current: "b", Surge: 1}, Pods: []Pod{{
			UID: "1", Name: "p-b-0", Revision: "b", Created: noon.Add(-2 * time.Minute), Moves: 6, Assigned: true, Running: true,
			Loaded: tc.loaded, Ready: tc.ready, Serves: tc.ready, Node: tc.node,
		}}}).Actions {
			if a.Kind == Create {
				made++
			}
		}
		if made != tc.want {
			t.Errorf("%+v: %d pods are made", tc, made)
		}
	}
}

// TestPodsThatReturnToABadNodeAreReplacedRarely plays pools whose scheduler always binds pods to a node that is going away,
// as it does when no other has room and the taint only asks it to prefer others, or the template names the node.
func TestPodsThatReturnToABadNodeAreReplacedRarely(t *testing.T) {
	for _, tc := range []struct {
		name     string
		size     int
		node     Node
		bind     bool
		run      bool
		ready    time.Duration // after the creation; 0 for never
		min, max int           // pods created for each place in an hour
	}{
		{"leaving, never starting", 1, NodeLeaves, true, false, 0, 10, 18},
		{"leaving, never ready", 1, NodeLeaves, true, true, 0, 10, 18},
		{"leaving, ready after a second", 1, NodeLeaves, true, true, time.Second, 10, 18},
		{"leaving, three places", 3, NodeLeaves, true, false, 0, 8, 18},
		{"dying, never starting", 1, NodeDies, true, false, 0, 10, 18},
		{"dying, never ready", 3, NodeDies, true, true, 0, 10, 18},
		{"not ready, never starting", 1, NodeUnready, true, false, 0, 10, 18},
		{"not ready, never ready", 3, NodeUnready, true, true, 0, 10, 18},
		{"never scheduled", 3, NodeStays, false, false, 0, 1, 1},
		{"never starting", 3, NodeStays, true, false, 0, 1, 1},
		{"never ready", 3, NodeStays, true, true, 0, 1, 1},
	} {
		pool := Pool{Name: "p", Size: tc.size, Revision: "b", Current: "b", Surge: 1, ProgressDeadline: 30 * time.Minute, DrainDeadline: time.Second}
		made, early, pods := 0, 0, []Pod{}
		for now := noon; now.Before(noon.Add(time.Hour)); now = now.Add(time.Second) {
			for i := range pods {
				p := &pods[i]
				p.Assigned, p.Node, p.Running = tc.bind, tc.node, tc.run
				if tc.ready > 0 && !now.Before(p.Created.Add(tc.ready)) {
					p.Ready, p.ReadyAt, p.Loaded = true, p.Created.Add(tc.ready), true
				}
			}
			for _, a := range Make(Input{Now: now, Pool: pool, Pods: pods}).Actions {
				i := slices.IndexFunc(pods, func(p Pod) bool { return p.UID == a.UID })
				switch a.Kind {
				case Create:
					made++
					pods = append(pods, Pod{UID: fmt.Sprint(made), Name: a.Name, Slot: a.Slot, Revision: a.Revision, Moves: a.Moves, Created: now})
				case SetMark:
					pods[i].Mark = a.Mark
				case Delete:
					pods = slices.Delete(pods, i, i+1)
				}
			}
			if now.Before(noon.Add(13 * time.Second)) {
				early = made
			}
		}
		if perPlace := made / tc.size; perPlace < tc.min || perPlace > tc.max {
			t.Errorf("%s: %d pods of a pool of %d in an hour, want %d to %d for each place", tc.name, made, tc.size, tc.min, tc.max)
		}
		if early > 3*tc.size {
			t.Errorf("%s: %d pods of a pool of %d in 13 s", tc.name, early, tc.size)
		}
	}
}

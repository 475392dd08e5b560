package lifecycle

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAdopt(t *testing.T) {
	drain := func(busy ...int) func(*Pod) {
		return func(p *Pod) {
			marked(DrainScaleDown, time.Minute)(p)
			drained(busy...)(p)
		}
	}
	three := []Pod{pod("", 0, value(1)), pod("", 1, value(3)), pod("", 2, value(2))}
	for name, tc := range map[string]struct {
		size, owner int
		ordered     bool
		fixed       bool // the owner's size must not be set
		pods        []Pod
		want        []string
		target      int
	}{
		"enough":                            {size: 3, owner: 3, pods: three, want: []string{}, target: 3},
		"too few":                           {size: 5, owner: 3, pods: three, want: []string{}, target: 5},
		"too many: the least valuable":      {size: 2, owner: 3, pods: three, want: []string{"mark -0 scale-down +10m0s"}, target: 3},
		"too many: the highest ordinal":     {size: 2, owner: 3, ordered: true, pods: three, want: []string{"mark -2 scale-down +10m0s"}, target: 3},
		"not ours to scale":                 {size: 2, owner: 3, fixed: true, pods: three, want: []string{}, target: 3},
		"one drains":                        {size: 2, owner: 3, pods: []Pod{pod("", 0), pod("", 1, drain(0, 1)), pod("", 2)}, want: []string{}, target: 3},
		"one has drained":                   {size: 2, owner: 3, pods: []Pod{pod("", 0), pod("", 1, drain(0, 0)), pod("", 2)}, want: []string{}, target: 2},
		"one of two has drained":            {size: 1, owner: 3, pods: []Pod{pod("", 0), pod("", 1, drain(0, 0)), pod("", 2, drain(3, 1))}, want: []string{}, target: 3},
		"demand has returned":               {size: 3, owner: 3, pods: []Pod{pod("", 0), pod("", 1, drain(0, 0)), pod("", 2)}, want: []string{"unmark -1"}, target: 3},
		"the owner will delete it":          {size: 2, owner: 2, pods: []Pod{pod("", 0), pod("", 1, drain(0, 0)), pod("", 2)}, want: []string{}, target: 2},
		"the owner rolls out with a surge":  {size: 2, owner: 2, pods: three, want: []string{}, target: 2},
		"the owner has lowered it, we wait": {size: 2, owner: 2, pods: []Pod{pod("", 0), pod("", 1, drain(0, 0), func(p *Pod) { p.Deleting = true }), pod("", 2)}, want: []string{}, target: 2},
	} {
		t.Run(name, func(t *testing.T) {
			in := &Adopted{
				Input:    Input{Now: noon, Pool: Pool{Name: "p", Size: tc.size, DrainDeadline: 10 * time.Minute, LongestWay: time.Second}, Pods: tc.pods},
				Scalable: !tc.fixed, Owner: tc.owner, Ordered: tc.ordered,
			}
			out, target := Adopt(in)
			if diff := cmp.Diff(tc.want, brief(out.Actions)); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
			if target != tc.target {
				t.Errorf("target %d, want %d", target, tc.target)
			}
			for _, a := range out.Actions {
				if a.Kind == Create || a.Kind == Delete {
					t.Errorf("a pod of somebody else: %+v", a)
				}
			}
		})
	}
}

func TestAdoptedPodsFollowTheirNodes(t *testing.T) {
	onNode := marked(DrainNode, time.Minute)
	for name, tc := range map[string]struct {
		size, owner int
		fixed       bool
		pods        []Pod
		want        []string
	}{
		"both nodes die":                        {size: 2, owner: 2, pods: []Pod{pod("", 0, node(NodeDies)), pod("", 1, node(NodeDies))}, want: []string{"mark -0 node +10m0s", "mark -1 node +10m0s"}},
		"a node dies, and the size is not ours": {fixed: true, owner: 2, pods: []Pod{pod("", 0, node(NodeDies)), pod("", 1)}, want: []string{"mark -0 node +10m0s"}},
		"two leave: one at a time":              {size: 3, owner: 3, pods: []Pod{pod("", 0, node(NodeLeaves)), pod("", 1, node(NodeLeaves)), pod("", 2)}, want: []string{"mark -0 node +10m0s"}},
		"one has left, and another one leaves":  {size: 3, owner: 3, pods: []Pod{pod("", 0, node(NodeLeaves), onNode), pod("", 1, node(NodeLeaves)), pod("", 2)}, want: []string{}},
		"one dies, and another one leaves":      {size: 3, owner: 3, pods: []Pod{pod("", 0, node(NodeDies)), pod("", 1, node(NodeLeaves)), pod("", 2)}, want: []string{"mark -0 node +10m0s"}},
		"one is lost, and may come back":        {size: 2, owner: 2, pods: []Pod{pod("", 0, lost), pod("", 1)}, want: []string{}},
		"one is not ready, but its pod is":      {size: 2, owner: 2, pods: []Pod{pod("", 0, node(NodeUnready)), pod("", 1)}, want: []string{"mark -0 node +10m0s"}},
		"the only one leaves":                   {size: 1, owner: 1, pods: []Pod{pod("", 0, node(NodeLeaves))}, want: []string{}},
		"the node stays after all":              {size: 2, owner: 2, pods: []Pod{pod("", 0, onNode), pod("", 1)}, want: []string{"unmark -0"}},
		"one is too many: the one that goes":    {size: 2, owner: 3, pods: []Pod{pod("", 0), pod("", 1), pod("", 2, node(NodeDies), onNode)}, want: []string{"mark -2 scale-down +10m0s"}},
		"people have stopped it, and it leaves": {size: 2, owner: 2, pods: []Pod{pod("", 0, node(NodeDies), marked(DrainManual, 0)), pod("", 1)}, want: []string{}},
		"it is being deleted":                   {size: 2, owner: 2, pods: []Pod{pod("", 0, node(NodeDies), func(p *Pod) { p.Deleting = true }), pod("", 1)}, want: []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			out, target := Adopt(&Adopted{
				Input:    Input{Now: noon, Pool: Pool{Name: "p", Size: tc.size, DrainDeadline: 10 * time.Minute, LongestWay: time.Second}, Pods: tc.pods},
				Scalable: !tc.fixed, Owner: tc.owner,
			})
			if diff := cmp.Diff(tc.want, brief(out.Actions)); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
			if target != tc.owner {
				t.Errorf("target %d, want %d", target, tc.owner)
			}
		})
	}
}

package lifecycle

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCurrentFollowsTheRollout(t *testing.T) {
	for name, tc := range map[string]struct {
		current string
		pods    []Pod
		want    string
	}{
		"a new pool":                 {"", nil, "b"},
		"an old pod is left":         {"a", []Pod{pod("a", 0), pod("b", 1), pod("b", 2)}, "a"},
		"none is left":               {"a", []Pod{pod("b", 1), pod("b", 2)}, "b"},
		"but a new one does not yet": {"a", []Pod{pod("b", 1), pod("b", 2, loading(time.Minute))}, "a"},
		"status was lost":            {"", []Pod{pod("a", 1), pod("b", 2)}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			out := Make(Input{Now: noon, Pool: Pool{Name: "p", Size: 2, Revision: "b", Current: tc.current, Surge: 1}, Pods: tc.pods})
			if out.Current != tc.want {
				t.Errorf("current %q, want %q", out.Current, tc.want)
			}
		})
	}
}

func TestAPoolAtZeroGrowsWithTheOldRevisionWhileTheRolloutWaits(t *testing.T) {
	for name, tc := range map[string]struct {
		pool Pool
		want []string
	}{
		"refused":    {Pool{Refused: true}, []string{"create p-a-0"}},
		"paused":     {Pool{Paused: true}, []string{"create p-a-0"}},
		"unhindered": {Pool{}, []string{"create p-b-0"}},
	} {
		t.Run(name, func(t *testing.T) {
			pool := tc.pool
			pool.Name, pool.Revision, pool.Current, pool.Surge = "p", "b", "a", 1
			pool.Current = Make(Input{Now: noon, Pool: pool}).Current
			pool.Size = 1
			out := Make(Input{Now: noon, Pool: pool})
			if diff := cmp.Diff(tc.want, brief(out.Actions)); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
		})
	}
}

// TestARolloutKeepsPodsThatServeWithoutTheirReporters: pickers choose them, so that they go one by one as others do, and after those that
// do not serve.
// alone makes a pod one that serves without its reporter.
func alone(p *Pod) {
	p.Ready, p.Loaded, p.Running, p.Serves, p.Trouble.Reason = false, false, true, true, CrashLooping
}

func TestARolloutKeepsPodsThatServeWithoutTheirReporters(t *testing.T) {
	broken := func(p *Pod) { alone(p); p.Serves = false }
	for name, tc := range map[string]struct {
		pods []Pod
		size int
		want []string
	}{
		"all are without":       {[]Pod{pod("a", 0, alone), pod("a", 1, alone)}, 2, []string{"create p-b-2"}},
		"one does not serve":    {[]Pod{pod("a", 0, alone), pod("a", 1, broken)}, 2, []string{"mark a-1 rollout +1h0m0s", "create p-b-2"}},
		"the pool gets smaller": {[]Pod{pod("b", 0, alone), pod("b", 1, loading(time.Minute))}, 1, []string{"mark b-1 scale-down +1h0m0s"}},
	} {
		t.Run(name, func(t *testing.T) {
			out := Make(Input{Now: noon, Pool: Pool{Name: "p", Size: tc.size, Revision: "b", Current: "a", Surge: 1,
				ProgressDeadline: time.Hour, DrainDeadline: time.Hour}, Pods: tc.pods})
			if diff := cmp.Diff(tc.want, brief(out.Actions)); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
		})
	}
}

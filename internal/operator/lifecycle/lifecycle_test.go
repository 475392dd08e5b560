package lifecycle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// noon is about noon: no part of it is 0, so that code that reads the clock is noticed.
var noon = time.Date(2026, 1, 1, 12, 7, 43, 0, time.UTC)

// pod is one that serves since an hour, of revision r in a slot.
func pod(revision string, slot int, change ...func(*Pod)) Pod {
	p := Pod{
		UID: fmt.Sprintf("%s-%d", revision, slot), Name: PodName("p", revision, slot), Slot: slot, Revision: revision,
		Created: noon.Add(-time.Hour), Assigned: true, Running: true, Loaded: true, LoadedAt: noon.Add(-time.Hour),
		Ready: true, ReadyAt: noon.Add(-time.Hour), Synced: true, Shown: Shown{Synced: true},
	}
	for _, f := range change {
		f(&p)
	}
	return p
}

func loading(since time.Duration) func(*Pod) {
	return func(p *Pod) { p.Ready, p.Loaded, p.Created = false, false, noon.Add(-since) }
}

func pending(p *Pod) {
	p.Assigned, p.Running, p.Loaded, p.Ready, p.Synced, p.Shown.Synced = false, false, false, false, false, false
}

func marked(reason string, left time.Duration) func(*Pod) {
	return func(p *Pod) { p.Mark = Mark{reason, noon.Add(left)} }
}

// drained has acknowledged readings that end with these numbers of requests, a second apart, the last just now.
func drained(busy ...int) func(*Pod) {
	return func(p *Pod) {
		p.Acknowledged = noon.Add(-time.Minute)
		for i, n := range busy {
			p.Readings = append(p.Readings, Reading{noon.Add(time.Duration(i+1-len(busy)) * time.Second), n})
		}
	}
}

// ended has a pod end so long ago after a life, when others in a row had ended before it was made.
func ended(ago, life time.Duration, before int) func(*Pod) {
	return func(p *Pod) {
		pending(p)
		p.Finished, p.EndedAt, p.Lived, p.Ends = true, noon.Add(-ago), life, before
	}
}

func value(v float64) func(*Pod)       { return func(p *Pod) { p.Value = v } }
func node(n Node) func(*Pod)           { return func(p *Pod) { p.Node = n } }
func trouble(reason string) func(*Pod) { return func(p *Pod) { p.Trouble.Reason = reason } }

// lost is a pod that its node's controller has made not ready, because the node is not.
func lost(p *Pod) { p.Ready, p.Node = false, NodeUnready }

func held(p *Pod) { p.Mark = Mark{Reason: DrainManual} }

// brief writes actions in short.
func brief(actions []Action) []string {
	out := []string{}
	for _, a := range actions {
		switch a.Kind {
		case Create:
			out = append(out, "create "+a.Name+a.Island)
		case SetMark:
			out = append(out, fmt.Sprintf("mark %s %s +%s", a.UID, a.Mark.Reason, a.Mark.Deadline.Sub(noon)))
		case Unmark:
			out = append(out, "unmark "+a.UID)
		case Delete:
			out = append(out, "delete "+a.UID+" "+a.Cause)
		case WarmUp:
			out = append(out, "warm "+a.UID)
		case Show:
			out = append(out, fmt.Sprintf("show %s %+v", a.UID, a.Shown))
		}
	}
	return out
}

func TestMake(t *testing.T) {
	base := Pool{
		Name: "p", Size: 3, Revision: "b", Current: "b", Surge: 1, ProgressDeadline: 30 * time.Minute,
		DrainDeadline: 10 * time.Minute, LongestWay: 2 * time.Second,
	}
	rolling := func(p *Pool) { p.Current = "a" }
	paused := func(p *Pool) { p.Paused = true }
	refused := func(p *Pool) { p.Refused = true }
	size := func(n int) func(*Pool) { return func(p *Pool) { p.Size = n } }
	limits := func(surge, unavailable int) func(*Pool) {
		return func(p *Pool) { p.Surge, p.Unavailable = surge, unavailable }
	}
	type pools []func(*Pool)
	three := func(revision string) []Pod { return []Pod{pod(revision, 0), pod(revision, 1), pod(revision, 2)} }
	for name, tc := range map[string]struct {
		pool     pools
		pods     []Pod
		want     []string
		progress Progress
		wake     time.Duration // 0: never
	}{
		"an empty pool is filled":            {nil, nil, []string{"create p-b-0", "create p-b-1", "create p-b-2"}, UpToDate, 0},
		"a steady pool is left alone":        {nil, three("b"), nil, UpToDate, 0},
		"the lowest free slot is taken":      {nil, []Pod{pod("b", 0), pod("b", 2)}, []string{"create p-b-1"}, UpToDate, 0},
		"a slot is taken until its pod went": {nil, []Pod{pod("b", 0, func(p *Pod) { p.Deleting = true }), pod("b", 1), pod("b", 2)}, []string{"create p-b-3"}, UpToDate, 0},
		"a pod that ends is replaced at once and kept to be looked at": {
			nil, []Pod{pod("b", 0, ended(time.Second, time.Hour, 0)), pod("b", 1), pod("b", 2)},
			[]string{"create p-b-3"}, UpToDate, time.Hour - time.Second,
		},
		"the second end in a row is replaced after a pause": {
			nil, []Pod{pod("b", 0, ended(4*time.Second, time.Second, 1)), pod("b", 1), pod("b", 2)},
			nil, UpToDate, 6 * time.Second,
		},
		"and when the pause is over": {
			nil, []Pod{pod("b", 0, ended(10*time.Second, time.Second, 1)), pod("b", 1), pod("b", 2)},
			[]string{"create p-b-3"}, UpToDate, time.Hour - 10*time.Second,
		},
		"the pause doubles": {
			nil, []Pod{pod("b", 0, ended(time.Second, time.Second, 4)), pod("b", 1), pod("b", 2)},
			nil, UpToDate, 79 * time.Second,
		},
		"and ends at six minutes": {
			nil, []Pod{pod("b", 0, ended(time.Second, time.Second, 1000)), pod("b", 1), pod("b", 2)},
			nil, UpToDate, 6*time.Minute - time.Second,
		},
		"a pod that lived for long begins a new series": {
			nil, []Pod{pod("b", 0, ended(time.Second, 10*time.Minute, 5)), pod("b", 1), pod("b", 2)},
			[]string{"create p-b-3"}, UpToDate, time.Hour - time.Second,
		},
		"only the place of what ended waits": {
			pools{size(4)}, []Pod{pod("b", 0, ended(time.Second, time.Second, 1)), pod("b", 1), pod("b", 2)},
			[]string{"create p-b-3"}, UpToDate, 9 * time.Second,
		},
		"another template is tried at once": {
			nil, []Pod{pod("a", 0, ended(time.Second, time.Second, 7)), pod("b", 1), pod("b", 2)},
			[]string{"create p-b-3"}, UpToDate, time.Hour - time.Second,
		},
		"what ended an hour ago goes": {
			nil, append(three("b"), pod("b", 3, ended(time.Hour, time.Second, 9))),
			[]string{"delete b-3 Finished"}, UpToDate, 0,
		},
		"three pods that ended are kept, the newest": {
			nil, append(three("b"), pod("b", 3, ended(5*time.Minute, time.Minute, 0)), pod("b", 4, ended(4*time.Minute, time.Minute, 0)),
				pod("b", 5, ended(3*time.Minute, time.Minute, 0)), pod("b", 6, ended(2*time.Minute, time.Minute, 0))),
			[]string{"delete b-3 Finished"}, UpToDate, 56 * time.Minute,
		},
		"a pod that ends while it drains goes": {
			nil, append(three("b"), pod("b", 3, ended(time.Second, time.Second, 3), marked(DrainScaleDown, time.Minute))),
			[]string{"delete b-3 Finished"}, UpToDate, 0,
		},
		"new pods that end twice in a row stop a rollout": {
			pools{rolling}, append(three("a"), pod("b", 3, ended(20*time.Second, time.Second, 1))), nil, Stopped, time.Hour - 20*time.Second,
		},
		"a rollout goes on when a new pod is ready since": {
			pools{rolling}, append(three("a"), pod("b", 3, ended(2*time.Hour, time.Second, 1)), pod("b", 4)),
			[]string{"delete b-3 Finished", "mark a-0 rollout +10m0s"}, RollingOut, time.Second,
		},
		"the least valuable cache goes": {
			pools{size(2)}, []Pod{pod("b", 0, value(7)), pod("b", 1, value(3)), pod("b", 2, value(5))},
			[]string{"mark b-1 scale-down +10m0s"}, UpToDate, time.Second,
		},
		"what is not ready goes before what is least valuable": {
			pools{size(2)}, []Pod{pod("b", 0, value(7), loading(time.Minute)), pod("b", 1), pod("b", 2)},
			[]string{"mark b-0 scale-down +10m0s"}, UpToDate, time.Second,
		},
		"what does not run is deleted at once": {
			pools{size(2)}, []Pod{pod("b", 0), pod("b", 1), pod("b", 2, pending)},
			[]string{"delete b-2 Surplus"}, UpToDate, 0,
		},
		"a pod whose picks people have stopped keeps its place": {nil, []Pod{pod("b", 0, held), pod("b", 1), pod("b", 2)}, nil, UpToDate, 0},
		"idle, it says so": {
			nil, []Pod{pod("b", 0, held, drained(0, 0)), pod("b", 1), pod("b", 2)},
			[]string{"show b-0 {Synced:true Warm:false Idle:true}"}, UpToDate, 0,
		},
		"with a deadline it is replaced": {
			nil, []Pod{pod("b", 0, marked(DrainManual, time.Minute)), pod("b", 1), pod("b", 2)},
			[]string{"create p-b-3"}, UpToDate, time.Second,
		},
		"to zero": {
			pools{size(0)}, []Pod{pod("b", 0), pod("b", 1, pending)},
			[]string{"delete b-1 Surplus", "mark b-0 scale-down +10m0s"}, UpToDate, time.Second,
		},

		"a busy pod drains on":                      {pools{size(2)}, []Pod{pod("b", 0, marked(DrainScaleDown, time.Minute), drained(0, 2)), pod("b", 1), pod("b", 2)}, nil, UpToDate, time.Second},
		"one idle reading is not enough":            {pools{size(2)}, []Pod{pod("b", 0, marked(DrainScaleDown, time.Minute), drained(2, 0)), pod("b", 1), pod("b", 2)}, nil, UpToDate, time.Second},
		"the last readings count":                   {pools{size(2)}, []Pod{pod("b", 0, marked(DrainScaleDown, time.Minute), drained(0, 1, 0)), pod("b", 1), pod("b", 2)}, nil, UpToDate, time.Second},
		"an idle pod is deleted":                    {pools{size(2)}, []Pod{pod("b", 0, marked(DrainScaleDown, time.Minute), drained(2, 0, 0)), pod("b", 1), pod("b", 2)}, []string{"delete b-0 Idle"}, UpToDate, 0},
		"a picker has not acknowledged the mark":    {pools{size(2)}, []Pod{pod("b", 0, marked(DrainScaleDown, time.Minute), drained(0, 0), func(p *Pod) { p.Acknowledged = time.Time{} }), pod("b", 1), pod("b", 2)}, nil, UpToDate, time.Second},
		"requests may be on their way":              {pools{size(2)}, []Pod{pod("b", 0, marked(DrainScaleDown, time.Minute), drained(0, 0), func(p *Pod) { p.Acknowledged = noon.Add(-3 * time.Second) }), pod("b", 1), pod("b", 2)}, nil, UpToDate, time.Second},
		"readings grow old":                         {pools{size(2)}, []Pod{pod("b", 0, marked(DrainScaleDown, time.Minute), drained(0, 0), func(p *Pod) { p.Readings[0].At = noon.Add(-11 * time.Second) }), pod("b", 1), pod("b", 2)}, nil, UpToDate, time.Second},
		"the deadline is near":                      {pools{size(2)}, []Pod{pod("b", 0, marked(DrainScaleDown, 300*time.Millisecond), drained(1, 1)), pod("b", 1), pod("b", 2)}, nil, UpToDate, 300 * time.Millisecond},
		"the deadline has come":                     {pools{size(2)}, []Pod{pod("b", 0, marked(DrainScaleDown, 0), drained(1, 1)), pod("b", 1), pod("b", 2)}, []string{"delete b-0 Deadline"}, UpToDate, 0},
		"a mark of ours without a deadline":         {pools{size(2)}, []Pod{pod("b", 0, func(p *Pod) { p.Mark.Reason = DrainRollout }), pod("b", 1), pod("b", 2)}, []string{"mark b-0 rollout +10m0s"}, UpToDate, time.Second},
		"the best draining pod is taken back":       {pools{size(2)}, []Pod{pod("b", 0, marked(DrainScaleDown, time.Minute), value(1)), pod("b", 1, marked(DrainScaleDown, time.Minute), value(9)), pod("b", 2)}, []string{"unmark b-1"}, UpToDate, time.Second},
		"a draining pod that fails is not":          {nil, []Pod{pod("b", 0, marked(DrainScaleDown, time.Minute), trouble(CrashLooping)), pod("b", 1), pod("b", 2)}, []string{"create p-b-3"}, UpToDate, time.Second},
		"one of an older revision is, for capacity": {pools{rolling}, []Pod{pod("a", 0, marked(DrainScaleDown, time.Minute)), pod("a", 1, marked(DrainScaleDown, time.Minute), value(1)), pod("a", 2), pod("b", 3)}, []string{"unmark a-1", "create p-b-4"}, RollingOut, time.Second},

		"a rollout begins with a new pod":               {pools{rolling}, three("a"), []string{"create p-b-3"}, RollingOut, 0},
		"it waits for the new pod":                      {pools{rolling}, append(three("a"), pod("b", 3, loading(time.Minute))), nil, RollingOut, 29 * time.Minute},
		"though it has no node":                         {pools{rolling}, append(three("a"), pod("b", 3, pending, func(p *Pod) { p.Created = noon.Add(-time.Minute) })), nil, RollingOut, 29 * time.Minute},
		"then an old one drains":                        {pools{rolling}, append(three("a"), pod("b", 3)), []string{"mark a-0 rollout +10m0s"}, RollingOut, time.Second},
		"a draining pod keeps its place":                {pools{rolling}, []Pod{pod("a", 0, marked(DrainRollout, time.Minute)), pod("a", 1), pod("a", 2), pod("b", 3)}, nil, RollingOut, time.Second},
		"without surge an old one drains first":         {pools{rolling, limits(0, 1)}, three("a"), []string{"mark a-0 rollout +10m0s"}, RollingOut, time.Second},
		"and the new one comes when it has gone":        {pools{rolling, limits(0, 1)}, three("a")[1:], []string{"create p-b-0"}, RollingOut, 0},
		"old pods that are not ready are removed first": {pools{rolling}, []Pod{pod("a", 0), pod("a", 1, loading(time.Hour)), pod("a", 2), pod("b", 3)}, []string{"mark a-1 rollout +10m0s"}, RollingOut, time.Second},
		"a moment of not being ready removes none":      {pools{rolling}, []Pod{pod("a", 0, loading(time.Hour)), pod("a", 1, loading(time.Hour)), pod("a", 2, loading(time.Hour)), pod("b", 3, loading(time.Minute))}, nil, RollingOut, 29 * time.Minute},
		"hopeless old pods go at once":                  {pools{rolling}, []Pod{pod("a", 0, loading(time.Hour), trouble(CrashLooping)), pod("a", 1), pod("a", 2)}, []string{"mark a-0 rollout +10m0s", "create p-b-3"}, RollingOut, time.Second},
		"a rollout that does not come up stops":         {pools{rolling}, append(three("a"), pod("b", 3, loading(30*time.Minute))), nil, Stopped, 0},
		"stopped, a lost old pod is made again":         {pools{rolling, limits(2, 0)}, append(three("a")[1:], pod("b", 3, loading(time.Hour))), []string{"create p-a-0"}, Stopped, 0},
		"stopped, only as many as may exist":            {pools{rolling, limits(0, 1)}, append(three("a")[1:], pod("b", 3, loading(time.Hour))), nil, Stopped, 0},
		"stopped, the pool may shrink":                  {pools{rolling, size(2)}, append(three("a"), pod("b", 3, loading(time.Hour))), []string{"mark a-0 scale-down +10m0s"}, Stopped, time.Second},
		"stopped, the failing pod goes with the last":   {pools{rolling, size(0)}, []Pod{pod("b", 3, loading(time.Hour))}, []string{"mark b-3 scale-down +10m0s"}, Stopped, time.Second},
		"stopped, marked old pods are taken back":       {pools{rolling}, []Pod{pod("a", 0, marked(DrainRollout, time.Minute)), pod("a", 1), pod("a", 2), pod("b", 3, loading(time.Hour))}, []string{"unmark a-0"}, Stopped, 0},
		"rolled back, the failing pod goes":             {pools{func(p *Pool) { p.Revision, p.Current = "a", "a" }}, append(three("a"), pod("b", 3, loading(time.Hour))), []string{"mark b-3 rollout +10m0s"}, RollingOut, time.Second},
		"rolled back, marked pods are taken back":       {pools{func(p *Pool) { p.Revision, p.Current = "a", "a" }}, []Pod{pod("a", 0, marked(DrainRollout, time.Minute)), pod("a", 1), pod("a", 2), pod("b", 3)}, []string{"unmark a-0", "mark b-3 rollout +10m0s"}, RollingOut, time.Second},
		"a pause replaces nothing":                      {pools{rolling, paused}, []Pod{pod("a", 0), pod("a", 1), pod("b", 2)}, nil, Paused, 0},
		"a pause makes what is lost as it was":          {pools{rolling, paused}, three("a")[:2], []string{"create p-a-2"}, Paused, 0},
		"a pause fills a new pool":                      {pools{paused, func(p *Pool) { p.Current = "" }}, nil, []string{"create p-b-0", "create p-b-1", "create p-b-2"}, UpToDate, 0},
		"a pause ends the step that has begun":          {pools{rolling, paused}, append(three("a"), pod("b", 3, loading(time.Minute))), []string{"mark b-3 scale-down +10m0s"}, Paused, time.Second},
		"a pause lets drains end":                       {pools{rolling, paused}, append(three("b"), pod("a", 3, marked(DrainRollout, time.Minute), drained(0, 0))), []string{"delete a-3 Idle"}, Paused, 0},
		"a pause replaces pods of nodes that go away":   {pools{rolling, paused, size(1)}, []Pod{pod("a", 0, node(NodeLeaves))}, []string{"create p-a-1"}, Paused, 0},
		"refused pods replace none":                     {pools{rolling, refused}, three("a"), nil, Refused, 0},
		"what is lost while refused comes back":         {pools{rolling, refused}, three("a")[:2], []string{"create p-a-2"}, Refused, 0},
		"refused without a rollout, pods are created":   {pools{refused}, three("b")[:2], []string{"create p-b-2"}, UpToDate, 0},
		"a pause follows the size":                      {pools{rolling, paused, size(4)}, three("a"), []string{"create p-a-3"}, Paused, 0},
		"OnDelete waits":                                {pools{rolling, func(p *Pool) { p.OnDelete = true }}, three("a"), nil, WaitingOnDelete, 0},
		"OnDelete replaces what somebody deleted":       {pools{rolling, func(p *Pool) { p.OnDelete = true }}, three("a")[:2], []string{"create p-b-2"}, WaitingOnDelete, 0},
		"a pod on a leaving node is replaced first":     {nil, []Pod{pod("b", 0, node(NodeLeaves)), pod("b", 1), pod("b", 2)}, []string{"create p-b-3"}, UpToDate, 0},
		"and drains then":                               {nil, append(three("b")[1:], pod("b", 3), pod("b", 4, node(NodeLeaves))), []string{"mark b-4 node +10m0s"}, UpToDate, time.Second},
		"and drains then, though no reporter runs":      {nil, []Pod{pod("b", 1, alone), pod("b", 2, alone), pod("b", 3), pod("b", 4, alone, node(NodeLeaves))}, []string{"mark b-4 node +10m0s"}, UpToDate, time.Second},
		"a pod on a dying node gets no more picks":      {nil, []Pod{pod("b", 0, node(NodeDies)), pod("b", 1), pod("b", 2)}, []string{"mark b-0 node +10m0s", "create p-b-3"}, UpToDate, time.Second},
		"lost pods are replaced whatever the surge is":  {pools{size(4)}, []Pod{pod("b", 0, lost), pod("b", 1, lost), pod("b", 2), pod("b", 3)}, []string{"create p-b-4", "create p-b-5"}, UpToDate, 0},
		"a lost pod is, without surge, too":             {pools{size(1), limits(0, 1)}, []Pod{pod("b", 0, lost)}, []string{"create p-b-1"}, UpToDate, 0},
		"a lost pod stays until its replacement serves": {nil, []Pod{pod("b", 0, lost), pod("b", 1), pod("b", 2), pod("b", 3, loading(0))}, nil, UpToDate, 30 * time.Minute},
		"a lost pod drains then":                        {nil, []Pod{pod("b", 0, lost), pod("b", 1), pod("b", 2), pod("b", 3)}, []string{"mark b-0 node +10m0s"}, UpToDate, time.Second},
		"two are lost, and one is replaced":             {nil, []Pod{pod("b", 0, lost), pod("b", 1, lost, value(1)), pod("b", 2), pod("b", 3), pod("b", 4, loading(0))}, []string{"mark b-0 node +10m0s"}, UpToDate, time.Second},
		"a lost pod that comes back serves on":          {nil, []Pod{pod("b", 0), pod("b", 1), pod("b", 2), pod("b", 3, loading(0))}, []string{"mark b-3 scale-down +10m0s"}, UpToDate, time.Second},
		"a pod that is ready though its node is not":    {nil, []Pod{pod("b", 0, node(NodeUnready)), pod("b", 1), pod("b", 2)}, []string{"create p-b-3"}, UpToDate, 0},
		"a lost new pod stops no rollout":               {pools{rolling}, append(three("a"), pod("b", 3, lost)), []string{"mark b-3 node +10m0s", "create p-b-4"}, RollingOut, time.Second},
		"to zero, with a lost pod":                      {pools{size(0)}, []Pod{pod("b", 0, lost)}, []string{"mark b-0 node +10m0s"}, UpToDate, time.Second},
		"a misplaced pod is made again elsewhere":       {nil, []Pod{pod("b", 0, pending, func(p *Pod) { p.Misplaced = true }), pod("b", 1), pod("b", 2)}, []string{"delete b-0 Replaced", "create p-b-3"}, UpToDate, 0},
		"a slow start is looked at when it is due":      {nil, []Pod{pod("b", 0, loading(time.Minute)), pod("b", 1), pod("b", 2)}, nil, UpToDate, 29 * time.Minute},
		"a scale-down in a rollout takes old pods":      {pools{rolling, size(1)}, append(three("a"), pod("b", 3)), []string{"mark a-0 scale-down +10m0s", "mark a-1 scale-down +10m0s", "mark a-2 scale-down +10m0s"}, RollingOut, time.Second},
		"the last old pod's end is the rollout's":       {pools{rolling}, three("b"), nil, RollingOut, 0},
	} {
		t.Run(name, func(t *testing.T) {
			pool := base
			for _, f := range tc.pool {
				f(&pool)
			}
			out := Make(Input{Now: noon, Pool: pool, Pods: tc.pods})
			want := append([]string{}, tc.want...)
			if diff := cmp.Diff(want, brief(out.Actions)); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
			if out.Progress != tc.progress {
				t.Errorf("progress %d, want %d", out.Progress, tc.progress)
			}
			wake := time.Duration(0)
			if !out.Wake.IsZero() {
				wake = out.Wake.Sub(noon)
			}
			if wake != tc.wake {
				t.Errorf("wakes after %s, want %s", wake, tc.wake)
			}
		})
	}
}

func TestWarmUp(t *testing.T) {
	pool := Pool{Name: "p", Size: 1, Revision: "b", Current: "b", Surge: 1, WarmUp: time.Minute, ProgressDeadline: time.Hour}
	gate := func(since time.Duration, change func(*Pod)) Pod {
		return pod("b", 0, func(p *Pod) { p.WarmGate, p.Ready, p.LoadedAt = true, false, noon.Add(-since) }, change)
	}
	for name, tc := range map[string]struct {
		pod  Pod
		want []string
		wake time.Duration
	}{
		"it begins when the engine is there": {gate(10*time.Second, func(*Pod) {}), []string{"warm b-0"}, 50 * time.Second},
		"not before":                         {gate(0, func(p *Pod) { p.Loaded = false }), []string{}, 0},
		"it ends":                            {gate(10*time.Second, func(p *Pod) { p.WarmedUp = true }), []string{"show b-0 {Synced:true Warm:true Idle:false}"}, 0},
		"it ends in time, whatever happens":  {gate(time.Minute, func(*Pod) {}), []string{"show b-0 {Synced:true Warm:true Idle:false}"}, 0},
		"once":                               {gate(time.Minute, func(p *Pod) { p.Shown.Warm = true }), []string{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			out := Make(Input{Now: noon, Pool: pool, Pods: []Pod{tc.pod}})
			if diff := cmp.Diff(tc.want, brief(out.Actions)); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
			if wake := out.Wake.Sub(noon); tc.wake != 0 && wake != tc.wake {
				t.Errorf("wakes after %s, want %s", wake, tc.wake)
			}
		})
	}
}

func TestIslands(t *testing.T) {
	place := func(held map[string]int) (string, bool) {
		for _, island := range []string{"-x", "-y"} {
			if held[island] < 2 {
				return island, true
			}
		}
		return "", false
	}
	on := func(island string) func(*Pod) { return func(p *Pod) { p.Island = island } }
	pool := Pool{Name: "p", Size: 5, Revision: "b", Current: "b", Surge: 1}
	out := Make(Input{Now: noon, Pool: pool, Pods: []Pod{pod("b", 0, on("-x")), pod("b", 1, on("-y"), marked(DrainNode, time.Minute), node(NodeLeaves))}, Place: place})
	if diff := cmp.Diff([]string{"create p-b-2-x", "create p-b-3-y", "create p-b-4-y"}, brief(out.Actions)); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
	if !out.NoRoom {
		t.Error("the lack of room is not reported")
	}
	if diff := cmp.Diff(map[string]IslandCounts{"-x": {Total: 1, Ready: 1}}, out.Counts.Islands); diff != "" {
		t.Errorf("islands (-want +got):\n%s", diff)
	}

	// An island that must not lose pods keeps them, be they worth ever so little.
	pool.Size = 1
	stay := func(held map[string]int, island string) int {
		if island == "-x" && held["-x"] < 2 {
			return 1
		}
		return 0
	}
	pods := []Pod{pod("b", 0, on("-x")), pod("b", 1, on("-x")), pod("b", 2, on("-y"), value(9))}
	out = Make(Input{Now: noon, Pool: pool, Pods: pods, Leave: stay})
	if diff := cmp.Diff([]string{"mark b-0 scale-down +0s", "mark b-2 scale-down +0s"}, brief(out.Actions)); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
}

// TestACrashIsReportedAndChangesNothing: a container that was started again is given its time, as a new one is.
func TestACrashIsReportedAndChangesNothing(t *testing.T) {
	pool := Pool{Name: "p", Size: 4, Revision: "b", Current: "a", Surge: 1, ProgressDeadline: 2 * time.Hour}
	pods := []Pod{
		pod("a", 0), pod("a", 1, loading(time.Hour)), pod("b", 0), pod("b", 1, loading(3*time.Hour)), pod("b", 2, pending, trouble(Unschedulable)),
		pod("b", 3, func(p *Pod) { p.Deleting = true }),
	}
	before := Make(Input{Now: noon, Pool: pool, Pods: slices.Clone(pods)})
	for i := range pods {
		pods[i].Crashed = Trouble{Reason: CrashLooping, Message: "exit code 1"}
	}
	after := Make(Input{Now: noon, Pool: pool, Pods: pods})
	if diff := cmp.Diff(brief(before.Actions), brief(after.Actions)); diff != "" {
		t.Errorf("actions without and with a crash:\n%s", diff)
	}
	got := map[string]string{}
	for _, s := range after.Pods {
		got[s.Pod.UID] = s.Trouble.Reason
	}
	want := map[string]string{"a-0": CrashLooping, "a-1": CrashLooping, "b-0": CrashLooping, "b-1": CrashLooping, "b-2": Unschedulable, "b-3": ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("troubles (-want +got):\n%s", diff)
	}
}

func TestStages(t *testing.T) {
	pool := Pool{Name: "p", Size: 8, Revision: "b", Current: "b", Surge: 1, LongestWay: time.Second, ProgressDeadline: 30 * time.Minute}
	pods := []Pod{
		pod("b", 0),
		pod("b", 1, pending, trouble(Unschedulable)),
		pod("b", 2, loading(time.Minute), func(p *Pod) { p.Synced = false }),
		pod("b", 3, loading(time.Hour)),
		pod("b", 4, func(p *Pod) { p.Ready, p.WarmGate = false, true }),
		pod("b", 5, func(p *Pod) { p.Ready, p.WarmGate, p.Shown.Warm = false, true, true }),
		pod("b", 6, held, drained(1, 1)),
		pod("b", 7, held, drained(0, 0)),
		pod("b", 8, func(p *Pod) { p.Deleting = true }),
		pod("b", 9, func(p *Pod) { p.Finished = true }),
	}
	out := Make(Input{Now: noon, Pool: pool, Pods: pods})
	var got []string
	for _, s := range out.Pods {
		got = append(got, fmt.Sprintf("%s %s%s", s.Pod.UID, s.Stage, s.Trouble.Reason))
	}
	want := []string{
		"b-1 ScheduledUnschedulable", "b-3 LoadingSlowStart", "b-2 Loading", "b-4 Synced", "b-5 Warm", "b-6 Draining",
		"b-7 Idle", "b-8 Draining", "b-0 Ready",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stages (-want +got):\n%s", diff)
	}
	counts := Counts{
		Total: 9, Staying: 6, Ready: 1, Updated: 6, Draining: 2, Synced: 7,
		Islands: map[string]IslandCounts{"": {Total: 8, Ready: 1, Pending: 1}},
	}
	if diff := cmp.Diff(counts, out.Counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

// TestPodsThatAlwaysEndAreMadeRarely plays pools whose pods all end within a second: a place is filled at once after the
// first end, and then less and less often.
func TestPodsThatAlwaysEndAreMadeRarely(t *testing.T) {
	for _, size := range []int{1, 3, 20} {
		pool := Pool{Name: "p", Size: size, Revision: "b", Current: "b", Surge: 1, ProgressDeadline: 30 * time.Minute}
		made, most, pods := 0, 0, []Pod{}
		for now := noon; now.Before(noon.Add(time.Hour)); now = now.Add(time.Second) {
			for i := range pods {
				if p := &pods[i]; !p.Finished {
					p.Finished, p.EndedAt, p.Lived = true, now, time.Second
				}
			}
			for _, a := range Make(Input{Now: now, Pool: pool, Pods: pods}).Actions {
				switch a.Kind {
				case Create:
					made++
					pods = append(pods, Pod{UID: fmt.Sprint(made), Name: a.Name, Slot: a.Slot, Revision: a.Revision, Ends: a.Ends, Created: now})
				case Delete:
					pods = slices.DeleteFunc(pods, func(p Pod) bool { return p.UID == a.UID })
				}
			}
			most = max(most, len(pods))
		}
		// 2 without a pause, 6 while it doubles to 320 s, then one in six minutes.
		if perPlace := made / size; perPlace < 10 || perPlace > 18 {
			t.Errorf("%d pods of a pool of %d in an hour", made, size)
		}
		if most > size+keptEnded {
			t.Errorf("%d pods of a pool of %d are there at a time", most, size)
		}
	}
}

// TestAServingPodOnADyingNodeIsMarkedAtOnce, however many pods it is the successor of.
func TestAServingPodOnADyingNodeIsMarkedAtOnce(t *testing.T) {
	young := func(p *Pod) { p.Node, p.Moves, p.Created = NodeDies, 9, noon.Add(-time.Second) }
	out := Make(Input{Now: noon, Pool: Pool{Name: "p", Size: 1, Revision: "b", Current: "b", Surge: 1}, Pods: []Pod{pod("b", 0, young)}})
	if diff := cmp.Diff([]string{"mark b-0 node +0s", "create p-b-1"}, brief(out.Actions)); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
	if moves := out.Actions[1].Moves; moves != 10 {
		t.Errorf("the successor counts %d moves, want 10", moves)
	}
}

// TestTheOrderOfPodsDoesNotMatter makes sure that a view in another order leads to the same decision.
func TestTheOrderOfPodsDoesNotMatter(t *testing.T) {
	pods := []Pod{pod("a", 0), pod("a", 1, marked(DrainScaleDown, time.Minute)), pod("b", 2), pod("b", 3, loading(time.Minute)), pod("a", 4)}
	in := Input{Now: noon, Pool: Pool{Name: "p", Size: 2, Revision: "b", Current: "a", Surge: 1}, Pods: pods}
	want := Make(in)
	for range 20 {
		in.Pods = append(slices.Clone(in.Pods[1:]), in.Pods[0])
		if diff := cmp.Diff(brief(want.Actions), brief(Make(in).Actions)); diff != "" {
			t.Fatalf("actions (-want +got):\n%s", diff)
		}
	}
}

package picker

import (
	"math"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// operated is a pool with n endpoints, picked by the longest prefix, and what it reports to the operator.
func operated(t *testing.T, n int) (p *Picker, c *clock, told func() Operated) {
	t.Helper()
	c = newClock()
	spec := testSpec(t, n)
	spec.Generation, spec.Policy.Name, spec.Policy.Generation = 3, "chat", 4
	spec.Policy.Strategy = policy.Default(policy.LongestPrefix)
	p = newPicker(t, c, spec)
	return p, c, func() Operated {
		o, ok := p.Operate("default/m")
		if !ok {
			t.Fatal("the pool is not known")
		}
		return o
	}
}

func TestOnlyWhatNoOtherPodHoldsIsWorthSomething(t *testing.T) {
	p, c, told := operated(t, 3)
	shared, own := keysOf(t, "m", 0, 640), keysOf(t, "m", 10_000, 640)
	a, b := feed(t, p, "pod-0"), feed(t, p, "pod-1")
	hold(a, shared...)
	hold(b, shared[:20]...) // half of it
	hold(a, own...)
	ask := func(first int) {
		t.Helper()
		d := pick(t, p, completion("m", first, 640, true))
		if d.Targets[0].Endpoint.Pod != "pod-0" {
			t.Fatalf("chosen %s", d.Targets[0].Endpoint.Pod)
		}
		d.FirstToken()
		d.End(Completed)
	}
	ask(0) // 39 full blocks before the last token; the other endpoint has 20 of them
	if got, want := told().Pods["pod-0"].Value, 19.0*16; got != want {
		t.Errorf("value %v after a request that half is held elsewhere of, want %v", got, want)
	}
	ask(10_000)
	want := (19.0 + 39) * 16
	if got := told().Pods["pod-0"].Value; got != want {
		t.Errorf("value %v, want %v", got, want)
	}
	c.advance(valueLife)
	if got := told().Pods["pod-0"].Value; math.Abs(got-want/math.E) > 1e-6 {
		t.Errorf("value %v when its life is over, want %v", got, want/math.E)
	}
	for _, pod := range []string{"pod-1", "pod-2"} {
		if got := told().Pods[pod].Value; got != 0 {
			t.Errorf("value %v of %s, which no request has hit", got, pod)
		}
	}
}

func TestRanksOfAPodHoldForEachOther(t *testing.T) {
	c := newClock()
	spec := testSpec(t, 2)
	spec.Endpoints[1].ID = spec.Endpoints[0].ID
	spec.Endpoints[1].ID.Rank = 1
	spec.Policy.Strategy = policy.Default(policy.LongestPrefix)
	p := newPicker(t, c, spec)
	feeds := p.Feeds()
	hold(feeds[0], keysOf(t, "m", 0, 640)...)
	hold(feeds[1], keysOf(t, "m", 0, 320)...)
	pick(t, p, completion("m", 0, 640, true)).End(Completed)
	o, _ := p.Operate("default/m")
	if got := o.Pods["pod-0"].Value; got != 39*16 {
		t.Errorf("value %v: when the pod goes, both of its ranks do", got)
	}
}

func TestTotalsCountWhatWasPlaced(t *testing.T) {
	p, c, told := operated(t, 1)
	if o := told(); !o.Totals.LastRequest.IsZero() || o.PoolGeneration != 3 || o.PolicyName != "chat" || o.PolicyGeneration != 4 {
		t.Errorf("at first: %+v", o)
	}
	f := feed(t, p, "pod-0")
	hold(f, keysOf(t, "m", 0, 160)...)
	streamed := pick(t, p, completion("m", 0, 320, true))
	whole := pick(t, p, completion("m", 5000, 320, false))
	o := told()
	if pod := o.Pods["pod-0"]; pod.InFlight != 2 || pod.UncachedTokens != 160+320 || !o.Pickable["pod-0"] {
		t.Errorf("under way: %+v", pod)
	}
	c.advance(300 * time.Millisecond)
	for range 2 {
		streamed.FirstToken()
		whole.FirstToken() // which is the complete answer
	}
	streamed.End(Completed)
	whole.End(Completed)
	f.Writer.Drop(0, 0, asHashes(keysOf(t, "m", 0, 160)[:3]))
	got := told().Totals
	want := operatorfeed.Totals{
		Requests: 2, PromptTokens: 640, HitTokens: 160, PrefillTokens: 480, Evictions: 3, LastRequest: got.LastRequest, WorkSeconds: got.WorkSeconds,
	}
	want.TTFT.Add(0.3)
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got.WorkSeconds <= 0 || !got.LastRequest.Equal(c.Now().Add(-300*time.Millisecond)) {
		t.Errorf("work %v s, last request %v", got.WorkSeconds, got.LastRequest)
	}
	if _, ok := p.Operate("default/other"); ok {
		t.Error("a pool that is not there")
	}
}

func TestTheOperatorHearsWhatEnginesReport(t *testing.T) {
	now := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	ranks := make([]member, 2)
	read := func() (pod operatorfeed.PodState) {
		for i := range ranks {
			pod.Busy, pod.ReadAge = readRank(&ranks[i], now, pod, i > 0)
		}
		return pod
	}
	expect := func(busy int, age time.Duration) {
		t.Helper()
		if got := read(); got.Busy != busy || got.ReadAge != age {
			t.Errorf("%d busy, read %s ago, want %d and %s", got.Busy, got.ReadAge, busy, age)
		}
	}
	expect(0, 0)
	ranks[1].load.Observe(now.Add(-time.Second), load.Report{Running: 2, Waiting: 1})
	expect(0, 0) // a rank that was never read could have any number
	ranks[0].load.Observe(now.Add(-3*time.Second), load.Report{Running: 1})
	expect(4, 3*time.Second)
	ranks[0].load.Observe(now, load.Report{})
	ranks[1].load.Observe(now, load.Report{})
	expect(0, time.Millisecond)
}

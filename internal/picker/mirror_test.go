package picker

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/hooks"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// mirrored is a route to the pool stable, with copies for next.
func mirrored(percent int) modelroute.Route {
	r := canary(1, 0)
	r.Rules[0].Mirrors = []modelroute.Mirror{{Backend: modelroute.Backend{Pool: "default/next"}, Percent: percent}}
	return r
}

// copyOf picks for a request, which ends, and returns its only copy.
func copyOf(t *testing.T, p *Picker, header map[string]string) *Mirror {
	t.Helper()
	in := requestFor(1, "chat", header)
	d, err := p.Pick(context.Background(), in)
	if err != nil {
		t.Fatal(err)
	}
	defer d.End(Completed)
	all := p.Mirrors(in, d)
	if len(all) != 1 || all[0].Pool() != "default/next" {
		t.Fatalf("copies %v", all)
	}
	return all[0]
}

// pool is the view of a pool.
func (p *Picker) pool(t *testing.T, name string) *view {
	t.Helper()
	v := p.named("default/" + name)
	if v == nil {
		t.Fatalf("no pool %s", name)
	}
	return v
}

// TestACopyDecidesNothing: neither that it was picked for, nor how it ends, changes what is known for the limits, the retry budget, the
// circuits and the scaling of any pool, nor what a route has let through. Only its load counts, while it lasts.
func TestACopyDecidesNothing(t *testing.T) {
	for name, end := range map[string]func(*Decision){
		"completed": func(d *Decision) { d.FirstToken(); d.End(Completed) },
		"rejected":  func(d *Decision) { d.End(Rejected) },
		"failed":    func(d *Decision) { d.Fail(); d.End(Failed) },
		"late":      func(d *Decision) { d.FailLate(); d.End(Failed) },
		"errored":   func(d *Decision) { d.failed(errored); d.End(Failed) },
		"cut off":   func(d *Decision) { d.Abandon(); d.End(Failed) },
		"reported":  func(d *Decision) { d.Usage(256, 32); d.End(Completed) },
		"uncached":  func(d *Decision) { d.Usage(256, -1); d.End(Completed) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			p := newPicker(t, c)
			specs := routedSpecs(t, "stable", "next")
			specs[1].Policy.Admission.Tenants = &TenantsSpec{Header: FairnessHeader, Reject: true,
				Default: &tenant.Class{Weight: 1, RequestsPerMinute: 100, TokensPerMinute: 1000, MaxConcurrent: 5}}
			route := mirrored(100)
			route.Limits = modelroute.Limits{RequestsPerMinute: 100, MaxConcurrent: 5}
			if err := p.Apply(specs, route); err != nil {
				t.Fatal(err)
			}
			m := copyOf(t, p, map[string]string{FairnessHeader: "acme"})
			v := p.pool(t, "next")
			v.members[0].circuit.Fail(c.Now(), 100, time.Minute, false) // one failure of a request before
			c.advance(time.Second)
			type known struct {
				operated Operated
				failures int
				tenants  int
				left     int64
				requests int64
				outcomes map[Outcome]int64
				tokens   map[TokenSource]int64
				hits     [2]Hits
			}
			look := func() (k known) {
				k.operated, _ = p.Operate("default/next")
				k.operated.Pods = nil // their load, which counts
				k.failures = v.members[0].circuit.Failures()
				k.tenants = len(p.Stats()[0].Tenants) + v.meters.Len()
				k.left = p.current.Load().routeList[0].counters.meter.meters.Rates(p.now(), "", &tenant.Class{RequestsPerMinute: 100}).Requests.Left
				k.requests = p.Routes()[0].Requests["default/next"]
				for _, s := range p.Stats() {
					if s.Pool == "next" {
						k.outcomes, k.tokens, k.hits = s.Outcomes, s.Tokens, [2]Hits{s.Hits, s.Endpoints[0].Hits}
					}
				}
				return k
			}
			before := look()
			in := requestFor(1, "chat", map[string]string{FairnessHeader: "acme"})
			in.Body = completion("chat", 1<<8, 20, true)
			d, err := p.PickMirror(context.Background(), m, in)
			if err != nil {
				t.Fatal(err)
			}
			if n := v.members[0].load.View(c.Now()).InFlight; n != 1 {
				t.Errorf("%d requests in flight, want the copy", n)
			}
			d.Generated(7)
			end(d)
			after := look()
			after.operated.Pickable, before.operated.Pickable = nil, nil
			if a, b := fmt.Sprintf("%+v", after), fmt.Sprintf("%+v", before); a != b {
				t.Errorf("known after the copy\n%s\nand before\n%s", a, b)
			}
			if before.operated.Totals.LastRequest != (time.Time{}) {
				t.Error("the pool has had a request")
			}
			assertIdle(t, p)
		})
	}
}

// TestACopyGoesOnlyWhereThereIsRoomToSpare, at once or not at all.
func TestACopyGoesOnlyWhereThereIsRoomToSpare(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Picker, *clock, []Spec)
		want   Drop
	}{
		"where the pool sleeps":       {func(_ *Picker, _ *clock, s []Spec) { s[1].Endpoints = nil }, DropNoEndpoint},
		"where nothing is ready":      {func(_ *Picker, _ *clock, s []Spec) { s[1].Endpoints[0].Ready, s[1].Endpoints[0].Serving = false, false }, DropNoEndpoint},
		"where the pool is not there": {func(_ *Picker, _ *clock, s []Spec) { s[1].Name, s[1].Model = "other", "other" }, DropNoEndpoint},
		"where the body is too large": {func(_ *Picker, _ *clock, s []Spec) { s[1].MaxRequestBody = 10 }, DropRefused},
		"where steps refuse it": {func(_ *Picker, _ *clock, s []Spec) {
			s[1].Policy.Hooks = steps(hooks.Step{Name: "a", Refuse: forbid})
		}, DropRefused},
		"where steps refuse it, though the client is none of the pool's": {func(_ *Picker, _ *clock, s []Spec) {
			s[1].Policy.Admission.Tenants = &TenantsSpec{Known: new(tenant.Directory), Reject: true, Default: everybody}
			s[1].Policy.Hooks = steps(hooks.Step{Name: "a", Refuse: forbid})
		}, DropRefused},
		"where steps name another model": {func(_ *Picker, _ *clock, s []Spec) {
			s[1].Policy.Hooks = steps(hooks.Step{Name: "a", Model: "stable"})
		}, DropRefused},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			p := newPicker(t, c)
			specs := routedSpecs(t, "stable", "next")
			specs[1].Policy.Admission.Queue = true
			specs[1].Policy.Admission.Limits.Hold, specs[1].Policy.Admission.Limits.TTL = time.Hour, time.Hour
			tc.change(p, c, specs)
			if err := p.Apply(specs, mirrored(100)); err != nil {
				t.Fatal(err)
			}
			m := copyOf(t, p, nil)
			d, err := p.PickMirror(context.Background(), m, requestFor(1, "chat", nil))
			if err == nil {
				d.End(Failed)
				t.Fatalf("sent to %s", d.Pool)
			}
			if got := DropOf(err); got != tc.want {
				t.Errorf("dropped because %s (%v), want %s", got, err, tc.want)
			}
			for _, s := range p.Stats() {
				if s.Admission.Waiting != 0 || s.Admission.Unserved != 0 || s.Admission.Shed != 0 {
					t.Errorf("pool %s: %+v", s.Pool, s.Admission)
				}
			}
			assertIdle(t, p)
			if err := p.Apply(specs); err != nil { // it waits for picks on the view before
				t.Error(err)
			}
		})
	}
}

// TestABusyPoolGetsNoCopy: while its engine has a queue, is full, makes no progress, fails, or has a prompt to prefill.
func TestABusyPoolGetsNoCopy(t *testing.T) {
	for name, tc := range map[string]struct {
		busy func(*Picker, *view, *clock)
		want bool
	}{
		"idle": {func(*Picker, *view, *clock) {}, true},
		"an engine's queue": {func(p *Picker, v *view, c *clock) {
			p.Observe(v.spec.Endpoints[0].ID, c.Now(), load.Report{Waiting: 1, Running: 1})
		}, false},
		"a full cache": {func(p *Picker, v *view, c *clock) {
			p.Observe(v.spec.Endpoints[0].ID, c.Now(), load.Report{Running: 1, KVUsage: 0.99})
		}, false},
		"failures": {func(p *Picker, v *view, c *clock) {
			for range v.spec.Policy.CircuitFailures {
				v.members[0].circuit.Fail(c.Now(), v.spec.Policy.CircuitFailures, time.Millisecond, true)
			}
			c.advance(time.Second) // a request could try it now
		}, false},
		"a prompt": {func(p *Picker, v *view, c *clock) {
			v.members[0].load.Book(c.Now(), load.Work{Tokens: 100_000}, false)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			p := newPicker(t, c)
			specs := routedSpecs(t, "stable", "next")
			specs[1].Policy.MaxKVUsage, specs[1].Policy.CircuitFailures = 0.9, 3
			if err := p.Apply(specs, mirrored(100)); err != nil {
				t.Fatal(err)
			}
			m, v := copyOf(t, p, nil), p.pool(t, "next")
			tc.busy(p, v, c)
			d, err := p.PickMirror(context.Background(), m, requestFor(1, "chat", nil))
			if tc.want {
				if err != nil {
					t.Fatal(err)
				}
				d.End(Completed)
				return
			}
			if err == nil || DropOf(err) != DropFull {
				t.Fatalf("%v, %v", d, err)
			}
			if v.members[0].circuit.Probed() {
				t.Error("the copy tries the endpoint")
			}
		})
	}
}

// TestTheMirrorOfASession is the same for each of its requests, at every replica, and as many sessions have one as the percentage says.
func TestTheMirrorOfASession(t *testing.T) {
	specs := routedSpecs(t, "stable", "next")
	a, b := routedPicker(t, specs, mirrored(30)), routedPicker(t, specs, mirrored(30))
	copies := func(p *Picker, header map[string]string) int {
		in := requestFor(1, "chat", header)
		d, err := p.Pick(context.Background(), in)
		if err != nil {
			t.Fatal(err)
		}
		d.End(Completed)
		return len(p.Mirrors(in, d))
	}
	taken := 0
	for i := range 400 {
		n := copies(a, inSession(i))
		if n != copies(b, inSession(i)) || n != copies(a, inSession(i)) {
			t.Fatalf("the requests of session %d differ", i)
		}
		taken += n
	}
	if taken < 75 || taken > 165 { // five standard deviations
		t.Errorf("%d of 400 sessions are copied, want about 30 %%", taken)
	}
	without := 0
	for range 400 {
		without += copies(a, nil)
	}
	if without < 75 || without > 165 {
		t.Errorf("%d of 400 requests without a session are copied, want about 30 %%", without)
	}
}

// TestCopiesAreSeen: in the log as copies, in explanations of the request as what follows from it, and counted where a gateway prevents them.
func TestCopiesAreSeen(t *testing.T) {
	log := new(memoryLog)
	p := New(Options{Now: newClock().Now, Decisions: log})
	specs := routedSpecs(t, "stable", "next")
	specs[1].Policy.LogPercent = 100
	if err := p.Apply(specs, mirrored(100)); err != nil {
		t.Fatal(err)
	}
	m := copyOf(t, p, inSession(1))
	d, err := p.PickMirror(context.Background(), m, requestFor(1, "chat", inSession(1)))
	if err != nil {
		t.Fatal(err)
	}
	d.End(Completed)
	if len(log.records) != 1 || log.records[0].Route != "default/chat rule=0; mirror of 100 %, by session" || log.records[0].Pool != "next" {
		t.Errorf("records %+v", log.records)
	}
	e, err := p.Explain(context.Background(), requestFor(1, "chat", inSession(1)))
	if err != nil || e.Route != "default/chat rule=0; weight 1 of 1, by session; mirror default/next" {
		t.Errorf("explained as %+v, %v", e, err)
	}
	in := requestFor(1, "chat", nil)
	in.Remote = true
	if d, err = p.Pick(context.Background(), in); err != nil {
		t.Fatal(err)
	}
	d.End(Completed)
	if s := p.Routes()[0].Mirrors["default/next"]; s != (MirrorStats{Dropped: [NumDrops]int64{DropGateway: 1}}) {
		t.Errorf("copies %+v", s)
	}
}

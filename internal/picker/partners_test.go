package picker

import (
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

func TestFailuresCountInARow(t *testing.T) {
	const x, y, z, none = 1, 2, 3, 0
	type ends struct {
		partner uint64
		well    bool
		after   time.Duration
	}
	fails := func(n int, partner uint64) (list []ends) {
		for range n {
			list = append(list, ends{partner: partner})
		}
		return list
	}
	well := func(partner uint64) []ends { return []ends{{partner: partner, well: true}} }
	late := func(list []ends) []ends {
		list[0].after = time.Minute
		return list
	}
	for name, tc := range map[string]struct {
		ends    [][]ends
		x, y, z bool // left out
	}{
		"with one partner":                    {[][]ends{fails(3, x)}, true, false, false},
		"with two partners":                   {[][]ends{fails(2, x), fails(1, y)}, true, true, true},
		"too few":                             {[][]ends{fails(2, x)}, false, false, false},
		"one has worked before":               {[][]ends{well(y), fails(2, x), fails(1, y)}, true, true, true},
		"one works between":                   {[][]ends{fails(2, x), well(y), fails(1, x)}, true, false, false},
		"another one has worked":              {[][]ends{fails(3, x), well(y), fails(1, y)}, true, false, false},
		"another one has worked, and several": {[][]ends{fails(3, x), well(y), fails(2, y), fails(2, z)}, true, false, false},
		"it has worked again":                 {[][]ends{fails(3, x), well(x), fails(2, x)}, false, false, false},
		"too few before another has worked":   {[][]ends{fails(2, x), well(y), fails(2, y)}, false, false, false},
		"another one, once the time is over":  {[][]ends{fails(3, x), well(y), late(fails(3, y))}, false, true, false},
		"one works, but there is no connector": {
			[][]ends{fails(3, x), well(y), fails(3, none)}, true, true, true,
		},
		"one works, and parameters were missing once": {[][]ends{fails(3, x), well(y), fails(1, none)}, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			var p partners
			now, period := time.Unix(1, 0), 10*time.Second
			for _, list := range tc.ends {
				for _, one := range list {
					if now = now.Add(one.after); one.well {
						p.succeed(one.partner)
					} else {
						p.fail(one.partner, now, period)
					}
				}
			}
			for partner, want := range map[uint64]bool{x: tc.x, y: tc.y, z: tc.z} {
				if got := p.leavesOut(partner, now); got != want {
					t.Errorf("partner %d: left out: %v", partner, got)
				}
			}
		})
	}
}

// TestATrialIsTakenFromBothOrNeither: what lets no hand-off through does not use up the trial of the other one.
func TestATrialIsTakenFromBothOrNeither(t *testing.T) {
	now, period := time.Unix(1, 0), 10*time.Second
	from, to := &member{hash: 1}, &member{hash: 2}
	for range handoffFailures {
		from.gives.fail(to.hash, now, period)
		to.receives.fail(from.hash, now, 2*period)
	}
	now = now.Add(period)
	if _, ok := tryPair(from, to, now, period); ok {
		t.Error("an endpoint that receives nothing is tried")
	}
	if from.gives.leavesOut(to.hash, now) {
		t.Error("the trial of the endpoint that prefills is used up")
	}
	now = now.Add(period)
	one, ok := tryPair(from, to, now, period)
	if _, two := tryPair(from, to, now, period); !ok || two || one == nil {
		t.Errorf("one is tried: %t, another one beside it: %t", ok, two)
	}
	one.giveUp(now)
	again, ok := tryPair(from, to, now, period)
	if one.giveUp(now.Add(period)); !ok || again == nil || !from.gives.leavesOut(to.hash, now) {
		t.Error("a trial is given up that is another request's")
	}
	from.gives.fail(to.hash, now.Add(1), period)
	if again.giveUp(now.Add(1)); !from.gives.leavesOut(to.hash, now.Add(period)) {
		t.Error("a failure is forgotten with the trial")
	}
}

// TestATrialThatIsNotMadeIsLeftToTheNextRequest: the request that has asked for it is served in another way, by no fault of the pair.
func TestATrialThatIsNotMadeIsLeftToTheNextRequest(t *testing.T) {
	for name, tc := range map[string]struct {
		rule HandoffSpec
		end  func(t *testing.T, p *Picker, body []byte, d *Decision)
		left bool
	}{
		"no endpoint has prefilled": {above, func(t *testing.T, p *Picker, body []byte, d *Decision) {
			alone(t, p, body, d).End(Completed)
		}, true},
		"its queue is full": {above, func(t *testing.T, p *Picker, body []byte, d *Decision) {
			d = next(t, p, body, d)
			d.Full(openai.RequestLimit)
			d.End(Rejected)
		}, true},
		"the ticket is refused":          {reported, reports("refused;cause=ticket"), true},
		"the sidecar has no memory":      {reported, reports("no_memory"), true},
		"the request is at fault":        {reported, reports("prefill_failed;cause=request"), true},
		"it is handed over, and is slow": {reported, reports("handed_over;prompt=500"), false},
		"the client leaves": {above, func(_ *testing.T, _ *Picker, _ []byte, d *Decision) {
			d.End(ClientGone)
		}, false},
		"the client leaves the second leg": {above, func(t *testing.T, p *Picker, body []byte, d *Decision) {
			next(t, p, body, d).End(ClientGone)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			p := newPicker(t, c, rolesSpec(t, tc.rule, endpoint.Prefill, endpoint.Decode))
			policy, members := &p.named("default/m").spec.Policy, p.named("default/m").members
			for range handoffFailures {
				members[0].gives.fail(members[1].hash, c.Now(), policy.CircuitOpen)
				members[1].receives.fail(members[0].hash, c.Now(), policy.CircuitOpen)
			}
			c.advance(policy.CircuitOpen + time.Second)
			body := completion("m", 0, 500, true)
			var d *Decision
			if tc.rule.Own {
				d = relays(t, p, body)
			} else {
				d = splits(t, p, body)
			}
			if d.Leg() == Whole || members[0].gives.leavesOut(members[1].hash, c.Now()) == false {
				t.Fatalf("leg %v: the pair is not tried", d.Leg())
			}
			tc.end(t, p, body, d)
			gives, receives := members[0].gives.leavesOut(members[1].hash, c.Now()), members[1].receives.leavesOut(members[0].hash, c.Now())
			if gives == tc.left || receives == tc.left {
				t.Errorf("left out as one that prefills: %t, as one that loads: %t", gives, receives)
			}
		})
	}
}

// TestASecondLegElsewhereLeavesTheTrial of the pair that was planned to the next request.
func TestASecondLegElsewhereLeavesTheTrial(t *testing.T) {
	c := newClock()
	spec := rolesSpec(t, above, endpoint.Prefill, endpoint.Decode, endpoint.Decode)
	p := newPicker(t, c, spec)
	members, period := p.named("default/m").members, p.named("default/m").spec.Policy.CircuitOpen
	for range handoffFailures {
		for _, to := range members[1:] {
			to.receives.fail(members[0].hash, c.Now(), period)
		}
	}
	c.advance(period + time.Second)
	body := completion("m", 0, 500, true)
	d := splits(t, p, body)
	planned := d.handoff.planned
	if d.Leg() != PrefillLeg || !planned.receives.leavesOut(members[0].hash, c.Now()) {
		t.Fatalf("leg %v: the pair is not tried", d.Leg())
	}
	for i, m := range members {
		spec.Endpoints[i].Ready = m != planned
	}
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	d = next(t, p, body, d)
	defer d.End(ClientGone)
	if d.Targets[0].member == planned || planned.receives.leavesOut(members[0].hash, c.Now()) {
		t.Errorf("the second leg is at %s, and the endpoint that was planned is still left out", d.Targets[0].Endpoint.Pod)
	}
}

// reports ends a request after a report of a sidecar.
func reports(report string) func(*testing.T, *Picker, []byte, *Decision) {
	return func(_ *testing.T, _ *Picker, _ []byte, d *Decision) {
		d.SidecarReport(report)
		d.End(ClientGone)
	}
}

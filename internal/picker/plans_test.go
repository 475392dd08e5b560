package picker

import (
	"context"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/decisionlog"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

func explained(t *testing.T, p *Picker, body []byte) *api.Plans {
	t.Helper()
	before := p.Stats()
	e, err := p.Explain(context.Background(), &Request{Route: openai.Completions, Body: body, Splits: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, p.Stats()); diff != "" {
		t.Errorf("the explanation changed what is known:\n%s", diff)
	}
	return e.Plans
}

// A request takes the plan that an explanation shows, by costs that add up.
func TestAnExplanationShowsThePlanThatIsTaken(t *testing.T) {
	for _, strategy := range []policy.Type{policy.MarginalCost, policy.LeastLoad} {
		handedOver := map[bool]int{}
		c := newClock()
		spec := rolesSpec(t, HandoffSpec{Rule: HandoffByCost}, endpoint.Prefill, endpoint.Decode, endpoint.Decode)
		spec.Policy.Strategy = policy.Default(strategy)
		p := newPicker(t, c, spec)
		for i := range 30 {
			body := completion("m", 10_000*i, []int{10, 100, 8000}[i%3], true)
			plans := explained(t, p, body)
			d := splits(t, p, body)
			if plans == nil || plans.HandedOver != (d.Leg() == PrefillLeg) || plans.HandedOver != (plans.Because == "") {
				t.Fatalf("%s, request %d: leg %v, explained %+v", strategy, i, d.Leg(), plans)
			}
			handedOver[plans.HandedOver]++
			step := plans.Alone.Steps[0]
			if plans.HandedOver {
				step = plans.Handoff.Steps[0]
				if plans.Handoff.Seconds >= plans.Alone.Seconds {
					t.Errorf("%s, request %d: handed over for %v s, alone %v s", strategy, i, plans.Handoff.Seconds, plans.Alone.Seconds)
				}
			}
			if step.Pod != d.Targets[0].Endpoint.Pod {
				t.Errorf("%s, request %d: explained %s, picked %s", strategy, i, step.Pod, d.Targets[0].Endpoint.Pod)
			}
			for _, plan := range []*api.Plan{&plans.Alone, plans.Handoff} {
				if plan == nil || plan.Seconds == 0 {
					continue
				}
				sum := 0.0
				for _, s := range plan.Steps {
					for _, part := range s.Parts {
						sum += part.Value
					}
				}
				if math.Abs(sum-plan.Seconds) > 0.002+0.02*plan.Seconds { // costs are compared in steps
					t.Errorf("%s, request %d: parts of %v s add up to %v", strategy, i, plan.Seconds, sum)
				}
			}
			d.FirstToken() // it runs on, so that the endpoints get busier
		}
		if handedOver[true] == 0 || handedOver[false] == 0 {
			t.Errorf("%s: handed over %v", strategy, handedOver)
		}
	}
}

func TestAnExplanationNamesWhyARequestIsServedAlone(t *testing.T) {
	roles := []endpoint.Role{endpoint.Prefill, endpoint.Decode}
	cost := HandoffSpec{Rule: HandoffByCost}
	for want, tc := range map[PlanChoice]struct {
		rule  HandoffSpec
		roles []endpoint.Role
		body  []byte
	}{
		PlanRule:      {HandoffSpec{Rule: HandoffNever}, roles, completion("m", 0, 900, true)},
		PlanRequest:   {cost, roles, []byte(`{"model":"m","n":2,"prompt":` + ids(900) + `}`)},
		PlanShort:     {cost, roles, completion("m", 0, 16, true)},
		PlanThreshold: {above, roles, completion("m", 0, 63, true)},
		PlanLength:    {cost, roles, []byte(`{"model":"m","max_tokens":101,"prompt":` + ids(900) + `}`)},
		PlanNoPrefill: {cost, []endpoint.Role{endpoint.Decode, endpoint.Decode}, completion("m", 0, 900, true)},
		PlanNoDecode:  {cost, []endpoint.Role{endpoint.Both, endpoint.Neither, endpoint.Neither}, completion("m", 0, 900, true)},
		PlanCheaper:   {cost, roles, completion("m", 0, 100, true)},
	} {
		t.Run(want.String(), func(t *testing.T) {
			spec := rolesSpec(t, tc.rule, tc.roles...)
			if want == PlanNoDecode {
				spec.Endpoints[1].Role = endpoint.Prefill
				spec.Endpoints[1].Ready, spec.Endpoints[1].Serving = false, false
			}
			p := newPicker(t, newClock(), spec)
			for i := range spec.Endpoints {
				p.ObserveModels(spec.Endpoints[i].ID, []ListedModel{{Name: "m", MaxLen: 1000}})
			}
			if plans := explained(t, p, tc.body); plans == nil || plans.HandedOver || plans.Because != want.String() {
				t.Errorf("explained %+v", plans)
			}
			if d := splits(t, p, tc.body); d.Leg() != Whole {
				t.Errorf("leg %v", d.Leg())
			}
		})
	}
	p := newPicker(t, newClock(), rolesSpec(t, cost, endpoint.Both, endpoint.Both))
	if plans := explained(t, p, completion("m", 0, 900, true)); plans != nil {
		t.Errorf("plans in a pool without roles: %+v", plans)
	}
}

// One record of a request that was handed over has its plans, whichever decision of it was the last.
func TestRecordsHaveThePlans(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, p *Picker, body []byte, d *Decision) *Decision{
		"the second leg": func(t *testing.T, p *Picker, body []byte, d *Decision) *Decision { return next(t, p, body, d) },
		"alone": func(t *testing.T, p *Picker, body []byte, d *Decision) *Decision {
			d.Fail()
			return alone(t, p, body, d)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, log, seen := newClock(), new(memoryLog), &notes{all: true}
			spec := rolesSpec(t, above, endpoint.Prefill, endpoint.Decode)
			spec.Policy.LogPercent = 100
			p := New(Options{Now: c.Now, Decisions: log, Recorder: seen})
			if err := p.Apply([]Spec{spec}); err != nil {
				t.Fatal(err)
			}
			body := completion("m", 0, 500, true)
			end(t, p, body, splits(t, p, body)).End(Completed)
			if len(log.records) != 1 {
				t.Fatalf("%d records", len(log.records))
			}
			plan := log.records[0].Plan
			if plan == nil || !plan.HandedOver || plan.Prefill != "pod-0/0" || plan.Decode != "pod-1/0" || plan.Alone != "pod-1/0" ||
				plan.TransferCost < 27 || !(plan.AloneCost > 0) || !(plan.PrefillCost > 0) {
				t.Errorf("record %+v", plan)
			}
			if shown := seen.decided[0].Plans; shown == nil || !shown.HandedOver || shown.Handoff.Steps[1].Parts[0].Name != "transfer" {
				t.Errorf("shown %+v", shown)
			}
		})
	}
}

// memoryLog keeps records.
type memoryLog struct{ records []decisionlog.Record }

func (*memoryLog) Salt() decisionlog.Salt        { return 1 }
func (l *memoryLog) Write(r *decisionlog.Record) { l.records = append(l.records, *r) }

// Each request counts once, however often it is picked for.
func TestPlansAreCounted(t *testing.T) {
	p := newPicker(t, newClock(), rolesSpec(t, above, endpoint.Prefill, endpoint.Decode))
	body := completion("m", 0, 500, true)
	d := splits(t, p, body)
	d.Fail()
	alone(t, p, body, d).End(Completed)
	pick(t, p, completion("m", 5000, 500, true)).End(Completed) // the caller cannot send two requests
	splits(t, p, completion("m", 9000, 40, true)).End(Completed)
	got := p.Stats()[0].Plans
	for choice := range PlanChoice(numPlanChoices) {
		want := map[PlanChoice]int64{PlanHandoff: 1, PlanRequest: 1, PlanThreshold: 1}[choice]
		if got[choice] != want {
			t.Errorf("%s: %d requests, want %d", choice, got[choice], want)
		}
	}
	if s := newPicker(t, newClock(), rolesSpec(t, above, endpoint.Both)).Stats()[0]; s.Plans != nil {
		t.Errorf("plans in a pool without roles: %v", s.Plans)
	}
}

// A gateway's request goes to one endpoint, and its record says so.
func TestPlansOfARequestByAGateway(t *testing.T) {
	log, seen := new(memoryLog), &notes{all: true}
	spec := rolesSpec(t, above, endpoint.Prefill, endpoint.Decode)
	spec.Policy.LogPercent = 100
	p := New(Options{Now: newClock().Now, Decisions: log, Recorder: seen})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	d, err := p.Pick(t.Context(), &Request{Route: openai.Completions, Body: completion("m", 0, 500, true), Gateway: "10.0.0.9"})
	if err != nil {
		t.Fatal(err)
	}
	d.End(Completed)
	want := decisionlog.Plan{Because: "gateway", Alone: "pod-1/0"}
	if d.Leg() != Whole || len(log.records) != 1 || log.records[0].Plan == nil || *log.records[0].Plan != want {
		t.Errorf("leg %v, records %+v", d.Leg(), log.records)
	}
	if shown := seen.decided[0].Plans; shown == nil || shown.Because != "gateway" || shown.Handoff != nil || shown.Alone.Seconds != 0 {
		t.Errorf("shown %+v", shown)
	}
	if n := p.Stats()[0].Plans[PlanGateway]; n != 1 {
		t.Errorf("%d requests by gateways counted", n)
	}
}

// Endpoints that fail are no part of a plan, and the reason shows it: here those that prefill do not answer, or what they have
// prefilled cannot be loaded.
func TestPlansNameEndpointsThatFail(t *testing.T) {
	for want, fail := range map[PlanChoice]func(t *testing.T, p *Picker, body []byte, d *Decision) *Decision{
		PlanNoPrefill: func(_ *testing.T, _ *Picker, _ []byte, d *Decision) *Decision {
			d.Fail()
			return d
		},
		PlanNoDecode: func(t *testing.T, p *Picker, body []byte, d *Decision) *Decision {
			d = next(t, p, body, d)
			d.FailLate()
			return d
		},
	} {
		t.Run(want.String(), func(t *testing.T) {
			p := newPicker(t, newClock(), rolesSpec(t, above, endpoint.Prefill, endpoint.Decode))
			handedOver := int64(0)
			for i := 0; ; i++ {
				body := completion("m", 1000*i, 500, true)
				plans := explained(t, p, body)
				if !plans.HandedOver {
					if plans.Because != want.String() || plans.Handoff != nil {
						t.Errorf("after %d failures: %+v", i, plans)
					}
					break
				}
				if i == 20 {
					t.Fatal("still handed over")
				}
				d := splits(t, p, body)
				alone(t, p, body, fail(t, p, body, d)).End(Completed)
				handedOver++
			}
			splits(t, p, completion("m", 90_000, 500, true)).End(Completed)
			got := p.Stats()[0].Plans
			if got[PlanHandoff] != handedOver || got[want] != 1 {
				t.Errorf("after %d hand-offs: %v", handedOver, got)
			}
		})
	}
}

// BenchmarkPickWithRoles is the cost of requests in a pool with roles that are not handed over.
func BenchmarkPickWithRoles(b *testing.B) {
	roles := []endpoint.Role{endpoint.Prefill, endpoint.Prefill, endpoint.Decode, endpoint.Decode, endpoint.Decode, endpoint.Decode, endpoint.Decode, endpoint.Decode}
	for name, tc := range map[string]struct {
		spec   HandoffSpec
		n      int
		splits bool
	}{
		"short":   {HandoffSpec{Rule: HandoffByCost}, 10, true},
		"cheaper": {HandoffSpec{Rule: HandoffByCost}, 100, true},
		"never":   {HandoffSpec{Rule: HandoffNever}, 1024, true},
		"gateway": {HandoffSpec{Rule: HandoffByCost}, 1024, false},
	} {
		b.Run(name, func(b *testing.B) {
			p := New(Options{})
			if err := p.Apply([]Spec{rolesSpec(b, tc.spec, roles...)}); err != nil {
				b.Fatal(err)
			}
			body := completion("m", 0, tc.n, true)
			b.ReportAllocs()
			for b.Loop() {
				d, err := p.Pick(b.Context(), &Request{Route: openai.Completions, Body: body, Splits: tc.splits})
				if err != nil || d.Leg() != Whole {
					b.Fatal(err, d.Leg())
				}
				d.End(Completed)
			}
		})
	}
}

// BenchmarkHandoff is the cost of both picks for a request that is handed over, and behind a gateway.
func BenchmarkHandoff(b *testing.B) {
	for name, rule := range map[string]HandoffSpec{"proxy": above, "gateway": relayed} {
		b.Run(name, func(b *testing.B) {
			p := New(Options{})
			if err := p.Apply([]Spec{rolesSpec(b, rule, endpoint.Prefill, endpoint.Prefill, endpoint.Decode, endpoint.Decode)}); err != nil {
				b.Fatal(err)
			}
			body := completion("m", 0, 1024, true)
			b.ReportAllocs()
			for b.Loop() {
				if rule.Sidecar {
					relays(b, p, body).End(Failed)
				} else {
					next(b, p, body, splits(b, p, body)).End(Failed)
				}
			}
		})
	}
}

// TestAFailedHandoffIsShownAsOne: the plans of a request are those of its first decision, also when it is served alone after a failure.
func TestAFailedHandoffIsShownAsOne(t *testing.T) {
	c, log, seen := newClock(), new(memoryLog), &notes{all: true}
	spec := rolesSpec(t, above, endpoint.Prefill, endpoint.Decode, endpoint.Decode)
	spec.Policy.LogPercent = 100
	p := New(Options{Now: c.Now, Decisions: log, Recorder: seen})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	body := completion("m", 0, 500, true)
	d := splits(t, p, body)
	d.Fail()
	alone(t, p, body, d).End(Completed)
	for i, shown := range seen.decided {
		if shown.Plans != nil && !shown.Plans.HandedOver {
			t.Errorf("decision %d says why the request is not handed over: %s", i, shown.Plans.Because)
		}
	}
	if !log.records[0].Plan.HandedOver {
		t.Errorf("the record is %+v", log.records[0].Plan)
	}
}

// TestNoPartOfAPlanIsNegative: costs are rounded, the transfer is not.
func TestNoPartOfAPlanIsNegative(t *testing.T) {
	c, log := newClock(), new(memoryLog)
	spec := rolesSpec(t, above, endpoint.Prefill, endpoint.Decode, endpoint.Decode)
	spec.Policy.LogPercent = 100
	p := New(Options{Now: c.Now, Decisions: log})
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		body := completion("m", 20_000*i, 130+137*i, true)
		next(t, p, body, splits(t, p, body)).End(Completed)
	}
	for _, r := range log.records {
		if r.Plan == nil || r.Plan.DecodeCost < 0 || r.Plan.TransferCost <= 0 || r.Plan.PrefillCost <= 0 {
			t.Errorf("plan %+v", r.Plan)
		}
	}
}

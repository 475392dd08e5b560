package lab

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// apartConfig is a fleet of four pods, where one prefills, with a workload at a moderate load.
func apartConfig(t *testing.T, workload string, rule picker.HandoffSpec) Config {
	t.Helper()
	w, err := Generate(workload, 120, 1)
	if err != nil {
		t.Fatal(err)
	}
	profile, err := enginemodel.LookupProfile("8b-h100")
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Workload: w, Pods: 4, Profile: profile, BlockTokens: 128, Seed: 1, Gaps: true, Admission: DefaultAdmission(),
		Strategy: Strategy{Name: "MarginalCost", Config: policy.Default(policy.MarginalCost)}, Speed: 0.3, Roles: Roles{Prefillers: 1, Rule: rule},
	}
}

// All requests are answered, whatever is handed over, and no pod keeps a block in use.
func TestHandoffsOfTheLabLoseNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		workload string
		rule     picker.HandoffSpec
		most     int // requests that are handed over
		least    int
	}{
		"all":       {"documents", picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: 129}, 120, 60},
		"by cost":   {"documents", picker.HandoffSpec{Rule: picker.HandoffByCost}, 119, 1},
		"none":      {"documents", picker.HandoffSpec{Rule: picker.HandoffNever}, 0, 0},
		"long ones": {"documents", picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: 8000}, 110, 10},
	} {
		t.Run(name, func(t *testing.T) {
			c := apartConfig(t, tc.workload, tc.rule)
			if err := c.fill(); err != nil {
				t.Fatal(err)
			}
			c.Workload = c.Workload.Fitting(c.longest())
			s := &sim{Config: c}
			if err := s.setUp(); err != nil {
				t.Fatal(err)
			}
			for s.open > 0 {
				s.advance()
			}
			r, tokens := s.out.result(s), 0
			for i := range c.Workload.Requests {
				tokens += c.Workload.Requests[i].Output - 1
			}
			if r.Requests != 120 || r.Shed != 0 || r.HandedOver > tc.most || r.HandedOver < tc.least || len(s.out.gaps) != tokens {
				t.Errorf("%d answered, %d refused, %d handed over, %d gaps between %d tokens", r.Requests, r.Shed, r.HandedOver, len(s.out.gaps), tokens)
			}
			if on := r.RequestsPerPod[0]; on != r.HandedOver {
				t.Errorf("%d requests at the pod that prefills, %d were handed over", on, r.HandedOver)
			}
			for i, p := range s.pods {
				if st := p.engine.Stats(); st.UsedBlocks != 0 || st.Running+st.Waiting != 0 {
					t.Errorf("pod %d at the end: %+v", i, st)
				}
			}
		})
	}
}

// A request whose second leg is refused leaves no blocks behind at the pod that has prefilled it.
func TestARefusedSecondLegFreesTheBlocks(t *testing.T) {
	c := apartConfig(t, "documents", picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: 129})
	if err := c.fill(); err != nil {
		t.Fatal(err)
	}
	c.Workload = c.Workload.Fitting(c.longest())
	s := &sim{Config: c}
	if err := s.setUp(); err != nil {
		t.Fatal(err)
	}
	prefills := func(x *sent) bool { return x != nil && x.decision.Leg() == picker.PrefillLeg }
	for s.open > 0 && !slices.ContainsFunc(s.live, prefills) {
		s.advance()
	}
	spec := *s.pickers[0].Feeds()[0].Spec
	spec.Endpoints = slices.Clone(spec.Endpoints)
	for i := range spec.Endpoints {
		spec.Endpoints[i].Ready = i == 0 // none that decodes
	}
	if err := s.pickers[0].Apply([]picker.Spec{spec}); err != nil {
		t.Fatal(err)
	}
	for s.open > 0 {
		s.advance()
	}
	if r := s.out.result(s); r.HandedOver == 0 || r.Shed == 0 {
		t.Fatalf("%d handed over, %d refused", r.HandedOver, r.Shed)
	}
	if st := s.pods[0].engine.Stats(); st.UsedBlocks != 0 || st.Running+st.Waiting != 0 {
		t.Errorf("the pod that prefills, at the end: %+v", st)
	}
}

// A fixed rule is no measure for a rule whose tokens come more evenly.
func TestRulesAreHeldAgainstThoseWithTokensAsEven(t *testing.T) {
	d := Division{Rules: []RuleScore{
		{Rule: "cost", TTFTMean: 1.1, GapP99: 0.02, E2EMean: 5}, {Rule: "never", TTFTMean: 0.5, GapP99: 0.05, E2EMean: 6},
		{Rule: "from 512", TTFTMean: 1, GapP99: 0.021, E2EMean: 4},
	}}
	for i, want := range [][2]float64{{1.1, 1.25}, {1, 1.5}, {1, 1}} {
		if ttft, e2e := d.Ratios(i); math.Abs(ttft-want[0]) > 1e-9 || math.Abs(e2e-want[1]) > 1e-9 {
			t.Errorf("%s: %v and %v, want %v", d.Rules[i].Rule, ttft, e2e, want)
		}
	}
}

func TestApartRunsEachRuleInEachConfiguration(t *testing.T) {
	c := apartConfig(t, "documents", picker.HandoffSpec{})
	w, err := Generate("documents", 40, 1)
	if err != nil {
		t.Fatal(err)
	}
	a := Apart{Config: c, Workloads: []*Workload{w}, Prefillers: []int{1, 2}, Loads: []float64{0.5}, Thresholds: []int{129}, Seeds: []uint64{1, 2}}
	last, all := 0, 0
	list, err := a.Run(t.Context(), func(n, of int) { last, all = n, of })
	if err != nil || len(list) != 2 || last != 16 || all != 16 {
		t.Fatalf("%d configurations, %d of %d runs, %v", len(list), last, all, err)
	}
	for _, d := range list {
		never, every := &d.Rules[1], &d.Rules[2]
		if never.HandedOver != 0 || !(every.HandedOver > 0.3) || d.Whole.HandedOver != 0 || !(d.Whole.TTFTMean > 0) {
			t.Errorf("%d prefill: %+v", d.Prefillers, d)
		}
	}
	var table strings.Builder
	if err := WriteDivisions(&table, list); err != nil || strings.Count(table.String(), "from 129") != 3 || strings.Contains(table.String(), "NaN") {
		t.Errorf("%v\n%s", err, table.String())
	}
}

// Pods that load prefixes from each other answer all requests, and compute less of them than pods that do not.
func TestPullsOfTheLab(t *testing.T) {
	c := apartConfig(t, "agentic", picker.HandoffSpec{})
	computed := map[bool]int{}
	for _, pulls := range []bool{false, true} {
		c.Roles = Roles{Rule: picker.HandoffSpec{Rule: picker.HandoffByCost}}
		if pulls {
			c.Roles.Rule.Connector = picker.Offloading
		}
		r, err := Run(c)
		if err != nil {
			t.Fatal(err)
		}
		if r.Shed != 0 || (r.HandedOver > 0) != pulls {
			t.Errorf("pulling %v: %d refused, %d have pulled of %d", pulls, r.Shed, r.HandedOver, r.Requests)
		}
		for _, n := range r.ComputedTokens {
			computed[pulls] += n
		}
	}
	if computed[true] >= computed[false] {
		t.Errorf("%d tokens computed with pulls, %d without", computed[true], computed[false])
	}
}

package lab

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Apart compares rules by which requests are handed over from pods that prefill to pods that decode: by cost, and by fixed
// rules, in configurations of workloads, roles and loads.
type Apart struct {
	// Config of all runs. Its workload, roles, speed and seed are set for each.
	Config    Config
	Workloads []*Workload
	// Prefillers are how many of the pods prefill, in the configurations.
	Prefillers []int
	// Loads are arrival rates as parts of the one that saturates the fleet without roles, as in Matrix.
	Loads []float64
	// Thresholds of the fixed rules, in uncached tokens.
	Thresholds []int
	Seeds      []uint64
}

// Division is a configuration with its results.
type Division struct {
	Workload   string  `json:"workload"`
	Prefillers int     `json:"prefillers"`
	Decoders   int     `json:"decoders"`
	Load       float64 `json:"load"`
	// Whole is the fleet without roles, Pulls is the same where pods load prefixes from each other, and Rules are those of the same
	// roles: by cost first, then the fixed ones.
	Whole RuleScore   `json:"whole"`
	Pulls RuleScore   `json:"pulls"`
	Rules []RuleScore `json:"rules"`
}

// RuleScore is what a rule has done in a configuration, as means over the seeds, in seconds.
type RuleScore struct {
	Rule     string  `json:"rule"`
	TTFTMean float64 `json:"ttftMeanSeconds"`
	GapP99   float64 `json:"gapP99Seconds"`
	E2EMean  float64 `json:"e2eMeanSeconds"`
	// HandedOver is the part of the requests that was handed over, or loaded a prefix from another pod, 0 to 1; Shed is how many were refused.
	HandedOver float64 `json:"handedOver"`
	Shed       int     `json:"shed"`
}

// rule is a rule with its name.
type rule struct {
	name string
	spec picker.HandoffSpec
}

// rules are by cost, never, and from each threshold on.
func (a *Apart) rules() []rule {
	list := []rule{{"cost", picker.HandoffSpec{Rule: picker.HandoffByCost}}, {"never", picker.HandoffSpec{Rule: picker.HandoffNever}}}
	for _, n := range a.Thresholds {
		list = append(list, rule{fmt.Sprintf("from %d", n), picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: n}})
	}
	return list
}

// Run runs all rules in all configurations. done is called after each one.
func (a *Apart) Run(ctx context.Context, done func(n, all int)) (list []*Division, err error) {
	all, n := len(a.Workloads)*len(a.Loads)*(2+len(a.Prefillers)*len(a.rules()))*len(a.Seeds), 0
	run := func(c *Config, name string, into *RuleScore) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		r, err := Run(*c)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", c.Workload.Name, name, err)
		}
		into.Rule = name
		into.add(r, len(a.Seeds))
		n++
		done(n, all)
		return nil
	}
	for _, w := range a.Workloads {
		cells := map[float64][]*Division{}
		for _, load := range a.Loads {
			for _, p := range a.Prefillers {
				d := &Division{Workload: w.Name, Prefillers: p, Decoders: a.Config.Pods - p, Load: load, Rules: make([]RuleScore, len(a.rules()))}
				cells[load], list = append(cells[load], d), append(list, d)
			}
		}
		for _, seed := range a.Seeds {
			c := a.Config
			c.Seed, c.Roles, c.Gaps = seed, Roles{}, false
			drawn, err := w.Drawn(seed)
			if err != nil {
				return nil, err
			}
			if err := c.fill(); err != nil {
				return nil, err
			}
			c.Workload, c.Admission = drawn.Fitting(c.longest()), picker.AdmissionSpec{}
			speed, err := saturation(ctx, c)
			if err != nil {
				return nil, err
			}
			c.Admission, c.Gaps = a.Config.Admission, true
			for _, load := range a.Loads {
				c.Speed, c.Roles = load*speed, Roles{}
				var whole RuleScore
				if err := run(&c, "no roles", &whole); err != nil {
					return nil, err
				}
				var pulls RuleScore
				c.Roles = Roles{Rule: picker.HandoffSpec{Rule: picker.HandoffByCost, Connector: picker.Offloading}}
				if err := run(&c, "no roles, pulling", &pulls); err != nil {
					return nil, err
				}
				for _, d := range cells[load] {
					d.Whole.merge(&whole)
					d.Pulls.merge(&pulls)
					for i, rule := range a.rules() {
						c.Roles = Roles{Prefillers: d.Prefillers, Rule: rule.spec}
						if err := run(&c, rule.name, &d.Rules[i]); err != nil {
							return nil, err
						}
					}
				}
			}
		}
	}
	return list, nil
}

// add takes a run, one of so many.
func (s *RuleScore) add(r *Result, runs int) {
	n := float64(runs)
	s.TTFTMean += r.TTFTSeconds.Mean / n
	s.GapP99 += r.GapSeconds.P99 / n
	s.E2EMean += r.E2ESeconds.Mean / n
	s.HandedOver += float64(r.HandedOver) / float64(max(1, r.Requests)) / n
	s.Shed += r.Shed
}

// merge takes a part of the mean of the same rule.
func (s *RuleScore) merge(t *RuleScore) {
	s.Rule = t.Rule
	s.TTFTMean, s.GapP99, s.E2EMean = s.TTFTMean+t.TTFTMean, s.GapP99+t.GapP99, s.E2EMean+t.E2EMean
	s.HandedOver, s.Shed = s.HandedOver+t.HandedOver, s.Shed+t.Shed
}

// alikeGaps is how much longer the gaps of a rule can be that still count as equal, as a factor.
const alikeGaps = 1.05

// Ratios are the mean time to the first token of rule i over that of the best fixed rule whose 99th percentile of the gaps
// between tokens is at most 5 % longer, and the mean time to the end over the least of all fixed rules.
func (d *Division) Ratios(i int) (ttft, e2e float64) {
	s := &d.Rules[i]
	first, last := math.Inf(1), math.Inf(1)
	for j := 1; j < len(d.Rules); j++ {
		if d.Rules[j].GapP99 <= alikeGaps*s.GapP99 {
			first = min(first, d.Rules[j].TTFTMean)
		}
		last = min(last, d.Rules[j].E2EMean)
	}
	if math.IsInf(first, 1) { // its gaps are shorter than those of all fixed rules
		first = s.TTFTMean
	}
	return s.TTFTMean / first, s.E2EMean / last
}

// near is how much worse a rule can be than the best one, as a factor.
const near = 1.05

// WriteDivisions prints the configurations, and how the rules compare over all of them.
func WriteDivisions(w io.Writer, list []*Division) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "workload\tprefill:decode\tload\trule\tTTFT\tto the best\tgap p99\tE2E\tto the best\thanded over\trefused\t")
	for _, d := range list {
		row := func(s *RuleScore, ttft, e2e string) {
			fmt.Fprintf(t, "%s\t%d:%d\t%g\t%s\t%.3f s\t%s\t%.0f ms\t%.2f s\t%s\t%.0f %%\t%d\t\n", d.Workload, d.Prefillers, d.Decoders, d.Load, s.Rule,
				s.TTFTMean, ttft, 1000*s.GapP99, s.E2EMean, e2e, 100*s.HandedOver, s.Shed)
		}
		row(&d.Whole, "", "")
		row(&d.Pulls, "", "")
		for i := range d.Rules {
			ttft, e2e := d.Ratios(i)
			row(&d.Rules[i], fmt.Sprintf("%.2f", ttft), fmt.Sprintf("%.2f", e2e))
		}
	}
	if err := t.Flush(); err != nil || len(list) == 0 {
		return err
	}
	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "rule\twithin 5 % of the best\tTTFT to the best\tat worst\tE2E to the best\tat worst\tin\t")
	for i := range list[0].Rules {
		sum := sumUp(list, i)
		fmt.Fprintf(t, "%s\t%d of %d\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t\n", list[0].Rules[i].Rule, sum.near, len(list), sum.ttft, sum.worstTTFT,
			sum.e2e, sum.worstE2E, strings.Join(sum.worst, "; "))
	}
	return t.Flush()
}

// summary is how a rule compares over configurations: geometric means and the worst of its ratios.
type summary struct {
	near                           int
	ttft, e2e, worstTTFT, worstE2E float64
	worst                          []string
}

func sumUp(list []*Division, i int) summary {
	var s summary
	atTTFT, atE2E := "", ""
	for _, d := range list {
		ttft, e2e := d.Ratios(i)
		if ttft <= near && e2e <= near {
			s.near++
		}
		name := fmt.Sprintf("%s %d:%d %g", d.Workload, d.Prefillers, d.Decoders, d.Load)
		if ttft > s.worstTTFT {
			s.worstTTFT, atTTFT = ttft, name
		}
		if e2e > s.worstE2E {
			s.worstE2E, atE2E = e2e, name
		}
		s.ttft += math.Log(ttft) / float64(len(list))
		s.e2e += math.Log(e2e) / float64(len(list))
	}
	s.ttft, s.e2e = math.Exp(s.ttft), math.Exp(s.e2e)
	s.worst = slices.Compact([]string{atTTFT, atE2E})
	return s
}

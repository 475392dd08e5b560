package lab

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Effect is what something changes: the same workload, fleet and seeds with it and without it.
type Effect struct {
	// Variant is what was on.
	Variant string `json:"variant"`
	// TTFTMean and TTFTP99 in seconds and HitRatio are means over the seeds; Relative is TTFTMean over that of the first
	// variant.
	TTFTMean float64 `json:"ttftMeanSeconds"`
	TTFTP99  float64 `json:"ttftP99Seconds"`
	Relative float64 `json:"relative"`
	HitRatio float64 `json:"hitRatio"`
	// E2EMean is the mean time to the end of the answer, seconds.
	E2EMean float64 `json:"e2eMeanSeconds"`
	// MostOnOnePod is the largest part of the requests that one pod got.
	MostOnOnePod float64 `json:"mostOnOnePod"`
	// AdapterLoads is how often pods brought a LoRA adapter in, in a run.
	AdapterLoads float64 `json:"adapterLoads"`
	// Agreed is the part of the choices that a shadow made like the applied strategy; Estimated is what it would have saved
	// by its estimate, and Measured what it saved in a run of its own: seconds to the first token for each request, less
	// than 0 for a loss.
	Agreed    float64 `json:"agreed,omitempty"`
	Estimated float64 `json:"estimatedSavingSeconds,omitempty"`
	Measured  float64 `json:"measuredSavingSeconds,omitempty"`
}

// Variant is a name for a change of a configuration.
type Variant struct {
	Name string
	Set  func(*Config)
}

// Exchange returns the variants of pickers: one, and several that exchange what they have assigned to the pods, or do not.
func Exchange(pickers ...int) []Variant {
	list := []Variant{{"1 picker", func(c *Config) { c.Pickers = 1 }}}
	for _, n := range pickers {
		list = append(list,
			Variant{fmt.Sprintf("%d pickers, exchange on", n), func(c *Config) { c.Pickers = n }},
			Variant{fmt.Sprintf("%d pickers, exchange off", n), func(c *Config) { c.Pickers, c.NoExchange = n, true }})
	}
	return list
}

// Spread are the variants of what becomes of a prefix that is suddenly hot: MarginalCost takes it to as many pods as it
// needs; the literal longest prefix leaves it where it was first, and its guarded form leaves when a pod has half as
// many requests again as the mean.
func Spread() ([]Variant, error) {
	var list []Variant
	for _, name := range []string{"MarginalCost", "LongestPrefix", "LongestPrefix/literal", "Rendezvous/prefix"} {
		s, err := strategy(name)
		if err != nil {
			return nil, err
		}
		list = append(list, Variant{name, func(c *Config) { c.Strategy = s }})
	}
	return list, nil
}

// Placement are the variants of LoRA placement: pickers that know which adapters run where, and pickers that do not.
func Placement() []Variant {
	return []Variant{
		{"placement on", func(*Config) {}},
		{"placement off", func(c *Config) { c.Adapters.Unreported = true }},
	}
}

// Shadowed runs strategies in the shadow of a configuration's, and each by itself.
func Shadowed(c Config, names string, seeds []uint64, show func(done, all int)) ([]Effect, error) {
	strategies, err := Strategies(names)
	if err != nil {
		return nil, err
	}
	variants := []Variant{{c.Strategy.Name, func(*Config) {}}}
	for _, s := range strategies {
		c.Shadows = append(c.Shadows, picker.ShadowSpec{Name: s.Name, Strategy: s.Config, Percent: 100})
		variants = append(variants, Variant{s.Name, func(c *Config) { c.Strategy, c.Shadows = s, nil }})
	}
	all := (len(variants) + 1) * len(seeds)
	list, err := Compare(c, variants, seeds, func(done, _ int) { show(done, all) })
	if err != nil {
		return nil, err
	}
	compared := make([]float64, len(strategies))
	for i, seed := range seeds {
		show(len(variants)*len(seeds)+i, all)
		one := c
		one.Seed = seed
		if one.Workload, err = c.Workload.Drawn(seed); err != nil {
			return nil, err
		}
		r, err := Run(one)
		if err != nil {
			return nil, err
		}
		for i, shadow := range r.Shadows {
			e := &list[i+1]
			compared[i] += float64(shadow.Compared)
			e.Agreed += float64(shadow.Agreed)
			e.Estimated += shadow.SavedSeconds - shadow.LostSeconds
		}
	}
	show(all, all)
	for i := range compared {
		e := &list[i+1]
		e.Agreed /= compared[i]
		e.Estimated /= compared[i]
		e.Measured = list[0].TTFTMean - e.TTFTMean
	}
	return list, nil
}

// Compare runs the variants of a configuration, each with all seeds, which draw the workload too if it is generated. It
// reports to show how many of all runs are done: before each of them, and at the end.
func Compare(c Config, variants []Variant, seeds []uint64, show func(done, all int)) ([]Effect, error) {
	var list []Effect
	all := len(variants) * len(seeds)
	for v, variant := range variants {
		e := Effect{Variant: variant.Name}
		n := float64(len(seeds))
		for i, seed := range seeds {
			show(v*len(seeds)+i, all)
			one := c
			one.Seed = seed
			variant.Set(&one)
			var err error
			if one.Workload, err = c.Workload.Drawn(seed); err != nil {
				return nil, err
			}
			r, err := Run(one)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", variant.Name, err)
			}
			e.TTFTMean += r.TTFTSeconds.Mean / n
			e.TTFTP99 += r.TTFTSeconds.P99 / n
			e.HitRatio += r.HitRatio / n
			e.E2EMean += r.E2ESeconds.Mean / n
			e.AdapterLoads += float64(r.AdapterLoads) / n
			for _, of := range r.RequestsPerPod {
				e.MostOnOnePod = math.Max(e.MostOnOnePod, float64(of)/math.Max(1, float64(r.Requests)))
			}
		}
		list = append(list, e)
		list[len(list)-1].Relative = e.TTFTMean / list[0].TTFTMean
	}
	show(all, all)
	return list, nil
}

// WriteEffects writes effects as a table.
func WriteEffects(w io.Writer, list []Effect) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "variant\tTTFT mean\trelative\tp99\tend to end\thit\tmost on a pod\tadapter loads\tagreed\testimated saving\tmeasured\t")
	for _, e := range list {
		fmt.Fprintf(t, "%s\t%s\t%.3f\t%s\t%s\t%s\t%s\t%.0f\t%s\t%.0f ms\t%.0f ms\t\n", e.Variant, seconds(e.TTFTMean), e.Relative,
			seconds(e.TTFTP99),
			seconds(e.E2EMean), percent(e.HitRatio), percent(e.MostOnOnePod), e.AdapterLoads, percent(e.Agreed), 1000*e.Estimated, 1000*e.Measured)
	}
	return t.Flush()
}

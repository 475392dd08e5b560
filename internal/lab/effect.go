package lab

import (
	"fmt"
	"math"
	"strings"
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
	// MostOnOnePod is the largest part of the requests that one pod got.
	MostOnOnePod float64 `json:"mostOnOnePod"`
}

// Variant is a name for a change of a configuration.
type Variant struct {
	Name string
	Set  func(*Config)
}

// Exchange are the variants of pickers: one, and some that tell each other what they have given the pods or do not.
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

// Compare runs the variants of a configuration, each with all seeds.
func Compare(c Config, variants []Variant, seeds []uint64) ([]Effect, error) {
	var list []Effect
	for _, v := range variants {
		e := Effect{Variant: v.Name}
		n := float64(len(seeds))
		for _, seed := range seeds {
			one := c
			one.Seed = seed
			v.Set(&one)
			r, err := Run(one)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", v.Name, err)
			}
			e.TTFTMean += r.TTFTSeconds.Mean / n
			e.TTFTP99 += r.TTFTSeconds.P99 / n
			e.HitRatio += r.HitRatio / n
			for _, of := range r.RequestsPerPod {
				e.MostOnOnePod = math.Max(e.MostOnOnePod, float64(of)/math.Max(1, float64(r.Requests)))
			}
		}
		list = append(list, e)
		list[len(list)-1].Relative = e.TTFTMean / list[0].TTFTMean
	}
	return list, nil
}

// WriteEffects writes effects as a table.
func WriteEffects(list []Effect) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-28s %10s %10s %10s %8s %14s\n", "", "TTFT mean", "relative", "p99", "hit", "most on a pod")
	for _, e := range list {
		fmt.Fprintf(&b, "%-28s %10s %10.3f %10s %8s %14s\n", e.Variant, seconds(e.TTFTMean), e.Relative, seconds(e.TTFTP99), percent(e.HitRatio), percent(e.MostOnOnePod))
	}
	return b.String()
}

package lab

import (
	"math"
	"testing"
)

// TestPickersThatTellEachOtherChooseAsOneOnEveryWorkload: on every workload, two and four pickers are within 5 % of one
// another and of a single one, in the mean time to the first token over four seeds.
func TestPickersThatTellEachOtherChooseAsOneOnEveryWorkload(t *testing.T) {
	long(t)
	for name, speed := range map[string]float64{"agentic": 3, "fanout": 1.2, "rag": 2, "chat": 8} {
		w, err := Generate(name, 800, 1)
		if err != nil {
			t.Fatal(err)
		}
		c := small(t, "MarginalCost")
		c.Workload, c.Pods, c.Speed = w, 8, speed
		var on []Variant
		for _, v := range Exchange(2, 4) {
			set := Config{}
			if v.Set(&set); !set.NoExchange {
				on = append(on, v)
			}
		}
		list, err := Compare(c, on, []uint64{1, 2, 3, 4}, unseen)
		if err != nil {
			t.Fatal(err)
		}
		least, most := math.Inf(1), 0.0
		for _, e := range list {
			least, most = math.Min(least, e.TTFTMean), math.Max(most, e.TTFTMean)
		}
		t.Logf("%s: %.1f to %.1f ms, %.1f %% apart", name, 1000*least, 1000*most, 100*(most/least-1))
		if len(list) != 3 || most > 1.05*least {
			t.Errorf("%s: %+v", name, list)
		}
	}
}

// TestStrategiesWithMemoryAreAsGoodWithSeveralPickers: two and four pickers find as many tokens in caches as one, within 3 % of
// the prompts, under strategies that know blocks, sessions or histories. Those that know the latter two find clearly fewer
// without the exchange.
func TestStrategiesWithMemoryAreAsGoodWithSeveralPickers(t *testing.T) {
	long(t)
	w, err := Generate("agentic", 800, 1)
	if err != nil {
		t.Fatal(err)
	}
	shared := Exchange(2, 4)
	shared = []Variant{shared[0], shared[1], shared[3], shared[4]} // without the exchange only four pickers
	for name, needs := range map[string]bool{"MarginalCost": false, "Rendezvous": false, "Sticky": true, "Unified": true, "ApproximatePrefix": true} {
		c := small(t, name)
		c.Workload, c.Pods, c.Speed = w, 8, 3
		list, err := Compare(c, shared, []uint64{1, 2}, unseen)
		if err != nil {
			t.Fatal(err)
		}
		one := list[0].HitRatio
		for _, e := range list {
			t.Logf("%-18s %-25s hits %.3f, first token %.0f ms", name, e.Variant, e.HitRatio, 1000*e.TTFTMean)
		}
		for _, e := range list[1:3] {
			if math.Abs(e.HitRatio-one) > 0.03 {
				t.Errorf("%s, %s: hits %.3f, one picker %.3f", name, e.Variant, e.HitRatio, one)
			}
		}
		if off := list[3].HitRatio; needs && off > one-0.06 {
			t.Errorf("%s, %s: hits %.3f, one picker %.3f: the exchange shows no use", name, list[3].Variant, off, one)
		}
	}
}

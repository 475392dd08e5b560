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

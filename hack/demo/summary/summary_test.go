package summary

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// plainQuantile is the definition, word for word.
func plainQuantile(values []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	for _, v := range sorted {
		within := 0
		for _, w := range values {
			if w <= v {
				within++
			}
		}
		if float64(within) >= q*float64(len(values))-1e-9 {
			return v
		}
	}
	return 0
}

func TestQuantileIsTheNearestRank(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for n := range 130 {
		values := make([]time.Duration, n)
		for i := range values {
			values[i] = time.Duration(1 + random.IntN(40))
		}
		sorted := slices.Sorted(slices.Values(values))
		for _, q := range []float64{0, 0.01, 0.1, 0.25, 0.5, 0.9, 0.95, 0.99, 1} {
			if got, want := Quantile(sorted, q), plainQuantile(values, q); got != want {
				t.Fatalf("quantile %v of %v is %d, want %d", q, sorted, got, want)
			}
		}
	}
}

func TestSumsAgreeWithAPlainCount(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	samples := make([]Sample, 300)
	want := Summary{Requests: len(samples), PerPod: map[string]int{}}
	for i := range samples {
		x := Sample{
			Pod: []string{"a", "b", "c"}[random.IntN(3)], Prompt: 1 + random.IntN(1000), Answer: random.IntN(9),
			Predicted: random.IntN(100), Delivered: random.IntN(100), TTFT: time.Duration(random.IntN(1000)),
			Late: time.Duration(random.IntN(50)), Blind: random.IntN(7) == 0,
		}
		x.Confirmed, x.Routed = random.IntN(x.Predicted+1), x.Prompt
		if random.IntN(5) == 0 {
			x.Routed++
		}
		if random.IntN(5) == 0 {
			x.Predicted = x.Delivered
			x.Confirmed = min(x.Confirmed, x.Predicted)
		}
		if random.IntN(10) == 0 {
			x.Err = "broken " + x.Pod
		}
		samples[i] = x
		want.MaxLate = max(want.MaxLate, x.Late)
		if x.Err != "" {
			want.Errors++
			if want.FirstError == "" {
				want.FirstError = x.Err
			}
			continue
		}
		want.Prompt, want.Answer = want.Prompt+x.Prompt, want.Answer+x.Answer
		want.Predicted, want.Confirmed, want.Delivered = want.Predicted+x.Predicted, want.Confirmed+x.Confirmed, want.Delivered+x.Delivered
		want.Held += x.Delivered
		want.AbsDiff += int(math.Abs(float64(x.Predicted - x.Delivered)))
		if x.Predicted == x.Delivered {
			want.Exact++
		}
		if x.Routed != x.Prompt {
			want.Miscounted++
		}
		if x.Blind {
			want.Blind++
		}
		want.TTFT = append(want.TTFT, x.TTFT)
		want.PerPod[x.Pod]++
	}
	slices.Sort(want.TTFT)
	got := Of(samples)
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Error(diff)
	}
	if sum := got.ConfirmedRatio() + got.SpeculativeRatio(); math.Abs(sum-got.PredictedRatio()) > 1e-12 {
		t.Errorf("confirmed and speculative are %v, predicted %v", sum, got.PredictedRatio())
	}
	if r := got.DeliveredRatio(); r != float64(want.Delivered)/float64(want.Prompt) {
		t.Errorf("the delivered ratio is %v", r)
	}
}

func TestCheckFindsEachFault(t *testing.T) {
	good := func() []Sample {
		list := make([]Sample, 100)
		for i := range list {
			list[i] = Sample{Pod: "a", Prompt: 1000, Predicted: 400, Delivered: 400}
		}
		return list
	}
	for name, tc := range map[string]struct {
		spoil func([]Sample) []Sample
		// want are words of the one fault; empty for none.
		want string
	}{
		"nothing is wrong":                   {func(l []Sample) []Sample { return l }, ""},
		"no hits at all are no fault":        {func([]Sample) []Sample { return []Sample{{Prompt: 9}} }, ""},
		"nothing was sent":                   {func([]Sample) []Sample { return nil }, "no request"},
		"one request failed":                 {func(l []Sample) []Sample { l[3].Err = "no answer"; return l }, "1 of 100 requests failed, the first with: no answer"},
		"2 % too much predicted is right":    {func(l []Sample) []Sample { l[0].Predicted += 800; return l }, ""},
		"more than 2 % is wrong":             {func(l []Sample) []Sample { l[0].Predicted += 801; return l }, "differ by 2.00 %"},
		"2 % too little predicted is right":  {func(l []Sample) []Sample { l[0].Delivered += 816; return l }, ""},
		"less than that is wrong":            {func(l []Sample) []Sample { l[0].Delivered += 817; return l }, "differ by 2.00 %"},
		"predicted where nothing is held":    {func([]Sample) []Sample { return []Sample{{Prompt: 1000, Predicted: 16}} }, "differ by 100.00 %"},
		"differences that cancel are summed": {func(l []Sample) []Sample { return cancel(l, 51) }, "sum up to 5100 tokens, 5.10 % of the prompts' 100000"},
		"5 % of them is right":               {func(l []Sample) []Sample { return cancel(l, 50) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := Of(tc.spoil(good())).Check()
			switch {
			case tc.want == "" && len(wrong) > 0:
				t.Errorf("found %q", wrong)
			case tc.want != "" && (len(wrong) != 1 || !strings.Contains(wrong[0], tc.want)):
				t.Errorf("found %q, want one with %q", wrong, tc.want)
			}
		})
	}
}

// cancel makes n predictions wrong by 100 tokens, in turn too high and too low.
func cancel(list []Sample, n int) []Sample {
	for i := range n {
		list[i].Predicted += 100 - 200*(i%2)
	}
	return list
}

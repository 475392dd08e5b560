package admission

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestCautionIsAsMuchAsIsRefused: none while few are, all where many are, and within the last requests whatever was before.
func TestCautionIsAsMuchAsIsRefused(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 6))
		var c Caution
		if c.Part() != 1 {
			t.Fatal("careful before anybody came")
		}
		for range 4 {
			part := rng.Float64()
			for range 10 * remembered {
				c.RecordArrival()
				if rng.Float64() < part {
					c.Refused()
				}
				if p := c.Part(); p < leastPart || p > 1 {
					t.Fatalf("%v of the target", p)
				}
			}
			// The part that is seen is a mean of some 500: 0.03 off, seldom 0.1.
			low := 1 - (1-leastPart)*max(0, min(1, (part+0.1-few)/(many-few)))
			high := 1 - (1-leastPart)*max(0, min(1, (part-0.1-few)/(many-few)))
			if p := c.Part(); p < low-1e-9 || p > high+1e-9 || math.IsNaN(p) {
				t.Errorf("seed %d: %.2f are refused, and predictions keep to %.3f, want %.3f to %.3f", seed, part, p, low, high)
			}
		}
	}
}

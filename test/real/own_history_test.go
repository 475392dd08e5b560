package real

import (
	"testing"
	"time"
)

// TestOnlyAnEvictionThatNothingHasToldExplainsAMiss. Three blocks are predicted for a request that is sent at 100 s,
// reaches the scheduler at 101 s and is looked up at 102 s.
func TestOnlyAnEvictionThatNothingHasToldExplainsAMiss(t *testing.T) {
	change := func(at float64, what, hash string, told float64) step {
		return step{At: at, What: what, Hash: hash, Request: "r", told: told}
	}
	for name, tc := range map[string]struct {
		predicted, delivered int // blocks
		changes              []step
		want                 string
	}{
		"as predicted":                           {2, 2, nil, asPredicted},
		"more than predicted":                    {1, 2, nil, notExplained},
		"nothing happened":                       {3, 0, nil, notExplained},
		"evicted and told before":                {3, 2, []step{change(90, "removed", "c", 91)}, notExplained},
		"evicted and told just before":           {3, 2, []step{change(90, "removed", "c", 99.985)}, notExplained},
		"evicted before, told while it is sent":  {3, 2, []step{change(90, "removed", "c", 99.995)}, evictedBefore},
		"evicted before, told after":             {3, 2, []step{change(90, "removed", "c", 100.5)}, evictedBefore},
		"evicted on the way":                     {3, 2, []step{change(100.5, "removed", "c", 103)}, evictedOnTheWay},
		"evicted in the queue":                   {3, 2, []step{change(101.5, "removed", "c", 103)}, evictedInQueue},
		"evicted after the look":                 {3, 2, []step{change(102.5, "removed", "c", 103)}, notExplained},
		"those behind the first remain":          {3, 0, []step{change(101.5, "removed", "a", 103)}, evictedInQueue},
		"the first remains":                      {3, 0, []step{change(101.5, "removed", "b", 103)}, notExplained},
		"evicted, told, stored, evicted":         {3, 2, []step{change(80, "removed", "c", 81), change(82, "stored", "c", 83), change(101.5, "removed", "c", 103)}, evictedInQueue},
		"evicted untold, but stored again":       {3, 2, []step{change(100.5, "removed", "c", 103), change(101, "stored", "c", 103)}, notExplained},
		"what another engine evicts is no cause": {3, 2, []step{change(101.5, "removed", "other", 103)}, notExplained},
	} {
		t.Run(name, func(t *testing.T) {
			h := history{
				came: map[string]step{"q": {At: 101}}, pod: map[string]string{"q": "pod-0"}, changed: map[string][]step{},
				found: map[string]step{"q": {At: 102, Tokens: tc.delivered * blockTokens, Hashes: []string{"a", "b", "c"}}},
			}
			for _, one := range tc.changes {
				h.changed["pod-0"+one.Hash] = append(h.changed["pod-0"+one.Hash], one)
			}
			a := answer{id: "q", sent: time.Unix(100, 0), predicted: tc.predicted * blockTokens, delivered: tc.delivered * blockTokens}
			if got, _ := h.cause(a); got != tc.want {
				t.Errorf("the cause is %q, want %q", got, tc.want)
			}
		})
	}
}

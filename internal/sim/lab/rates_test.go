package lab

import (
	"testing"
	"time"
)

// TestWhatIsLearnedIsWhatEnginesCanDo: on a fleet that is short of KV blocks and far behind, where prompts wait for blocks
// and are cached or evicted meanwhile, the rates that pickers learn stay within a factor of 4 of the engines'.
func TestWhatIsLearnedIsWhatEnginesCanDo(t *testing.T) {
	w, err := Generate("agentic", 1500, 1)
	if err != nil {
		t.Fatal(err)
	}
	gpu := profile(t, "8b-h100")
	c := Config{
		Workload: w, Strategy: only(t, "MarginalCost"), Pods: 4, KVTokens: 130_000, Profile: gpu, BlockTokens: 128, Seed: 1, Speed: 4,
		EventLag: 10 * time.Millisecond,
	}
	if err := c.fill(); err != nil {
		t.Fatal(err)
	}
	c.Workload = c.Workload.Fitting(c.longest())
	s := &sim{Config: c}
	if err := s.setUp(); err != nil {
		t.Fatal(err)
	}
	truth := 1000 / gpu.Time.Prefill(1000, 0, 8192).Seconds()
	looked, off := 0, 0
	for next := time.Duration(0); s.open > 0; {
		s.advance()
		if s.now < next {
			continue
		}
		next = s.now + time.Second
		for _, e := range s.pickers[0].Stats()[0].Endpoints {
			if v := &e.Load; v.Rate > 0 {
				looked++
				if v.Rate > 4*truth || v.Rate < truth/4 || v.Overhead > 0.5 {
					off++
				}
			}
		}
	}
	if looked < 1000 || off > looked/100 {
		t.Errorf("%d of %d times what was learned is far from what the engines do, %.0f tokens/s", off, looked, truth)
	}
}

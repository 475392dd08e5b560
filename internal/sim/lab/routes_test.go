package lab

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestWhatRoutesAreWorth: the laws behind the table of docs/lab.md, in a run that is the same each time.
func TestWhatRoutesAreWorth(t *testing.T) {
	if testing.Short() {
		t.Skip("ten runs")
	}
	w, err := Generate("agentic", 3000, 1)
	if err != nil {
		t.Fatal(err)
	}
	strategies, err := Strategies("MarginalCost")
	if err != nil {
		t.Fatal(err)
	}
	r := Routed{Config: Config{Workload: w, Strategy: strategies[0], BlockTokens: 128, KVTokens: 400_000, Speed: 1.5, Think: true, EventLag: 10 * time.Millisecond},
		Patience: 2 * time.Second, Start: 60 * time.Second}
	run := func() map[string]RouteScore {
		scores, err := r.Run(t.Context(), []uint64{1}, nil)
		if err != nil {
			t.Fatal(err)
		}
		byName := map[string]RouteScore{}
		for _, s := range scores {
			byName[s.Name] = s
		}
		return byName
	}
	first := run()
	none, loose, stay, falls := first["no route"], first["weights, sticky: None"], first["weights, sessions stay"], first["weights, sessions stay, fallback"]
	if stay.Hits < loose.Hits+0.05 || stay.TTFTMean > loose.TTFTMean/2 || stay.Good < loose.Good {
		t.Errorf("sessions that stay find %.3f in caches, and without that %.3f; first tokens after %.2f and %.2f s", stay.Hits, loose.Hits, stay.TTFTMean, loose.TTFTMean)
	}
	if stay.Good < none.Good || none.ByPool[poolNext] != 0 || stay.ByPool[poolNext] == 0 {
		t.Errorf("two pools serve %.3f in time, and one %.3f: %v, %v", stay.Good, none.Good, stay.ByPool, none.ByPool)
	}
	for _, s := range first {
		if s.ByPool[poolRare] == 0 {
			t.Errorf("%s: the pool at zero was not woken", s.Name)
		}
	}
	if stay.RareTTFTMax < r.Start.Seconds() || falls.RareTTFTMax > r.Start.Seconds()/4 || falls.ByPool[poolSmall] == 0 {
		t.Errorf("the first requests for a pool at zero wait for %.1f s, and with a fallback for %.1f s", stay.RareTTFTMax, falls.RareTTFTMax)
	}
	if with := first["no route, fallback"]; none.Refused == 0 || with.Refused > 0 {
		t.Errorf("a full pool refuses %.0f requests, and with a fallback %.0f", none.Refused, with.Refused)
	}
	if diff := cmp.Diff(first, run()); diff != "" {
		t.Errorf("the second run differs:\n%s", diff)
	}
}

// TestARunOfSeveralPoolsNeedsOnePicker: the index of a pod is that of all pools of one.
func TestARunOfSeveralPoolsNeedsOnePicker(t *testing.T) {
	c := Config{Workload: &Workload{}, Pools: []Pool{{Name: "a", Pods: 1}}, Pickers: 2, KVTokens: 1000}
	if _, err := Run(c); err == nil {
		t.Error("it has run")
	}
}

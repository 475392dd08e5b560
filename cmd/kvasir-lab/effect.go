package main

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
	"github.com/kvasir-dev/kvasir/internal/sim/lab"
)

const aboutLabEffect = `Shows what something changes: the same workload, fleet and seeds with it and without it.

  exchange   1, 2 and 4 pickers, with and without exchanging what they have assigned to the pods
  spread     bursts with a prefix that no pod has computed yet, under strategies that spread it or do not
  adapters   LoRA adapters, more than pods run at a time, with pickers that know where they run or do not
  islands    half of the pods on another island, 100 ms there and back, with pickers that know the way or do not
  shadow     what shadow strategies would have saved, by their estimate and in runs of their own`

// effects are the experiments, with the workload and the speed of each.
var effects = map[string]struct {
	workload string
	speed    float64
}{"exchange": {"", 2}, "spread": {"fanout", 1.5}, "adapters": {"chat", 4}, "islands": {"chat", 2}, "shadow": {"", 2}}

const (
	// loraAdapters are in use in the experiment with adapters; of them a pod runs so many at a time.
	loraAdapters, loraPerPod = 32, 8
	loraLoad                 = 200 * time.Millisecond
	// islandWay is how long it takes to the other island and back.
	islandWay = 100 * time.Millisecond
	// shadows are the strategies that are compared.
	shadowNames = "Unified,LMetric,LongestPrefix,LeastPendingWork,LeastLoad,RoundRobin"
)

// labEffect is the command of that name.
func labEffect(std stdio) *cobra.Command {
	c := command.New("effect", "What the exchange of pickers and the spreading of hot prefixes change", aboutLabEffect)
	c.Example = examplesEffect
	set := c.Flags()
	var (
		of       = set.String("of", "exchange", "exchange, spread, adapters, islands or shadow")
		workload = set.String("workload", "", "generated workload, or conversation; default depends on the experiment")
		requests = set.Int("requests", 0, "most requests; default is all of a trace, 5000 of a generated workload")
		pods     = set.Int("pods", 8, "number of pods")
		profile  = set.String("profile", "8b-h100", "time model of the engines: "+strings.Join(enginemodel.ProfileNames(), ", "))
		blocks   = set.Int("block-tokens", 128, "block size of engines and keys in tokens")
		speed    = set.Float64("speed", 0, "factor of the arrivals' rate; default depends on the experiment")
		lag      = set.Duration("event-lag", 10*time.Millisecond, "time until a cache event reaches the pickers")
		seeds    = set.String("seeds", "1,2,3,4,5", "seeds of the runs, with commas")
		admit    = set.String("admission", "default", aboutAdmission)
		output   = set.StringP("output", "o", "table", "table or json")
	)
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx := c.Context()
		e, ok := effects[*of]
		if !ok {
			return command.Usage("--of is %q, want exchange, spread, adapters, islands or shadow", *of)
		}
		numbers, err := list(*seeds, func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) })
		if err != nil {
			return command.Usage("--seeds: %v", err)
		}
		gpu, err := enginemodel.LookupProfile(*profile)
		if err != nil {
			return command.Usage("--profile: %v", err)
		}
		if !slices.Contains([]string{"table", "json"}, *output) {
			return command.Usage("-o is %q, want table or json", *output)
		}
		admission, err := admissionOf(*admit)
		if err != nil {
			return err
		}
		if *workload != "" {
			e.workload = strings.TrimSuffix(*workload, "conversation")
		}
		if *speed > 0 {
			e.speed = *speed
		}
		w, err := loadWorkload(std, "", e.workload, *requests)
		if err != nil {
			return err
		}
		strategies, err := lab.Strategies("MarginalCost")
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		bar := newLabBar(std)
		result, err := effectOf(*of, lab.Config{
			Workload: w, Strategy: strategies[0], Pods: *pods, Profile: gpu, BlockTokens: *blocks, Speed: e.speed, EventLag: *lag,
			Admission: admission,
		}, numbers, bar.show)
		bar.end()
		if err != nil {
			return err
		}
		if *output == "json" {
			return printJSON(std, map[string]any{"results": result})
		}
		return lab.WriteEffects(std.Out, result)
	}
	return c
}

// effectOf runs an experiment, and reports to show how many of all runs are done.
func effectOf(name string, c lab.Config, seeds []uint64, show func(done, all int)) ([]lab.Effect, error) {
	switch name {
	case "spread":
		variants, err := lab.Spread()
		if err != nil {
			return nil, err
		}
		return lab.Compare(c, variants, seeds, show)
	case "adapters":
		c.Workload = c.Workload.WithAdapters(loraAdapters)
		c.Adapters = lab.Adapters{PerPod: loraPerPod, Load: loraLoad}
		return lab.Compare(c, lab.Placement(), seeds, show)
	case "islands":
		c.Islands = lab.Islands{Away: c.Pods / 2, Way: islandWay}
		return lab.Compare(c, lab.Distance(), seeds, show)
	case "shadow":
		return lab.Shadowed(c, shadowNames, seeds, show)
	}
	return lab.Compare(c, lab.Exchange(2, 4), seeds, show)
}

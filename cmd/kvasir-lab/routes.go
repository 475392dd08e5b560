package main

import (
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/sim/lab"
)

const aboutLabRoutes = `Plays one door before four pools: a large model (4 pods) with a canary (2 pods), a small model (2 pods), and a model whose pool is at zero
until it is asked for. Sessions begin at a rate that rises to more than the large pool bears. Compares no route, weights with sessions that
stay and without, and fallbacks to the small model.`

// labRoutes is the command routes.
func labRoutes(std stdio) *cobra.Command {
	c := command.New("routes", "What routes between pools are worth", aboutLabRoutes)
	c.Example = examplesRoutes
	set := c.Flags()
	var (
		requests = set.Int("requests", 4000, "requests of the workload, which is agentic")
		speed    = set.Float64("speed", 1.5, "the rate of sessions as a multiple of the workload's")
		patience = set.Duration("patience", 2*time.Second, "the time to the first token within which an answer is in time")
		start    = set.Duration("start", 90*time.Second, "how long the pods of the pool at zero take to be ready")
		seeds    = set.String("seeds", "1,2,3", "seeds of the runs, with commas")
		output   = set.StringP("output", "o", "table", "table or json")
	)
	c.RunE = func(c *cobra.Command, _ []string) error {
		numbers, err := list(*seeds, func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) })
		if err != nil {
			return command.Usage("--seeds: %v", err)
		}
		if !slices.Contains([]string{"table", "json"}, *output) {
			return command.Usage("-o is %q, want table or json", *output)
		}
		if *requests < 1 || !(*speed > 0) || *patience <= 0 || *start <= 0 {
			return command.Usage("--requests, --speed, --patience and --start must be above 0")
		}
		strategies, err := lab.Strategies("MarginalCost")
		if err != nil {
			return err
		}
		workload, err := lab.Generate("agentic", *requests, numbers[0])
		if err != nil {
			return err
		}
		bar := newLabBar(std)
		defer bar.end()
		r := lab.Routed{
			Config: lab.Config{
				Workload: workload, Strategy: strategies[0], BlockTokens: 128, KVTokens: 400_000, Speed: *speed, Think: true,
				EventLag: 10 * time.Millisecond,
			},
			Patience: *patience, Start: *start,
		}
		scores, err := r.Run(c.Context(), numbers, bar.show)
		if err != nil {
			return err
		}
		bar.end()
		if *output == "json" {
			return printJSON(std, map[string]any{"results": scores})
		}
		return lab.WriteRoutes(std.Out, scores)
	}
	return c
}

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

const aboutLabApart = `Compares rules by which requests are handed over from pods that prefill to pods that decode: by cost, as Kvasir decides by
itself, never, and from a number of uncached tokens on; and the same pods without roles, alone and where they load prefixes from each
other. Ratios are to the best fixed rule of a configuration: of first tokens to the best one whose tokens come as evenly (99th
percentile), of the end to the best of all.`

// mostLoad bounds the loads of labApart, as parts of what saturates the fleet.
const mostLoad = 100

// labApart is the command disaggregation.
func labApart(std stdio) *cobra.Command {
	c := command.New("disaggregation", "What hand-offs between prefill and decode are worth", aboutLabApart)
	c.Example = examplesApart
	set := c.Flags()
	var (
		workloads  = set.String("workloads", "agentic,documents,chat", "generated workloads, with commas: "+strings.Join(lab.Generated(), ", "))
		loads      = set.String("loads", "0.3,0.6,0.9,1.2", "rates as parts of the one that saturates the pods without roles, with commas")
		pods       = set.Int("pods", 8, "number of pods")
		prefillers = set.String("prefillers", "1,2,4", "how many of them prefill, with commas")
		thresholds = set.String("thresholds", "17,512,2048,8192", "uncached tokens of the fixed rules, with commas")
		requests   = set.Int("requests", 800, "requests of a workload")
		profile    = set.String("profile", "8b-h100", "time model of the engines: "+strings.Join(enginemodel.ProfileNames(), ", "))
		strategy   = set.String("policy", "MarginalCost", "strategy, as of run")
		seeds      = set.String("seeds", "1,2", "seeds of the runs, with commas")
		output     = set.StringP("output", "o", "table", "table or json")
	)
	c.RunE = func(c *cobra.Command, _ []string) error {
		a := lab.Apart{Config: lab.Config{Pods: *pods, EventLag: 10 * time.Millisecond, Admission: lab.DefaultAdmission()}}
		var err error
		if a.Config.Profile, err = enginemodel.LookupProfile(*profile); err != nil {
			return command.Usage("--profile: %v", err)
		}
		strategies, err := lab.Strategies(*strategy)
		if err != nil || len(strategies) != 1 {
			return command.Usage("--policy %q is not one strategy", *strategy)
		}
		a.Config.Strategy = strategies[0]
		if a.Loads, err = list(*loads, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }); err != nil {
			return command.Usage("--loads: %v", err)
		}
		for _, load := range a.Loads {
			if !(load > 0) || load > mostLoad {
				return command.Usage("--loads: %g is not above 0 and at most %d", load, mostLoad)
			}
		}
		if a.Prefillers, err = list(*prefillers, strconv.Atoi); err != nil || slices.Min(a.Prefillers) < 1 || slices.Max(a.Prefillers) >= *pods {
			return command.Usage("--prefillers: want numbers from 1 to fewer than the pods")
		}
		if a.Thresholds, err = list(*thresholds, strconv.Atoi); err != nil || slices.Min(a.Thresholds) < 1 {
			return command.Usage("--thresholds: want numbers from 1 on")
		}
		if a.Seeds, err = list(*seeds, func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) }); err != nil {
			return command.Usage("--seeds: %v", err)
		}
		if !slices.Contains([]string{"table", "json"}, *output) {
			return command.Usage("-o is %q, want table or json", *output)
		}
		if *requests < 1 {
			return command.Usage("--requests must be above 0")
		}
		for name := range strings.SplitSeq(*workloads, ",") {
			w, err := lab.Generate(strings.TrimSpace(name), *requests, a.Seeds[0])
			if err != nil {
				return command.Usage("--workloads: %v", err)
			}
			a.Workloads = append(a.Workloads, w)
		}
		bar := newLabBar(std)
		all, err := a.Run(c.Context(), bar.show)
		bar.end()
		if err != nil {
			return err
		}
		if *output == "json" {
			return printJSON(std, map[string]any{"results": all})
		}
		return lab.WriteDivisions(std.Out, all)
	}
	return c
}

package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
	"github.com/kvasir-dev/kvasir/internal/sim/lab"
)

const aboutLabOverload = `Lets so many times as many sessions come as the fleet can serve, each at its own pace, without admission and with a target
for first tokens (maxSlowdownPercent), and compares both with the fleet at the highest rate of sessions that it bears
without admission. Turns that are refused are sent again after Retry-After; a client that is refused too often gives the session up.`

// labOverload is the command of that name.
func labOverload(std stdio) *cobra.Command {
	c := command.New("overload", "What admission makes of more than the fleet can serve", aboutLabOverload)
	c.Example = examplesOverload
	set := c.Flags()
	var (
		workloads = set.String("workloads", "conversation,chat,rag,agentic",
			"workloads, with commas: conversation (ten minutes of Mooncake's trace), "+strings.Join(lab.Generated(), ", "))
		horizon  = set.Duration("horizon", 5*time.Minute, "how long sessions arrive, in virtual time, also where saturation is looked for; the second half is measured")
		retries  = set.Int("retries", 2, "how often a turn that is refused is sent again; 0 continues with the next turn")
		factor   = set.Float64("factor", 3, "rate at which sessions begin, as a multiple of the one that saturates the fleet")
		slowdown = set.Float64("max-slowdown", 2, "the target: first tokens within so many times what the prefill of the entire prompt takes on an idle pod")
		tenants  = set.String("tenants", "0.2,0.2,0.2,0.4", "the parts of the sessions of tenants with equal weights, with commas")
		strategy = set.String("policy", "MarginalCost", "strategy, as of run")
		pods     = set.Int("pods", 4, "number of pods")
		kvTokens = set.Int("kv-tokens", 0, "KV cache of a pod in tokens; default is the profile's")
		profile  = set.String("profile", "8b-h100", "time model of the engines: "+strings.Join(enginemodel.ProfileNames(), ", "))
		blocks   = set.Int("block-tokens", 128, "block size of engines and keys in tokens")
		seeds    = set.String("seeds", "1,2,3", "seeds of the runs, with commas")
		output   = set.StringP("output", "o", "table", "table or json")
	)
	c.RunE = func(c *cobra.Command, _ []string) error {
		strategies, err := lab.Strategies(*strategy)
		if err != nil || len(strategies) != 1 {
			return command.Usage("--policy %q is not one strategy", *strategy)
		}
		numbers, err := list(*seeds, func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) })
		if err != nil {
			return command.Usage("--seeds: %v", err)
		}
		parts, err := list(*tenants, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) })
		if err != nil || len(parts) > 26 {
			return command.Usage("--tenants: want up to 26 parts")
		}
		gpu, err := enginemodel.LookupProfile(*profile)
		if err != nil {
			return command.Usage("--profile: %v", err)
		}
		if !slices.Contains([]string{"table", "json"}, *output) {
			return command.Usage("-o is %q, want table or json", *output)
		}
		if !(*factor > 0) || !(*slowdown > 1) || *horizon < time.Second || *horizon > time.Hour || *retries < 0 {
			return command.Usage("--factor must be above 0, --max-slowdown above 1, --horizon from 1s to 1h and --retries 0 or more")
		}
		o := lab.Overload{
			Config: lab.Config{
				Strategy: strategies[0], Pods: *pods, KVTokens: *kvTokens, Profile: gpu, BlockTokens: *blocks,
				EventLag: 10 * time.Millisecond, Horizon: *horizon, Retries: *retries,
			},
			Factor: *factor, Slowdown: *slowdown, Tenants: parts,
		}
		all, err := runOverload(c.Context(), std, o, strings.Split(*workloads, ","), numbers)
		if err != nil {
			return err
		}
		if *output == "json" {
			return printJSON(std, map[string]any{"results": all})
		}
		return printPressed(std, all)
	}
	return c
}

// runOverload runs o with each workload and seed.
func runOverload(ctx context.Context, std stdio, o lab.Overload, workloads []string, seeds []uint64) (all []*lab.Pressured, err error) {
	bar := newLabBar(std)
	defer bar.end()
	for _, name := range workloads {
		w, err := overloadWorkload(std, strings.TrimSpace(name))
		if err != nil {
			return nil, err
		}
		for _, seed := range seeds {
			bar.show(len(all), len(workloads)*len(seeds))
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			drawn, err := w.Drawn(seed)
			if err != nil {
				return nil, err
			}
			o.Workload, o.Seed = drawn, seed
			r, err := o.Run(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			all = append(all, r)
		}
	}
	bar.show(len(all), len(all))
	return all, nil
}

// overloadWorkload finds a workload by its name. Generated ones grow as they are needed.
func overloadWorkload(std stdio, name string) (*lab.Workload, error) {
	if name == "conversation" {
		return loadWorkload(std, "", "", 0)
	}
	return loadWorkload(std, "", name, 0)
}

func printPressed(std stdio, all []*lab.Pressured) error {
	t := tabwriter.NewWriter(std.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "workload\tseed\tadmission\toffered/s\tanswered/s\tof saturation\tprompt tokens/s\tof saturation\tin time\tTTFT p50\tp90\tgave up\toff the fair share\t")
	for _, r := range all {
		for _, p := range []*lab.Pressure{&r.Saturated, &r.Off, &r.On} {
			fmt.Fprintf(t, "%s\t%d\t%s\t%.1f\t%.1f\t%.2f\t%.0f\t%.2f\t%.1f %%\t%.3f s\t%.3f s\t%d\t%.1f %%\t\n", r.Workload, r.Seed, p.Name,
				p.Offered, p.Answered,
				p.Answered/r.Saturated.Answered, p.Prompt, p.Prompt/r.Saturated.Prompt, 100*p.InTime, p.TTFTSeconds.P50, p.TTFTSeconds.P90, p.GaveUp,
				100*p.Unfair)
		}
	}
	return t.Flush()
}

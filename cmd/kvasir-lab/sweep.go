package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
	"github.com/kvasir-dev/kvasir/internal/sim/lab"
)

const aboutLabSweep = `Runs strategies in a matrix of configurations (workloads, loads, numbers of pods, KV caches, profiles), and ranks them by
their mean time to the first token, relative to the best strategy of each configuration: geometric mean and worst case.`

// labSweep is the command of that name.
func labSweep(std stdio) *cobra.Command {
	c := command.New("sweep", "Rank strategies over a matrix of configurations", aboutLabSweep)
	c.Example = examplesSweep
	set := c.Flags()
	var (
		traces    = set.String("traces", "", "files with traces as of run, with commas; an empty name is ten minutes of Mooncake's conversation trace")
		workloads = set.String("workloads", "agentic,chat,fanout,rag", "generated workloads, with commas; empty for none")
		requests  = set.Int("requests", 2500, "most requests of a workload")
		pods      = set.String("pods", "8,16", "numbers of pods, with commas")
		kvTokens  = set.String("kv-tokens", "0,1600000", "KV caches of a pod in tokens, with commas; 0 is the profile's")
		profiles  = set.String("profiles", "8b-h100,70b-tp4-h100", "time models of the engines, with commas: "+
			strings.Join(enginemodel.ProfileNames(), ", "))
		loads    = set.String("loads", "0.3,0.6,0.85", "arrival rates, with commas, as parts of what the fleet can answer")
		full     = set.Bool("full", false, "every fleet at every load of every workload, not two that have nothing in common")
		policies = set.String("policies", "all,LMetric/literal,LongestPrefix/literal,Rendezvous/prefix", "strategies, as of run")
		seeds    = set.String("seeds", "1,2,3,4,5", "seeds of the runs, with commas")
		model    = set.String("engine-model", "even", aboutEngines)
		resume   = set.String("resume", "", "file that keeps the configurations that are done; those that it has are not run again")
		admit    = set.String("admission", "default", aboutAdmission)
		arrivals = set.String("arrivals", "timestamps", "timestamps or think, as of run")
		blocks   = set.Int("block-tokens", 128, "block size of engines and keys in tokens; larger is faster and coarser")
		lag      = set.Duration("event-lag", 10*time.Millisecond, "time until a cache event reaches the picker")
		parallel = set.Int("parallel", 1, "runs at a time")
		cells    = set.Bool("cells", false, "print every configuration too")
		output   = set.StringP("output", "o", "table", "table or json")
	)
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx := c.Context()
		m := lab.Matrix{Full: *full, BlockTokens: *blocks, EventLag: *lag, Parallel: *parallel}
		m.Think, m.Uneven = *arrivals == "think", *model == "uneven"
		err := cmp.Or(oneOf("--arrivals", *arrivals, "timestamps", "think"), oneOf("--engine-model", *model, engineModels...))
		if err != nil {
			return err
		}
		if m.Strategies, err = lab.Strategies(*policies); err != nil {
			return command.Usage("--policies: %v", err)
		}
		if m.Seeds, err = list(*seeds, func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) }); err != nil {
			return command.Usage("--seeds: %v", err)
		}
		if m.Pods, err = list(*pods, strconv.Atoi); err != nil {
			return command.Usage("--pods: %v", err)
		}
		if m.KVTokens, err = list(*kvTokens, strconv.Atoi); err != nil {
			return command.Usage("--kv-tokens: %v", err)
		}
		if m.Loads, err = list(*loads, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }); err != nil {
			return command.Usage("--loads: %v", err)
		}
		if m.Profiles, err = list(*profiles, enginemodel.LookupProfile); err != nil {
			return command.Usage("--profiles: %v", err)
		}
		if m.Admission, err = admissionOf(*admit); err != nil {
			return err
		}
		if m.Workloads, err = sweepWorkloads(std, *traces, *workloads, *requests); err != nil {
			return err
		}
		kept := progress{path: *resume}
		set.VisitAll(func(f *pflag.Flag) {
			if f.Name != "resume" && f.Name != "parallel" && f.Name != "output" && f.Name != "help" && f.Name != "cells" {
				kept.Parameters = append(kept.Parameters, f.Name+"="+f.Value.String())
			}
		})
		if err := kept.load(); err != nil {
			return err
		}
		result, err := kept.run(ctx, std, &m)
		if err != nil {
			return err
		}
		ranks := lab.Ranking(result)
		if *output == "json" {
			return printJSON(std, map[string]any{"ranking": ranks, "configurations": result})
		}
		return printRanking(std, ranks, result, *cells)
	}
	return c
}

func printJSON(std stdio, v any) error {
	e := json.NewEncoder(std.Out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// run runs the configurations of a sweep that are not done yet, and returns all.
func (p *progress) run(ctx context.Context, std stdio, m *lab.Matrix) ([]*lab.Cell, error) {
	m.Known = p.Configurations
	began, bar := time.Now(), std.Progress()
	var failed error
	result, err := m.Run(ctx, func(done, all int, c *lab.Cell) {
		bar.Show(done, all, "configurations", fmt.Sprintf("%.0f s", time.Since(began).Seconds()))
		if err := p.add(c); err != nil {
			failed = err
		}
	})
	bar.End()
	return result, cmp.Or(err, failed)
}

// progress of a sweep, which a file keeps from one time to the next.
type progress struct {
	// Parameters of the sweep: another one's configurations are not taken for its own.
	Parameters     []string    `json:"parameters"`
	Configurations []*lab.Cell `json:"configurations"`

	path string // empty: nothing is kept
}

// load what the file has, if there is one.
func (p *progress) load() error {
	if p.path == "" {
		return nil
	}
	text, err := os.ReadFile(p.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	before := progress{}
	if err == nil {
		err = json.Unmarshal(text, &before)
	}
	if err != nil {
		return fmt.Errorf("reading completed runs: %w", err)
	}
	if !slices.Equal(before.Parameters, p.Parameters) {
		return fmt.Errorf("%s is of a sweep with other parameters: %v", p.path, before.Parameters)
	}
	p.Configurations = before.Configurations
	return nil
}

// add a configuration that is done.
func (p *progress) add(c *lab.Cell) error {
	p.Configurations = append(p.Configurations, c)
	if p.path == "" {
		return nil
	}
	text, err := json.Marshal(p)
	if err == nil {
		err = os.WriteFile(p.path+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(p.path+".new", p.path)
	}
	if err != nil {
		return fmt.Errorf("saving completed runs: %w", err)
	}
	return nil
}

// sweepWorkloads loads traces and generates workloads. Names are unique: they identify configurations. A trace
// that is called as what is generated is called a trace.
func sweepWorkloads(std stdio, traces, generated string, requests int) ([]*lab.Workload, error) {
	var all []*lab.Workload
	for path := range strings.SplitSeq(traces, ",") {
		w, err := loadWorkload(std, strings.TrimSpace(path), "", requests)
		if err != nil {
			return nil, err
		}
		if slices.Contains(lab.Generated(), w.Name) {
			w.Name += " (trace)"
		}
		all = append(all, w)
	}
	for name := range strings.SplitSeq(generated, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		w, err := lab.Generate(name, requests, 1)
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	names := map[string]bool{}
	for _, w := range all {
		if names[w.Name] {
			return nil, command.Usage("two workloads are called %q", w.Name)
		}
		names[w.Name] = true
	}
	return all, nil
}

func printRanking(std stdio, ranks []lab.Rank, cells []*lab.Cell, each bool) error {
	t := tabwriter.NewWriter(std.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "strategy\tTTFT\tworst\tp99\tE2E\thit\tbest in\t  worst in")
	for _, r := range ranks {
		mark := ""
		if r.Incomparable {
			mark = " (not all requests)"
		}
		fmt.Fprintf(t, "%s%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%d\t  %s\n", r.Strategy, mark, r.TTFT, r.TTFTWorst, r.P99, r.E2E, r.Hit, r.Wins,
			r.Worst)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if !each {
		return nil
	}
	for _, c := range cells {
		fmt.Fprintf(std.Out, "\n%s (speeds %.2f)\n", c.Name(), c.Speeds)
		for _, s := range c.Scores {
			fmt.Fprintf(t, "%s\t%.3f s\t±%.3f\tp99 %.2f s\tE2E %.2f s\thit %.1f %%\timbalance %.2f\t\n", s.Strategy, s.TTFTMean, s.TTFTSpread,
				s.TTFTP99, s.E2EMean, 100*s.HitRatio, s.Imbalance)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// list reads values with commas between them.
func list[T any](text string, read func(string) (T, error)) ([]T, error) {
	var all []T
	for part := range strings.SplitSeq(text, ",") {
		v, err := read(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("%q: %w", part, err)
		}
		all = append(all, v)
	}
	return all, nil
}

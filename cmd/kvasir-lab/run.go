package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
	"github.com/kvasir-dev/kvasir/internal/sim/lab"
	"github.com/kvasir-dev/kvasir/internal/sim/trace"
)

const aboutEngines = "even: the model of vLLM, or uneven: an engine on the same GPUs whose times and order of service have another form"

const aboutAdmission = "default: requests wait in the picker as a policy lets them that does not set its admission; off: in the engines"

// admissionOf is the value of --admission.
func admissionOf(name string) (picker.AdmissionSpec, error) {
	switch name {
	case "default":
		return lab.DefaultAdmission(), nil
	case "off":
		return picker.AdmissionSpec{}, nil
	}
	return picker.AdmissionSpec{}, command.Usage("--admission is %q, want default or off", name)
}

// stallOf is the value of --stall.
func stallOf(text string) (s lab.Stall, err error) {
	if text == "" {
		return s, nil
	}
	at, lasts, _ := strings.Cut(text, ":")
	if s.At, err = time.ParseDuration(at); err == nil {
		s.For, err = time.ParseDuration(lasts)
	}
	if err != nil || s.At < 0 || s.For <= 0 {
		return s, command.Usage("--stall is %q, want AT:FOR, such as 30s:10s", text)
	}
	return s, nil
}

const aboutLabRun = `Plays a workload against model engines in virtual time, once with each strategy and seed. The picker is the production
one; the engines are models of vLLM on the profile's GPUs. Times of decisions are measured, all others are virtual.`

// labRun is the command of that name.
func labRun(std stdio) *cobra.Command {
	c := command.New("run", "Play one workload with each of some strategies", aboutLabRun)
	c.Example = examplesRun
	set := c.Flags()
	var (
		traceFile = set.String("trace", "", "file with a trace in Mooncake's or Azure's format or a decision log, plain or gzip; default is ten minutes of Mooncake's conversation trace")
		workload  = set.String("workload", "", "generated workload instead of a trace: "+strings.Join(lab.Generated(), ", "))
		requests  = set.Int("requests", 0, "most requests; default is all of a trace, 5000 of a generated workload")
		pods      = set.Int("pods", 8, "number of pods")
		kvTokens  = set.Int("kv-tokens", 0, "KV cache of a pod in tokens; default is the profile's")
		blocks    = set.Int("block-tokens", enginemodel.DefaultBlockSize, "block size of engines and keys in tokens; larger is faster and coarser")
		profile   = set.String("profile", "8b-h100", "time model of the engines: "+strings.Join(enginemodel.ProfileNames(), ", "))
		engines   = set.String("engine-model", "even", aboutEngines)
		speed     = set.Float64("speed", 1, "factor of the arrivals' rate")
		arrivals  = set.String("arrivals", "timestamps", "timestamps, or think: a session's next turn arrives some time after the answer to the one before")
		policies  = set.String("policies", "MarginalCost,RoundRobin", "strategies, with commas: "+typeNames()+
			"; LMetric/literal, LongestPrefix/literal, Rendezvous/prefix, ApproximatePrefix/long; all; five (lmetric, load_only, sticky, unified, capped); NAME*4 takes engines for four times as fast as learned")
		admit    = set.String("admission", "default", aboutAdmission)
		pickers  = set.Int("pickers", 1, "number of pickers, which get the requests by turns")
		exchange = set.String("exchange", "on", "on: pickers exchange what they have assigned to the pods; off: they do not")
		lag      = set.Duration("event-lag", 10*time.Millisecond, "time until a cache event reaches the pickers")
		maxTurns = set.Int("max-turns", 0, "most turns of a session that are sent; 0 sends all")
		seeds    = set.String("seeds", "1", "seeds of the runs, with commas")
		stall    = set.String("stall", "", "AT:FOR, such as 30s:10s: after that time the first pod computes nothing for so long")
		drops    = set.Bool("drop-report", false, "report which requests were not sent (json and html always do)")
		output   = set.StringP("output", "o", "table", "table, json or html")
	)
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx := c.Context()
		strategies, err := lab.Strategies(*policies)
		if err != nil {
			return command.Usage("--policies: %v", err)
		}
		numbers, err := list(*seeds, func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) })
		if err != nil {
			return command.Usage("--seeds: %v", err)
		}
		gpu, err := enginemodel.LookupProfile(*profile)
		if err != nil {
			return command.Usage("--profile: %v", err)
		}
		if err := cmp.Or(oneOf("--arrivals", *arrivals, "timestamps", "think"), oneOf("--exchange", *exchange, "on", "off"),
			oneOf("-o", *output, "table", "json", "html"), oneOf("--engine-model", *engines, engineModels...)); err != nil {
			return err
		}
		admission, err := admissionOf(*admit)
		stalled, stallErr := stallOf(*stall)
		if err := cmp.Or(err, stallErr); err != nil {
			return err
		}
		if *traceFile != "" && *workload != "" {
			return command.Usage("--trace and --workload exclude each other")
		}
		w, err := loadWorkload(std, *traceFile, *workload, *requests)
		if err != nil {
			return err
		}
		config := lab.Config{
			Workload: w, Pods: *pods, KVTokens: *kvTokens, Profile: gpu, BlockTokens: *blocks, Speed: *speed,
			Uneven: *engines == "uneven", Think: *arrivals == "think", Pickers: *pickers, NoExchange: *exchange == "off", EventLag: *lag,
			Admission: admission, Stall: stalled,
		}
		bar := newLabBar(std)
		report, err := runAll(ctx, &config, *maxTurns, strategies, numbers, bar.show)
		bar.end()
		if err != nil {
			return err
		}
		switch *output {
		case "json":
			return report.WriteJSON(std.Out)
		case "html":
			return report.WriteHTML(std.Out)
		}
		return report.WriteTable(std.Out, *drops)
	}
	return c
}

// oneOf returns an error if a flag has another value than those listed.
func oneOf(flag, value string, known ...string) error {
	if slices.Contains(known, value) {
		return nil
	}
	last := len(known) - 1
	return command.Usage("%s is %q, want %s or %s", flag, value, strings.Join(known[:last], ", "), known[last])
}

// engineModels are the values of --engine-model.
var engineModels = []string{"even", "uneven"}

// runAll runs each strategy with each seed, which draws the workload: a seed here is the same seed in a sweep. It reports
// to show how many of all runs are done.
func runAll(ctx context.Context, c *lab.Config, maxTurns int, list []lab.Strategy, seeds []uint64, show func(done,
	all int)) (*lab.Report, error) {
	report := &lab.Report{}
	var drawn []*lab.Workload
	var bounds []lab.Bounds
	for i, seed := range seeds {
		one := *c
		w, err := c.Workload.Drawn(seed)
		if err != nil {
			return nil, err
		}
		if w == c.Workload && i > 0 { // a trace is the same for all
			drawn = append(drawn, drawn[0])
			continue
		}
		one.Workload = w.Cap(maxTurns)
		setup, err := lab.SetupOf(&one)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			report.Setup = setup
		}
		drawn = append(drawn, one.Workload)
		bounds = append(bounds, lab.BoundsOf(one.Workload, one.Pods, one.KVTokens, one.BlockTokens))
	}
	report.Bounds = lab.MeanBounds(bounds)
	all := len(list) * len(seeds)
	for _, s := range list {
		for i, seed := range seeds {
			show(len(report.Results), all)
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			one := *c
			one.Workload, one.Strategy, one.Seed = drawn[i], s, seed
			result, err := lab.Run(one)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.Name, err)
			}
			report.Results = append(report.Results, result)
		}
	}
	show(all, all)
	return report, nil
}

// generatedRequests is the default number of requests of a generated workload.
const generatedRequests = 5000

// loadWorkload reads or generates a workload of seed 1. It reports lines that it had to skip.
func loadWorkload(std stdio, path, generated string, requests int) (*lab.Workload, error) {
	if generated != "" {
		if requests <= 0 {
			requests = generatedRequests
		}
		return lab.Generate(generated, requests, 1)
	}
	if path == "" {
		list, err := trace.Slice()
		if err != nil {
			return nil, err
		}
		return lab.FromTrace("conversation (ten minutes)", list).First(requests), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the trace: %w", err)
	}
	defer f.Close()
	name, _, _ := strings.Cut(filepath.Base(path), ".")
	w, skipped, err := lab.Read(name, f)
	if err != nil {
		return nil, err
	}
	if skipped.Lines > 0 {
		fmt.Fprintf(std.Err, "%s: %s\n", path, skipped.String())
	}
	return w.First(requests), nil
}

func typeNames() string {
	var names []string
	for _, t := range policy.Types() {
		names = append(names, string(t))
	}
	return strings.Join(names, ", ")
}

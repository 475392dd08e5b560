package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/enginemodel"
	"github.com/kvasir-dev/kvasir/internal/lab"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/trace"
)

const usageLab = `kubectl kvasir lab COMMAND [flags]

  run        play one workload with each of some strategies
  sweep      rank strategies over a matrix of configurations
  effect     what the exchange of pickers and the spreading of hot prefixes change
  overload   what admission makes of more than the fleet can serve

kubectl kvasir lab COMMAND -h lists a command's flags.
`

// labs is the command lab.
func labs(ctx context.Context, args []string, std stdio) error {
	if len(args) == 0 {
		fmt.Fprint(std.err, usageLab)
		return errUsage
	}
	switch args[0] {
	case "run":
		return labRun(ctx, args[1:], std)
	case "sweep":
		return labSweep(ctx, args[1:], std)
	case "effect":
		return labEffect(ctx, args[1:], std)
	case "overload":
		return labOverload(ctx, args[1:], std)
	case "help", "-h", "-help", "--help":
		fmt.Fprint(std.out, usageLab)
		return nil
	}
	fmt.Fprintf(std.err, "kubectl-kvasir lab: unknown command %q\n\n%s", args[0], usageLab)
	return errUsage
}

const aboutEngines = "even: the model of vLLM, or uneven: an engine on the same GPUs whose times and order of service have another form"

const aboutLabRun = `Plays a workload against model engines in virtual time, once with each strategy and seed. The picker is the production
one; the engines are models of vLLM on the profile's GPUs. Times of decisions are measured, all others are virtual.`

// labRun is the command of that name.
func labRun(ctx context.Context, args []string, std stdio) error {
	set := newFlags("lab run", aboutLabRun, std)
	var (
		traceFile = set.String("trace", "", "file with a trace in Mooncake's format or a decision log, plain or gzip; default is ten minutes of Mooncake's conversation trace")
		workload  = set.String("workload", "", "generated workload instead of a trace: "+strings.Join(lab.Generated(), ", "))
		requests  = set.Int("requests", 0, "most requests; default is all of a trace, 5000 of a generated workload")
		pods      = set.Int("pods", 8, "number of pods")
		kvTokens  = set.Int("kv-tokens", 0, "KV cache of a pod in tokens; default is the profile's")
		blocks    = set.Int("block-tokens", enginemodel.DefaultBlockSize, "block size of engines and keys in tokens; larger is faster and coarser")
		profile   = set.String("profile", "8b-h100", "time model of the engines: "+strings.Join(enginemodel.ProfileNames(), ", "))
		engines   = set.String("engine-model", "even", aboutEngines)
		speed     = set.Float64("speed", 1, "factor of the arrivals' rate")
		arrivals  = set.String("arrivals", "timestamps", "timestamps, or think: a session's next turn comes some time after the answer to the one before")
		policies  = set.String("policies", "MarginalCost,RoundRobin", "strategies, with commas: "+typeNames()+"; LMetric/literal, LongestPrefix/literal, Rendezvous/prefix, ApproximatePrefix/long; all; five (lmetric, load_only, sticky, unified, capped); NAME*4 takes engines for four times as fast as learned")
		pickers   = set.Int("pickers", 1, "number of pickers, which get the requests by turns")
		exchange  = set.String("exchange", "on", "on: pickers tell each other what they have given the pods; off: they do not")
		lag       = set.Duration("event-lag", 10*time.Millisecond, "time until a cache event reaches the pickers")
		maxTurns  = set.Int("max-turns", 0, "most turns of a session that are sent; 0 sends all")
		seeds     = set.String("seeds", "1", "seeds of the runs, with commas")
		drops     = set.Bool("drop-report", false, "tell which requests were not sent (json and html always do)")
		output    = set.String("o", "table", "table, json or html")
	)
	if err := parse(set, args); err != nil {
		return err
	}
	strategies, err := lab.Strategies(*policies)
	if err != nil {
		return wrong(set, "--policies: %v", err)
	}
	numbers, err := list(*seeds, func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) })
	if err != nil {
		return wrong(set, "--seeds: %v", err)
	}
	time, err := enginemodel.LookupProfile(*profile)
	if err != nil {
		return wrong(set, "--profile: %v", err)
	}
	if !slices.Contains([]string{"timestamps", "think"}, *arrivals) {
		return wrong(set, "--arrivals is %q, want timestamps or think", *arrivals)
	}
	if !slices.Contains([]string{"on", "off"}, *exchange) {
		return wrong(set, "--exchange is %q, want on or off", *exchange)
	}
	if !slices.Contains([]string{"table", "json", "html"}, *output) {
		return wrong(set, "-o is %q, want table, json or html", *output)
	}
	if !slices.Contains(engineModels, *engines) {
		return wrong(set, "--engine-model is %q, want even or uneven", *engines)
	}
	if *traceFile != "" && *workload != "" {
		return wrong(set, "--trace and --workload exclude each other")
	}
	w, err := loadWorkload(*traceFile, *workload, *requests)
	if err != nil {
		return err
	}
	c := lab.Config{
		Workload: w.Cap(*maxTurns), Pods: *pods, KVTokens: *kvTokens, Profile: time, BlockTokens: *blocks, Speed: *speed,
		Uneven: *engines == "uneven", Think: *arrivals == "think", Pickers: *pickers, NoExchange: *exchange == "off", EventLag: *lag,
	}
	report, err := runAll(ctx, &c, strategies, numbers)
	if err != nil {
		return err
	}
	switch *output {
	case "json":
		return report.WriteJSON(std.out)
	case "html":
		return report.WriteHTML(std.out)
	}
	return report.WriteTable(std.out, *drops)
}

// engineModels are the values of --engine-model.
var engineModels = []string{"even", "uneven"}

func runAll(ctx context.Context, c *lab.Config, list []lab.Strategy, seeds []uint64) (*lab.Report, error) {
	setup, err := lab.SetupOf(c)
	if err != nil {
		return nil, err
	}
	report := &lab.Report{Setup: setup, Bounds: lab.BoundsOf(c.Workload, c.Pods, c.KVTokens, c.BlockTokens)}
	for _, s := range list {
		for _, seed := range seeds {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			c.Strategy, c.Seed = s, seed
			result, err := lab.Run(*c)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.Name, err)
			}
			report.Results = append(report.Results, result)
		}
	}
	return report, nil
}

// generatedRequests is how many requests a generated workload has where nobody says.
const generatedRequests = 5000

func loadWorkload(path, generated string, requests int) (*lab.Workload, error) {
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
	w, _, err := lab.Read(name, f)
	if err != nil {
		return nil, err
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

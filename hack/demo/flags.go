//go:build unix

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/sim/trace"
)

// errHelp means that the flags requested help, which was printed.
var errHelp = flag.ErrHelp

// maxStrategies is how many runs a report has colours for.
const maxStrategies = 8

// options are the demo's flags.
type options struct {
	strategies []string
	duration   time.Duration
	requests   int
	speedUp    float64
	rate       float64
	chats      float64
	pods       int
	profile    string
	kvTokens   int
	interval   int
	tokenizer  string
	out, bin   string
	keep       bool
	// prefillers is how many pods prefill in the second run of a comparison of roles; 0 for none.
	prefillers int
}

// parseOptions reads and checks the flags. It fails with errHelp when they ask for help.
func parseOptions(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	set := flag.NewFlagSet("demo", flag.ContinueOnError)
	set.SetOutput(stderr)
	strategies := set.String("strategy", "RoundRobin,LeastLoad,Sticky,ApproximatePrefix,MarginalCost",
		"strategies to run one after the other, up to 8; the last is compared with the others")
	set.DurationVar(&o.duration, "duration", 64*time.Second, "how long the trace's arrivals of one run take, in real time")
	set.IntVar(&o.requests, "requests", 0, "at most so many requests of the trace in a run (0: no limit)")
	set.Float64Var(&o.speedUp, "speed-up", 6, "how much faster than their model the engines run")
	set.Float64Var(&o.rate, "rate", 1, "how much faster than recorded the trace is replayed, in the engines' time")
	set.Float64Var(&o.chats, "chats", 40, "chat sessions that begin in a minute of the engines' time")
	set.IntVar(&o.pods, "pods", 8, "simulated pods")
	set.StringVar(&o.profile, "profile", "8b-h100", "time model of the pods")
	set.IntVar(&o.kvTokens, "kv-tokens", 500_000, "size of each pod's KV cache, in tokens")
	set.IntVar(&o.interval, "stream-interval", 16, "tokens in an event of a streamed answer")
	set.StringVar(&o.out, "out", filepath.Join("out", "demo"), "directory for report.json and report.html")
	set.StringVar(&o.tokenizer, "tokenizer", "", "directory with a tokenizer.json.gz and tokenizer_config.json for engines and picker (default: the engines' own scheme, for which the picker asks them)")
	set.StringVar(&o.bin, "bin", "", "directory of the programs picker and vllmsim (default: this program's own)")
	set.BoolVar(&o.keep, "keep", false, "leave the last fleet running until Ctrl-C")
	set.IntVar(&o.prefillers, "prefillers", 0, "compare the pods without roles with the same pods, where so many prefill and the others decode, by MarginalCost (0: compare strategies)")
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	if set.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	for _, s := range strings.Split(*strategies, ",") {
		if s = strings.TrimSpace(s); s != "" {
			o.strategies = append(o.strategies, s)
		}
	}
	if o.bin == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("finding the picker and the simulator: %w", err)
		}
		o.bin = filepath.Dir(self)
	}
	return o, o.check()
}

// check refuses what cannot run.
func (o *options) check() error {
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(len(o.strategies) == 0 || len(o.strategies) > maxStrategies, "--strategy names %d strategies, want 1 to %d", len(o.strategies),
		maxStrategies)
	for _, s := range o.strategies {
		refuse(!slices.Contains(policy.Types(), policy.Type(s)), "--strategy: there is no strategy %q; want some of %v", s, policy.Types())
	}
	for i, s := range o.strategies {
		refuse(slices.Contains(o.strategies[:i], s), "--strategy names %s twice", s)
	}
	refuse(o.duration <= 0, "--duration is %v, want more than 0", o.duration)
	refuse(o.requests < 0, "--requests is %d, want at least 0", o.requests)
	refuse(!(o.speedUp >= 0.01 && o.speedUp <= 1000), "--speed-up is %v, want 0.01 to 1000", o.speedUp)
	refuse(!(o.rate >= 0.01 && o.rate <= 1000), "--rate is %v, want 0.01 to 1000", o.rate)
	refuse(!(o.chats >= 0 && o.chats <= 10_000), "--chats is %v, want 0 to 10000", o.chats)
	refuse(o.pods < 1 || o.pods > 256, "--pods is %d, want 1 to 256", o.pods)
	refuse(o.prefillers < 0 || o.prefillers > 0 && o.prefillers >= o.pods, "--prefillers is %d of %d pods, want fewer", o.prefillers, o.pods)
	refuse(o.keep && o.prefillers > 0, "--keep is not for --prefillers: no fleet is kept")
	refuse(o.kvTokens < 1<<17 || o.kvTokens > 1<<30, "--kv-tokens is %d, want %d (the longest prompt of the trace) to %d", o.kvTokens, 1<<17,
		1<<30)
	refuse(o.interval < 1, "--stream-interval is %d, want at least 1", o.interval)
	for _, program := range []string{"picker", "vllmsim"} {
		_, err := os.Stat(filepath.Join(o.bin, program))
		refuse(err != nil, "the program %s is not in %s: build it, or give --bin", program, o.bin)
	}
	return errors.Join(errs...)
}

// modelTime is the length of the trace's arrivals in a run, in the engines' time.
func (o *options) modelTime() time.Duration {
	return time.Duration(float64(o.duration) * o.speedUp)
}

// workload cuts the trace to what is replayed, with its arrivals in the engines' time.
func (o *options) workload(list []trace.Request) ([]trace.Request, []time.Duration) {
	arrivals := trace.Arrivals(list)
	n := 0
	for n < len(list) && (o.requests == 0 || n < o.requests) {
		arrivals[n] = time.Duration(float64(arrivals[n]) / o.rate)
		if arrivals[n] >= o.modelTime() {
			break
		}
		n++
	}
	return list[:n], arrivals[:n]
}

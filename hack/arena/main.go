//go:build unix

// Command arena runs routers, one after the other, in front of the same fleet of simulated engines, under the same load,
// and compares what clients see. See docs/comparison.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kvasir-dev/kvasir/hack/demo/fleet"
	"github.com/kvasir-dev/kvasir/internal/freeport"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// options are the flags.
type options struct {
	bin, source, out, model string
	routers, workloads      []string
	rates                   []float64
	seeds                   int
	first                   uint64
	duration                time.Duration
	bound, limit            time.Duration
	kill                    string
	pods, kvTokens          int
	profile                 string
	interval                int
	speed                   float64
	table                   bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "arena:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has been called
	}
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	set := flag.NewFlagSet("arena", flag.ContinueOnError)
	set.SetOutput(stderr)
	var names []string
	for i := range routers {
		names = append(names, routers[i].name)
	}
	list := set.String("routers", strings.Join(names, ","), "routers that take part")
	workloads := set.String("workloads", "prefixes", "workloads of the lab (docs/lab.md), or trace")
	rates := set.String("rates", "12,15,19,25", "requests per second, each in a run of its own")
	set.IntVar(&o.seeds, "seeds", 1, "number of seeds")
	set.Uint64Var(&o.first, "first-seed", 1, "first seed")
	set.DurationVar(&o.duration, "duration", time.Minute, "time in which requests arrive")
	set.DurationVar(&o.bound, "bound", 3*time.Second, "time within which a first token is in time")
	set.DurationVar(&o.limit, "limit", time.Minute, "time after which a client gives up; failed requests count with it")
	set.StringVar(&o.kill, "kill", "", "kill an engine or the router in the middle of the load: engine or router")
	set.IntVar(&o.pods, "pods", 6, "number of engines")
	set.IntVar(&o.kvTokens, "kv-tokens", 96_000, "size of an engine's cache, in tokens")
	set.StringVar(&o.profile, "profile", "70b-tp4-h100", "time model of the engines")
	set.Float64Var(&o.speed, "speed", 0.4, "speed of the engines; 1 is that of --profile")
	set.IntVar(&o.interval, "stream-interval", 8, "tokens in a streamed event")
	set.StringVar(&o.bin, "bin", "bin", "directory of the programs picker and vllmsim")
	set.StringVar(&o.source, "source", "hack/arena", "directory of install.sh")
	set.StringVar(&o.model, "tokenizer", "internal/tokens/tokenizer/testdata/gpt2", "directory of the model's tokenizer")
	set.StringVar(&o.out, "out", "out/arena", "directory for results.jsonl, which runs append to, and table.md")
	set.BoolVar(&o.table, "table", false, "run nothing; write the tables of the results that --out has")
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	if set.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	o.routers, o.workloads = strings.Split(*list, ","), strings.Split(*workloads, ",")
	return o, o.check(names, *rates)
}

// check checks the flags and reads the rates.
func (o *options) check(names []string, rates string) error {
	for _, name := range o.routers {
		if !slices.Contains(names, name) {
			return fmt.Errorf("unknown router %q (known: %s)", name, strings.Join(names, ", "))
		}
	}
	for _, text := range strings.Split(rates, ",") {
		rate, err := strconv.ParseFloat(text, 64)
		if err != nil || !(rate > 0 && rate < 10_000) {
			return fmt.Errorf("--rates: %q is not a rate above 0", text)
		}
		o.rates = append(o.rates, rate)
	}
	if o.kill != "" && o.kill != "engine" && o.kill != "router" {
		return fmt.Errorf("--kill: %q is neither engine nor router", o.kill)
	}
	if o.seeds < 1 || o.duration <= 0 || o.pods < 1 || o.limit <= 0 || !(o.speed > 0) {
		return errors.New("--seeds, --duration, --pods, --limit and --speed must be above 0")
	}
	return nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if o.table {
		return o.publish(stdout)
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("making the directory for results: %w", err)
	}
	words, err := o.words()
	if err != nil {
		return err
	}
	teams := o.teams()
	for seed := o.first; seed < o.first+uint64(o.seeds); seed++ {
		for _, workload := range o.workloads {
			for _, rate := range o.rates {
				list, err := requests(workload, int(rate*o.duration.Seconds()), seed, rate, words, o.kvTokens)
				if err != nil {
					return err
				}
				for _, t := range rotated(teams, int(seed)) {
					out, err := o.compete(ctx, &t, list, cell{workload, rate, o.kill}, seed)
					if err != nil {
						return err
					}
					_, _ = fmt.Fprintf(stdout, "%s, seed %d: %s", out.Cell, seed, row([]result{*out}, out.Router, out.Router))
				}
			}
		}
	}
	return o.publish(stdout)
}

// team is a router and its program, or why it cannot take part.
type team struct {
	router  *router
	program program
	missing string
}

// teams are the routers that were asked for.
func (o *options) teams() []team {
	out := make([]team, len(o.routers))
	for i, name := range o.routers {
		t := team{router: &routers[slices.IndexFunc(routers, func(r router) bool { return r.name == name })]}
		var err error
		if t.program, err = t.router.install(o.source); err != nil {
			t.missing = err.Error()
		}
		out[i] = t
	}
	return out
}

// compete runs one router and keeps the result. A router that does not run is a result, too.
func (o *options) compete(ctx context.Context, t *team, list []request, c cell, seed uint64) (*result, error) {
	out := &result{Router: t.router.name, Version: t.program.version, Cell: c, Seed: seed, Missing: t.missing,
		Started: time.Now().UTC().Truncate(time.Second)}
	if out.Missing == "" {
		f, err := o.play(ctx, t.router, t.program, list)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			out.Missing = lastLine(err.Error())
		default:
			out.Figures = *f
		}
	}
	return out, o.keep(out)
}

// words are the vocabulary of prompts.
func (o *options) words() ([]string, error) {
	dir, err := os.MkdirTemp("", "kvasir-arena-")
	if err != nil {
		return nil, fmt.Errorf("making a directory for the model: %w", err)
	}
	defer os.RemoveAll(dir) // it is in the system's directory for such
	if err := fleet.WriteModel(o.model, dir); err != nil {
		return nil, err
	}
	t, err := tokenizer.Load(dir)
	if err != nil {
		return nil, fmt.Errorf("loading the tokenizer of %s: %w", o.model, err)
	}
	return vocabulary(t)
}

// rotated is a list that begins elsewhere for each seed, so that no router always runs first.
func rotated[T any](list []T, by int) []T {
	by %= len(list)
	return slices.Concat(list[by:], list[:by])
}

// file is where results are kept.
func (o *options) file() string { return filepath.Join(o.out, "results.jsonl") }

func (o *options) keep(r *result) error {
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encoding a result: %w", err)
	}
	f, err := os.OpenFile(o.file(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("keeping a result: %w", err)
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// publish writes the tables of all results that the directory has, those of earlier runs included.
func (o *options) publish(stdout io.Writer) error {
	text, err := os.ReadFile(o.file())
	if err != nil {
		return fmt.Errorf("reading the results: %w", err)
	}
	var all []result
	for line := range strings.Lines(string(text)) {
		var r result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return fmt.Errorf("reading the results: %w", err)
		}
		all = append(all, r)
	}
	table := tables(all, routers[0].name) + verdict(all, routers[0].name)
	if _, err := io.WriteString(stdout, "\n"+table); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, "table.md"), []byte(table), 0o644)
}

// play runs one router in front of a fresh fleet.
func (o *options) play(ctx context.Context, r *router, p program, list []request) (f *figures, err error) {
	dir, err := os.MkdirTemp("", "kvasir-arena-")
	if err != nil {
		return nil, fmt.Errorf("making a directory for the fleet: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	engines, err := fleet.StartPods(ctx, fleet.Options{
		Bin: o.bin, Dir: dir, Pods: o.pods, Strategy: r.strategy, Profile: o.profile, Blocks: o.kvTokens / fleet.BlockTokens,
		SpeedUp: o.speed, StreamInterval: o.interval, Tokenizer: o.model,
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		_, _, stopErr := engines.Stop()
		err = errors.Join(err, stopErr)
	}()
	port, err := freeport.Consecutive("127.0.0.1", 3)
	if err != nil {
		return nil, err
	}
	at := &site{bin: o.bin, dir: dir, fleet: engines, port: port, others: []int{port + 1, port + 2}}
	c, err := r.command(p, at)
	if err != nil {
		return nil, err
	}
	m := &match{options: o, name: r.name, command: c, url: "http://" + fleet.Local(port), fleet: engines}
	if r.ready != nil {
		m.ready = func(ctx context.Context) bool { return r.ready(ctx, at) }
	}
	return m.play(ctx, list)
}

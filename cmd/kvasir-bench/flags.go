package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/bench"
	"github.com/kvasir-dev/kvasir/internal/cli/flags"
	"github.com/kvasir-dev/kvasir/internal/version"
)

// options are the flags.
type options struct {
	engines       []bench.Engine
	before, after string // URLs
	picker        string
	modelDir      string
	baseline      string
	load          bench.Load
	command       string
	pairs         int
	goals         bench.Goals
	seed          uint64
	key           string
	out           string
}

var described = flags.Program{
	Name: "kvasir-bench",
	About: "Kvasir-bench compares round robin with Kvasir on your own engines. It starts a picker in front of them, sends chats in turns with\n" +
		"both strategies, reads the engines' own counters around each turn, and writes a report. Use engines that serve nothing else.\n" +
		"Documentation: docs/measure-your-gpus.md",
	Example: "kvasir-bench --engines http://gpu-1:8000,http://gpu-2:8000 --model NAME",
	Groups: []flags.Group{
		{Title: "What is measured", Prefixes: []string{"engines", "model", "picker", "baseline", "before", "after", "key-file"}},
		{Title: "The load of a turn", Prefixes: []string{"length", "sessions", "apps", "system-words", "answer", "think", "seed", "command"}},
		{Title: "The comparison", Prefixes: []string{"pairs", "goal-", "out"}},
	},
}

// parseFlags reads the command line. It writes help to stdout, and what is wrong to stderr.
func parseFlags(args []string, stdout, stderr io.Writer) (*options, error) {
	o := &options{}
	var engines, keyFile string
	f := flag.NewFlagSet("kvasir-bench", flag.ContinueOnError)
	f.Bool("version", false, version.Usage)
	f.StringVar(&engines, "engines", "", "the engines, `http://HOST:PORT,...`; their counters are read, and the picker serves them. ?events=PORT&replay=PORT names the ports of KV events that differ from vLLM's")
	f.StringVar(&o.load.Model, "model", "", "`name` of the model in requests")
	f.StringVar(&o.modelDir, "model-dir", "", "`directory` with the model's tokenizer and configuration, for the picker's own tokens; without it the picker asks the engines")
	f.StringVar(&o.picker, "picker", "", "the `program` picker (default: beside this program, or in PATH)")
	f.StringVar(&o.baseline, "baseline", "RoundRobin", "`strategy` of the turns before: RoundRobin, LeastLoad, Rendezvous or another of docs/routing.md")
	f.StringVar(&o.before, "before", "", "`URL` that takes the requests of the turns before, such as a Service; no picker is started, and --after is needed, too")
	f.StringVar(&o.after, "after", "", "`URL` that takes the requests of the turns after, such as Kvasir's gateway")
	f.StringVar(&keyFile, "key-file", "", "`file` with the API key that requests carry")
	f.DurationVar(&o.load.Length, "length", 2*time.Minute, "how long sessions begin in a turn")
	f.Float64Var(&o.load.Sessions, "sessions", 60, "chat sessions that begin in a minute, of 3 to 9 turns each")
	f.IntVar(&o.load.Apps, "apps", 8, "applications; each has a system prompt that its sessions share")
	f.IntVar(&o.load.SystemWords, "system-words", 1800, "words of a system prompt")
	f.IntVar(&o.load.MaxAnswer, "answer", 350, "most tokens of an answer; answers have a quarter of it to all of it")
	f.DurationVar(&o.load.Think, "think", 15*time.Second, "mean time between an answer and the next turn of its session")
	f.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()>>20)&0xffffff, "seed of the texts; another one each time, so that caches hold nothing of them")
	f.StringVar(&o.command, "command", "", "`command` that sends the load of a turn in place of the chats, as in 'vllm bench serve --base-url {url} --model {model} --seed {seed}'; "+
		"only the engines' counters are compared then, and its output is kept")
	f.IntVar(&o.pairs, "pairs", 2, "turns of each way; they alternate")
	f.DurationVar(&o.goals.TTFT, "goal-ttft", 2*time.Second, "most time to the first token of a good request")
	f.DurationVar(&o.goals.PerToken, "goal-per-token", 100*time.Millisecond, "most time per output token of a good request")
	f.StringVar(&o.out, "out", filepath.Join("out", "bench"), "`directory` for the report")
	if err := flags.Parse(f, &described, args, stdout, stderr); err != nil {
		return nil, err
	}
	err := o.check(f.Args(), engines, keyFile)
	if err == nil {
		err = o.prepare(keyFile)
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "kvasir-bench:", err)
	}
	return o, err
}

// check refuses what contradicts itself or cannot be run.
func (o *options) check(rest []string, engines, keyFile string) (err error) {
	direct := o.before != "" || o.after != ""
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q; separate engines by commas, without spaces", rest[0])
	case engines == "":
		return errors.New("want --engines http://HOST:PORT,... --model NAME")
	case o.load.Model == "":
		return errors.New("--engines needs --model NAME, the model's name in requests; GET /v1/models of an engine lists it")
	case direct && (o.before == "" || o.after == ""):
		return errors.New("--before and --after need each other")
	case direct && (o.picker != "" || o.modelDir != "" || o.baseline != "RoundRobin"):
		return errors.New("--before and --after exclude --picker, --model-dir and --baseline: no picker is started")
	case direct && o.before == o.after:
		return errors.New("--before and --after are the same address")
	case o.baseline == kvasirStrategy:
		return fmt.Errorf("--baseline %s is what the turns after use", kvasirStrategy)
	case o.pairs < 1 || o.pairs > 100:
		return fmt.Errorf("--pairs is %d, want 1 to 100", o.pairs)
	case o.goals.TTFT <= 0 || o.goals.PerToken <= 0:
		return errors.New("--goal-ttft and --goal-per-token must be more than 0")
	case o.command != "" && keyFile != "":
		return errors.New("--key-file is for the chats; give --command its own key")
	case o.command != "" && !strings.Contains(o.command, "{url}"):
		return errors.New("--command lacks {url}, which stands for the address of each turn")
	}
	for _, address := range []string{o.before, o.after} {
		if u, err := url.Parse(address); address != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
			return fmt.Errorf("%q is no URL such as http://HOST:PORT", address)
		}
	}
	if o.engines, err = bench.ParseEngines(engines); err != nil {
		return fmt.Errorf("--engines: %w", err)
	}
	return o.load.Check()
}

// prepare finds and makes what the measurement needs.
func (o *options) prepare(keyFile string) error {
	if keyFile != "" {
		text, err := os.ReadFile(keyFile)
		if err != nil {
			return fmt.Errorf("reading --key-file: %w", err)
		}
		if o.key = strings.TrimSpace(string(text)); o.key == "" {
			return fmt.Errorf("--key-file %s is empty", keyFile)
		}
	}
	if o.modelDir != "" {
		if _, err := os.Stat(filepath.Join(o.modelDir, "tokenizer.json")); err != nil {
			return fmt.Errorf("--model-dir: %w", err)
		}
	}
	if o.before == "" && o.picker == "" {
		var err error
		if o.picker, err = findPicker(); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil { // all users can read reports
		return fmt.Errorf("making --out: %w", err)
	}
	return nil
}

// findPicker looks beside this program, and in PATH.
func findPicker() (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "picker")
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	found, err := exec.LookPath("picker")
	if err != nil {
		return "", errors.New("the program picker is neither beside this program nor in PATH; name it with --picker")
	}
	return found, nil
}

// setup says what is run, for the report.
func (o *options) setup(before, after *bench.Way) [][2]string {
	var engines []string
	for i := range o.engines {
		engines = append(engines, o.engines[i].URL())
	}
	all := [][2]string{
		{"Engines", strings.Join(engines, ", ")},
		{"Model", o.load.Model},
		{"Before", before.Name + ", " + before.URL},
		{"After", after.Name + ", " + after.URL},
		{"Turns", fmt.Sprintf("%d of each way, alternating", o.pairs)},
	}
	if o.command != "" {
		return append(all, [2]string{"Load", o.command})
	}
	return append(all, [][2]string{
		{"Load", fmt.Sprintf("%g sessions a minute for %v, of %d applications with system prompts of %d words; answers of up to %d tokens; %v between turns of a session",
			o.load.Sessions, o.load.Length, o.load.Apps, o.load.SystemWords, o.load.MaxAnswer, o.load.Think)},
		{"Goals", fmt.Sprintf("first token within %v, %v per output token", o.goals.TTFT, o.goals.PerToken)},
		{"Seed", fmt.Sprint(o.seed)},
		{"Version", version.Get().String()},
	}...)
}

package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/cli/flags"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
	"github.com/kvasir-dev/kvasir/internal/version"
)

// list is a flag that can be repeated.
type list []string

// String implements flag.Value.
func (l *list) String() string { return strings.Join(*l, ",") }

// Set implements flag.Value.
func (l *list) Set(v string) error {
	if v == "" {
		return fmt.Errorf("must not be empty")
	}
	*l = append(*l, v)
	return nil
}

// micros is a duration flag in microseconds with fractions, kept in seconds.
type micros float64

// String implements flag.Value.
func (m *micros) String() string { return strconv.FormatFloat(float64(*m)*1e6, 'g', -1, 64) }

// Set implements flag.Value.
func (m *micros) Set(v string) error {
	f, err := strconv.ParseFloat(v, 64)
	if err != nil {
		return fmt.Errorf("not a number of microseconds: %w", err)
	}
	if f < 0 {
		return fmt.Errorf("must not be negative")
	}
	*m = micros(f / 1e6)
	return nil
}

// options are the flags that are not fields of the configuration.
type options struct {
	models, loras, keys           list
	modelDir, release             string
	eventsConfig                  string
	topic                         string
	eventsPort, replayPort, steps int
	digests                       bool
	shutdown                      float64
	linear, attention, kvRead     micros
	transferConfig                string
	transferBase                  time.Duration
	transferToken                 micros
	logLevel, logFormat           string
}

// described is what the help says besides the flags.
var described = flags.Program{
	Name: "vllmsim",
	About: "Vllmsim is a stand-in vLLM engine: its HTTP API, KV events, replay and metrics over real sockets, without a GPU.\n" +
		"Flags have vLLM's names where vLLM has them. Documentation: docs/simulator.md",
	Example: "vllmsim --served-model-name MODEL --port 8000 --kv-events-port 5557 --kv-replay-port 5558",
	Groups: []flags.Group{
		{Title: "What is served", Prefixes: []string{"host", "port", "served-model-name", "model", "lora", "api-key", "release"}},
		{Title: "The cache", Prefixes: []string{"num-gpu-blocks", "block-size", "no-enable-prefix-caching", "max-model-len", "seed"}},
		{Title: "KV events", Prefixes: []string{"kv-", "buffer-steps", "data-parallel-"}},
		{Title: "Answers", Prefixes: []string{"default-output", "stream-interval", "enable-", "no-"}},
		{Title: "Time", Prefixes: []string{"profile", "time-", "transfer-", "speed-up", "max-num-"}},
		{Title: "Start, end and logs", Prefixes: []string{"startup-delay", "shutdown-timeout", "log-", "version"}},
	},
}

// parseFlags reads the command line into a configuration with a log. It writes help to stdout, and what is wrong to stderr.
func parseFlags(args []string, stdout, stderr io.Writer) (vllmsim.Config, error) {
	var cfg vllmsim.Config
	var o options
	set := flag.NewFlagSet("vllmsim", flag.ContinueOnError)
	set.Bool("version", false, version.Usage)
	define(set, &cfg, &o)
	if err := flags.Parse(set, &described, args, stdout, stderr); err != nil {
		return cfg, err
	}
	err := o.configure(set, &cfg)
	if err != nil {
		fmt.Fprintln(stderr, "vllmsim:", err)
	}
	cfg.Log = logging.New(stderr, logging.Levels[o.logLevel], o.logFormat)
	return cfg, err
}

// configure checks the flags, and fills in what is not a flag's own field of the configuration.
func (o *options) configure(set *flag.FlagSet, cfg *vllmsim.Config) (err error) {
	_, known := logging.Levels[o.logLevel]
	switch {
	case set.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", set.Arg(0))
	case !known:
		return fmt.Errorf("--log-level %q: want error, warn, info, debug or trace", o.logLevel)
	case o.logFormat != logging.Text && o.logFormat != logging.JSON:
		return fmt.Errorf("--log-format %q: want text or json", o.logFormat)
	}
	cfg.ServedModelNames, cfg.LoRAs, cfg.APIKeys = o.models, o.loras, o.keys
	cfg.Time.Linear, cfg.Time.Attention, cfg.Time.KVRead = float64(o.linear), float64(o.attention), float64(o.kvRead)
	cfg.ShutdownTimeout = time.Duration(o.shutdown * float64(time.Second))
	if cfg.Release, err = vllmsim.ParseRelease(o.release); err != nil {
		return err
	}
	if o.transferConfig != "" {
		if cfg.Transfer, err = vllmsim.ParseTransfer(o.transferConfig); err != nil {
			return err
		}
		cfg.Transfer.Base, cfg.Transfer.Token = o.transferBase, time.Duration(float64(o.transferToken)*float64(time.Second))
	}
	if o.modelDir != "" {
		if err := cfg.LoadModel(o.modelDir); err != nil {
			return err
		}
	}
	return events(cfg, o)
}

func define(set *flag.FlagSet, cfg *vllmsim.Config, o *options) {
	set.StringVar(&cfg.Host, "host", "127.0.0.1", "address to bind")
	set.IntVar(&cfg.Port, "port", 8000, "port of HTTP; 0 takes a free one")
	set.Var(&o.models, "served-model-name", "name of the base model (default "+vllmsim.DefaultModel+
		"); can be repeated, the first is reported")
	set.Var(&o.models, "model", "the same as --served-model-name; vLLM takes the name from here where no other is given")
	set.Var(&o.loras, "lora", "name of a loaded LoRA adapter; can be repeated")
	set.BoolVar(&cfg.Pooling, "pooling", false, "the model generates nothing: only the routes of embeddings, scores and ranks exist")
	set.BoolVar(&cfg.RuntimeLoRA, "lora-updates", false, "open /v1/load_lora_adapter and /v1/unload_lora_adapter, "+
		"as VLLM_ALLOW_RUNTIME_LORA_UPDATING does")
	set.Var(&o.keys, "api-key", "API key for /v1; can be repeated")
	set.StringVar(&o.release, "release", vllmsim.NewestRelease.String(), "release of vLLM to simulate: its answers, events and routes")
	set.StringVar(&o.modelDir, "model-dir", "", "directory with a model's tokenizer.json and tokenizer_config.json, "+
		"for its own tokens and chat template; default is a built-in scheme without a vocabulary, which pickers cannot reproduce")

	set.StringVar(&cfg.Profile, "profile", vllmsim.DefaultProfile, "time model and cache size: "+strings.Join(enginemodel.ProfileNames(),
		", "))
	set.IntVar(&cfg.NumBlocks, "num-gpu-blocks", 0, "blocks in the cache; 0 is the profile's")
	set.IntVar(&cfg.NumBlocks, "num-gpu-blocks-override", 0, "the same as --num-gpu-blocks, in vLLM's spelling")
	set.IntVar(&cfg.BlockSize, "block-size", enginemodel.DefaultBlockSize, "tokens in a block")
	set.IntVar(&cfg.MaxModelLen, "max-model-len", 0, "maximum tokens of prompt and output together; 0 is the size of the cache")
	set.IntVar(&cfg.MaxBatchedTokens, "max-num-batched-tokens", enginemodel.DefaultMaxBatchedTokens, "tokens in a step")
	set.IntVar(&cfg.MaxSeqs, "max-num-seqs", enginemodel.DefaultMaxSeqs, "requests that run at a time")
	set.BoolVar(&cfg.NoPrefixCaching, "no-enable-prefix-caching", false, "disable the prefix cache")
	set.DurationVar(&cfg.Time.Base, "time-base", 0, "least time of a step, without overhead; 0 is the profile's")
	set.DurationVar(&cfg.Time.Overhead, "time-overhead", 0, "additional time of each step; 0 is the profile's")
	set.Var(&o.linear, "time-linear", "microseconds for each token of a step; 0 is the profile's")
	set.Var(&o.attention, "time-attention", "microseconds for each pair of tokens in prefill; 0 is the profile's")
	set.Var(&o.kvRead, "time-kv-read", "microseconds for each cached token of a decoding request; 0 is the profile's")
	set.Float64Var(&cfg.SpeedUp, "speed-up", 1, "divides all durations")
	set.IntVar(&cfg.StreamInterval, "stream-interval", 1, "tokens in a streamed chunk after the first")
	set.IntVar(&cfg.DefaultOutput, "default-output", vllmsim.DefaultOutput, "tokens in a chat answer whose request sets no maximum")
	set.Uint64Var(&cfg.Seed, "seed", 0, "seed of the block hashes; 0 draws one")
	set.BoolVar(&cfg.NoPromptTokensDetails, "no-prompt-tokens-details", false, "leave cached_tokens out of the usage")
	set.Bool("enable-prompt-tokens-details", true, "the default here; vLLM needs the flag for cached_tokens in the usage")
	set.BoolVar(&cfg.NoScaleOut, "no-enable-scale-out", false, "refuse requests to render, as releases from 0.30 on do by default")
	set.Bool("enable-scale-out", true, "the default here; vLLM needs the flag from 0.30 on for requests to render")
	set.IntVar(&cfg.MaxQueuedRequests, "max-num-queued-reqs", 0, "requests inside the engine before more are refused with 503; 0 is no bound")

	set.StringVar(&o.eventsConfig, "kv-events-config", "", "configuration of KV events as JSON, in vLLM's format")
	set.IntVar(&o.eventsPort, "kv-events-port", 0, "publish KV events on this port of --host, in place of --kv-events-config")
	set.IntVar(&o.replayPort, "kv-replay-port", 0, "serve replays on this port of --host, with --kv-events-port")
	set.StringVar(&o.topic, "kv-events-topic", "", "topic of KV events, with --kv-events-port")
	set.IntVar(&o.steps, "buffer-steps", vllmsim.DefaultBufferSteps, "batches kept for replay, with --kv-events-port")
	set.BoolVar(&o.digests, "kv-events-digests", false, "announce hashes as 32 bytes rather than integers")
	set.IntVar(&cfg.DataParallelSize, "data-parallel-size", 0, "number of ranks; requests that name another rank are "+
		"refused; 0 is this rank and one")
	set.IntVar(&cfg.DataParallelRank, "data-parallel-rank", 0, "rank in events and metrics, added to the ports of KV events")

	set.StringVar(&o.transferConfig, "kv-transfer-config", "", "connector for blocks of other engines as JSON, in vLLM's format: "+
		"kv_connector NixlConnector, kv_load_failure_policy, and kv_lease_duration in kv_connector_extra_config")
	set.DurationVar(&o.transferBase, "transfer-base", vllmsim.DefaultTransferBase, "time of a transfer of blocks from another engine")
	o.transferToken = micros(vllmsim.DefaultTransferToken.Seconds())
	set.Var(&o.transferToken, "transfer-token", "microseconds that each token adds to a transfer")

	set.Float64Var(&o.shutdown, "shutdown-timeout", 0, "seconds that running requests can continue after SIGTERM; 0 aborts them")
	set.DurationVar(&cfg.StartupDelay, "startup-delay", 0, "time before the server listens")
	set.StringVar(&o.logLevel, "log-level", "info", "error, warn, info, debug (a line per request) or trace")
	set.StringVar(&o.logFormat, "log-format", logging.Text, "text or json")
}

// events configures where events are sent: nowhere unless a flag is set.
func events(cfg *vllmsim.Config, o *options) error {
	port := func(n int) string { return net.JoinHostPort(cfg.Host, strconv.Itoa(n)) }
	switch {
	case o.eventsConfig != "" && o.eventsPort != 0:
		return fmt.Errorf("--kv-events-config and --kv-events-port exclude each other")
	case o.eventsConfig != "":
		var err error
		if cfg.Events, err = vllmsim.ParseEventsConfig(o.eventsConfig); err != nil {
			return err
		}
	case o.eventsPort != 0:
		cfg.Events = vllmsim.EventsConfig{
			Endpoint: port(o.eventsPort), Topic: o.topic, BufferSteps: o.steps, NoReplay: o.replayPort == 0,
		}
		if o.replayPort != 0 {
			cfg.Events.ReplayEndpoint = port(o.replayPort)
		}
	default:
		cfg.Events.Disabled = true
	}
	cfg.Events.DigestHashes = o.digests
	return nil
}

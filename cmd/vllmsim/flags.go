package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/enginemodel"
	"github.com/kvasir-dev/kvasir/internal/tokenizer"
	"github.com/kvasir-dev/kvasir/internal/vllmsim"
)

// list is a flag that may be repeated.
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
	tokenizer                     string
	eventsConfig, layout          string
	topic                         string
	eventsPort, replayPort, steps int
	replayTopic, digests          bool
	shutdown                      float64
	linear, attention, kvRead     micros
	verbosity                     int
}

// parseFlags reads the command line into a configuration and a verbosity.
func parseFlags(args []string, stderr io.Writer) (vllmsim.Config, int, error) {
	var cfg vllmsim.Config
	var o options
	set := flag.NewFlagSet("vllmsim", flag.ContinueOnError)
	set.SetOutput(stderr)
	define(set, &cfg, &o)
	if err := set.Parse(args); err != nil {
		return cfg, 0, err
	}
	if set.NArg() > 0 {
		return cfg, 0, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	cfg.ServedModelNames, cfg.LoRAs, cfg.APIKeys = o.models, o.loras, o.keys
	cfg.Time.Linear, cfg.Time.Attention, cfg.Time.KVRead = float64(o.linear), float64(o.attention), float64(o.kvRead)
	cfg.ShutdownTimeout = time.Duration(o.shutdown * float64(time.Second))
	if o.tokenizer != "" {
		t, err := tokenizer.Load(o.tokenizer)
		if err != nil {
			return cfg, 0, fmt.Errorf("loading the tokenizer of %s: %w", o.tokenizer, err)
		}
		cfg.Text = t
	}
	err := events(&cfg, &o)
	return cfg, o.verbosity, err
}

func define(set *flag.FlagSet, cfg *vllmsim.Config, o *options) {
	set.StringVar(&cfg.Host, "host", "127.0.0.1", "address to bind")
	set.IntVar(&cfg.Port, "port", 8000, "port of HTTP; 0 takes a free one")
	set.Var(&o.models, "served-model-name", "name of the base model (default "+vllmsim.DefaultModel+"); may be repeated, the first is reported")
	set.Var(&o.loras, "lora", "name of a loaded LoRA adapter; may be repeated")
	set.Var(&o.keys, "api-key", "key that guards /v1; may be repeated")
	set.StringVar(&o.tokenizer, "tokenizer", "", "directory with a tokenizer.json; default is a built-in scheme without a vocabulary")

	set.StringVar(&cfg.Profile, "profile", vllmsim.DefaultProfile, "time model and cache size: "+strings.Join(enginemodel.ProfileNames(), ", "))
	set.IntVar(&cfg.NumBlocks, "num-gpu-blocks", 0, "blocks in the cache; 0 is the profile's")
	set.IntVar(&cfg.NumBlocks, "num-gpu-blocks-override", 0, "the same")
	set.IntVar(&cfg.BlockSize, "block-size", enginemodel.DefaultBlockSize, "tokens in a block")
	set.IntVar(&cfg.MaxModelLen, "max-model-len", 0, "tokens of prompt and output together; 0 is what the cache holds")
	set.IntVar(&cfg.MaxBatchedTokens, "max-num-batched-tokens", enginemodel.DefaultMaxBatchedTokens, "tokens in a step")
	set.IntVar(&cfg.MaxSeqs, "max-num-seqs", enginemodel.DefaultMaxSeqs, "requests that run at a time")
	set.BoolVar(&cfg.NoPrefixCaching, "no-enable-prefix-caching", false, "turn the prefix cache off")
	set.DurationVar(&cfg.Time.Base, "time-base", 0, "least time of a step, without overhead; 0 is the profile's")
	set.DurationVar(&cfg.Time.Overhead, "time-overhead", 0, "time that each step takes besides; 0 is the profile's")
	set.Var(&o.linear, "time-linear", "microseconds for each token of a step; 0 is the profile's")
	set.Var(&o.attention, "time-attention", "microseconds for each pair of tokens in prefill; 0 is the profile's")
	set.Var(&o.kvRead, "time-kv-read", "microseconds for each cached token of a decoding request; 0 is the profile's")
	set.Float64Var(&cfg.SpeedUp, "speed-up", 1, "divides all durations")
	set.IntVar(&cfg.StreamInterval, "stream-interval", 1, "tokens in a streamed chunk after the first")
	set.IntVar(&cfg.DefaultOutput, "default-output", vllmsim.DefaultOutput, "tokens in a chat answer whose request sets no maximum")
	set.Uint64Var(&cfg.Seed, "seed", 0, "seed of the block hashes; 0 draws one")
	set.BoolVar(&cfg.NoPromptTokensDetails, "no-prompt-tokens-details", false, "leave cached_tokens out of the usage")
	set.Bool("enable-prompt-tokens-details", true, "the contrary, as vLLM spells it; it is the default here")

	set.StringVar(&o.eventsConfig, "kv-events-config", "", "KV events as JSON, as vLLM takes it")
	set.IntVar(&o.eventsPort, "kv-events-port", 0, "publish KV events on this port of --host, in place of --kv-events-config")
	set.IntVar(&o.replayPort, "kv-replay-port", 0, "serve replays on this port of --host, with --kv-events-port")
	set.StringVar(&o.topic, "kv-events-topic", "", "topic of KV events, with --kv-events-port")
	set.IntVar(&o.steps, "buffer-steps", vllmsim.DefaultBufferSteps, "batches kept for replay, with --kv-events-port")
	set.StringVar(&o.layout, "kv-events-layout", vllmsim.LayoutDefault.String(), "release whose encoding is used: "+strings.Join(vllmsim.LayoutNames(), ", "))
	set.BoolVar(&o.digests, "kv-events-digests", false, "announce hashes as 32 bytes rather than integers")
	set.BoolVar(&o.replayTopic, "replay-topic-frame", false, "answer replays with a topic frame, as from v0.26")
	set.IntVar(&cfg.DataParallelRank, "data-parallel-rank", 0, "rank in events and metrics, added to the ports of KV events")

	set.Float64Var(&o.shutdown, "shutdown-timeout", 0, "seconds that running requests get on SIGTERM; 0 aborts them")
	set.DurationVar(&cfg.StartupDelay, "startup-delay", 0, "time before anything listens")
	set.IntVar(&o.verbosity, "v", 0, "verbosity of the log")
}

// events settles where events go: nowhere unless a flag says so.
func events(cfg *vllmsim.Config, o *options) error {
	layout, err := vllmsim.ParseLayout(o.layout)
	if err != nil {
		return err
	}
	port := func(n int) string { return net.JoinHostPort(cfg.Host, strconv.Itoa(n)) }
	switch {
	case o.eventsConfig != "" && o.eventsPort != 0:
		return fmt.Errorf("--kv-events-config and --kv-events-port exclude each other")
	case o.eventsConfig != "":
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
	cfg.Events.Layout, cfg.Events.DigestHashes, cfg.Events.ReplayTopicFrame = layout, o.digests, o.replayTopic
	return nil
}

package vllmsim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// Defaults of Config.
const (
	DefaultModel       = "sim-model"
	DefaultProfile     = "8b-h100"
	DefaultBufferSteps = 10_000
	DefaultHWM         = 100_000
	// DefaultOutput is the length of a chat answer, in tokens, when the request does not bound it.
	DefaultOutput = 128
	// DefaultMaxBody bounds a request's body, in bytes.
	DefaultMaxBody = 64 << 20
)

// Config describes an engine. The zero value is an 8B model on one H100 in real time on free ports of 127.0.0.1, with
// events and replay on.
//
// It has many fields because each stands for a flag of vLLM or of the simulator.
type Config struct {
	// Host is the address to bind, 127.0.0.1 if empty; Port 0 takes a free one.
	Host string
	Port int
	// ServedModelNames are the names of the base model. The first is reported.
	ServedModelNames []string
	// LoRAs are the names of loaded adapters. RuntimeLoRA opens the routes that load and unload others, as
	// VLLM_ALLOW_RUNTIME_LORA_UPDATING does.
	LoRAs       []string
	RuntimeLoRA bool
	// Pooling: the model generates nothing, as with --runner pooling: the routes that generate do not exist. Without it, those that
	// pool exist all the same.
	Pooling bool
	// APIKeys guard /v1, and /v2 and /inference from 0.21 on, if there are any.
	APIKeys []string
	// Release is the release of vLLM that is simulated; 0 is NewestRelease.
	Release Release
	// ModelRoot is the path or name that the engine was given for its model; the first of ServedModelNames if empty.
	ModelRoot string

	// Profile names the time model and the size of the cache; Time and NumBlocks override it where not zero.
	Profile   string
	Time      enginemodel.TimeModel
	NumBlocks int
	BlockSize int
	// MaxModelLen, MaxBatchedTokens and MaxSeqs as in enginemodel.Config.
	MaxModelLen      int
	MaxBatchedTokens int
	MaxSeqs          int
	NoPrefixCaching  bool
	// SpeedUp divides all durations of the model; 0 is 1.
	SpeedUp float64
	// StreamInterval is the number of tokens in a streamed chunk after the first; 0 is 1.
	StreamInterval int
	// DefaultOutput is the length of chat answers without a bound, in tokens; 0 is DefaultOutput.
	DefaultOutput int
	// MaxBody bounds a request's body, in bytes; 0 is DefaultMaxBody.
	MaxBody int64
	// Seed makes block hashes differ between processes; 0 draws one.
	Seed uint64

	// Vocabulary is the number of token ids that the model knows; others are refused. 0 knows all.
	Vocabulary uint32
	// Text tokenizes; nil is the built-in Words.
	Text Text
	// Chat makes the ids of the prompt of a chat, or of a request of another API that stands for one, from its body; nil renders
	// the built-in template. Its errors are the client's.
	Chat func(route openai.Route, body []byte) ([]uint32, error)
	// NoPromptTokensDetails leaves cached_tokens out of the usage. NoScaleOut leaves out --enable-scale-out, without which
	// releases from 0.30 on do not render requests. Both flags are off in vLLM and on here, as Kvasir documents them.
	NoPromptTokensDetails bool
	NoScaleOut            bool
	// MaxQueuedRequests bounds the requests inside the engine, running ones included; 0 is no bound.
	MaxQueuedRequests int

	Events EventsConfig
	// Transfer is the connector for blocks of other engines.
	Transfer Transfer
	// DataParallelRank is reported in events and metrics and added to the ports of Events.
	DataParallelRank int
	// DataParallelSize is the number of ranks; 0 is DataParallelRank and one. Requests that name another rank by the header
	// are refused. The other ranks are other processes here, while those of vLLM can share an address.
	DataParallelSize int

	// ShutdownTimeout is what Shutdown waits for running requests; 0 aborts them at once.
	ShutdownTimeout time.Duration
	// StartupDelay passes before anything listens.
	StartupDelay time.Duration

	Log logr.Logger
}

// EventsConfig is where KV events are sent. The zero value binds free ports of Config.Host.
type EventsConfig struct {
	Disabled bool
	// Endpoint is where the publisher binds (host:port, tcp://*:port, tcp://host:port with Bind), or connects to.
	// Empty binds a free port.
	Endpoint string
	// Connect makes the publisher dial Endpoint and redial it.
	Connect bool
	// ReplayEndpoint is bound for replays; empty binds a free port, NoReplay none.
	ReplayEndpoint string
	NoReplay       bool
	// Topic is the first frame of every message.
	Topic string
	// BufferSteps is the number of batches kept for replay, HWM the most queued for a subscriber.
	BufferSteps int
	HWM         int
	// DigestHashes sends 32-byte digests rather than integers (v0.10.2 and later).
	DigestHashes bool
	// Tamper, if set, is between the publisher and its socket: it receives every message and sends what it likes, to lose,
	// repeat or reorder messages. Replays are not tampered with. Called from one goroutine at a time.
	Tamper func(seq uint64, payload []byte, send func(seq uint64, payload []byte))
}

// ParseEventsConfig reads the JSON of vLLM's --kv-events-config, and applies its rule: a publisher whose endpoint
// contains * or :: binds, any other connects.
func ParseEventsConfig(text string) (EventsConfig, error) {
	in := struct {
		Enable         bool    `json:"enable_kv_cache_events"`
		Publisher      *string `json:"publisher"`
		Endpoint       string  `json:"endpoint"`
		ReplayEndpoint *string `json:"replay_endpoint"`
		BufferSteps    int     `json:"buffer_steps"`
		HWM            int     `json:"hwm"`
		MaxQueueSize   int     `json:"max_queue_size"`
		Topic          string  `json:"topic"`
	}{Endpoint: "tcp://*:5557", BufferSteps: DefaultBufferSteps, HWM: DefaultHWM}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return EventsConfig{}, fmt.Errorf("reading the KV events configuration: %w", err)
	}
	if !in.Enable || in.Publisher != nil && *in.Publisher == "null" {
		return EventsConfig{Disabled: true}, nil
	}
	if in.Publisher != nil && *in.Publisher != "zmq" {
		return EventsConfig{}, fmt.Errorf("KV events publisher %q is not one of zmq, null", *in.Publisher)
	}
	out := EventsConfig{
		Endpoint: in.Endpoint, Connect: !strings.Contains(in.Endpoint, "*") && !strings.Contains(in.Endpoint, "::"),
		Topic: in.Topic, BufferSteps: in.BufferSteps, HWM: in.HWM, NoReplay: in.ReplayEndpoint == nil,
	}
	if in.ReplayEndpoint != nil {
		out.ReplayEndpoint = *in.ReplayEndpoint
	}
	for _, e := range []string{out.Endpoint, out.ReplayEndpoint} {
		if e == "" {
			continue
		}
		if _, err := hostPort(e, 0); err != nil {
			return EventsConfig{}, err
		}
	}
	return out, nil
}

// hostPort turns a ZeroMQ endpoint or host:port into host:port, offset by the data-parallel rank; * is 0.0.0.0.
func hostPort(endpoint string, rank int) (string, error) {
	addr, _ := strings.CutPrefix(endpoint, "tcp://")
	if strings.Contains(addr, "://") {
		return "", fmt.Errorf("endpoint %q: only tcp is simulated", endpoint)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", fmt.Errorf("endpoint %q: port: %w", endpoint, err)
	}
	if n != 0 {
		n += uint64(rank)
	}
	if host == "*" {
		host = "0.0.0.0"
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}

// withDefaults fills in what is not set and checks the rest.
func (c Config) withDefaults() (Config, error) {
	setDefault(&c.Host, "127.0.0.1")
	setDefault(&c.Release, NewestRelease)
	setDefault(&c.Profile, DefaultProfile)
	setDefault(&c.SpeedUp, 1)
	setDefault(&c.StreamInterval, 1)
	setDefault(&c.DefaultOutput, DefaultOutput)
	setDefault(&c.MaxBody, DefaultMaxBody)
	setDefault(&c.BlockSize, enginemodel.DefaultBlockSize)
	setDefault(&c.DataParallelSize, c.DataParallelRank+1)
	setDefault(&c.Events.BufferSteps, DefaultBufferSteps)
	setDefault(&c.Events.HWM, DefaultHWM)
	if len(c.ServedModelNames) == 0 {
		c.ServedModelNames = []string{DefaultModel}
	}
	setDefault(&c.ModelRoot, c.ServedModelNames[0])
	if c.Text == nil {
		c.Text = Words{}
	}
	profile, err := enginemodel.LookupProfile(c.Profile)
	if err != nil {
		return c, err
	}
	if c.NumBlocks == 0 && c.BlockSize > 0 {
		c.NumBlocks = profile.KVTokens / c.BlockSize
	}
	setDefault(&c.Time.Base, profile.Time.Base)
	setDefault(&c.Time.Overhead, profile.Time.Overhead)
	setDefault(&c.Time.Linear, profile.Time.Linear)
	setDefault(&c.Time.Attention, profile.Time.Attention)
	setDefault(&c.Time.KVRead, profile.Time.KVRead)
	switch {
	case c.SpeedUp < 0:
		return c, fmt.Errorf("speed-up is %v, must be positive", c.SpeedUp)
	case c.Transfer.Lease < 0 || c.Transfer.Base < 0 || c.Transfer.Token < 0:
		return c, errors.New("the lease and the times of a transfer must not be negative")
	case c.StreamInterval < 1:
		return c, fmt.Errorf("stream interval is %d, must be at least 1", c.StreamInterval)
	case c.Events.BufferSteps < 0 || c.Events.HWM < 0:
		return c, errors.New("buffer steps and high-water mark must not be negative")
	case c.Events.DigestHashes && c.Release.layout() < Layout0102:
		return c, fmt.Errorf("release %v has integer hashes only", c.Release)
	case c.DataParallelRank < 0 || c.DataParallelRank >= c.DataParallelSize:
		return c, fmt.Errorf("rank %d is none of %d", c.DataParallelRank, c.DataParallelSize)
	case c.MaxQueuedRequests < 0:
		return c, fmt.Errorf("the bound of queued requests is %d, must not be negative", c.MaxQueuedRequests)
	case c.MaxQueuedRequests > 0 && c.Release < SinceQueueLimits:
		return c, fmt.Errorf("release %v has no bound of queued requests", c.Release)
	case c.ShutdownTimeout > 0 && c.Release < SinceShutdownTimeout:
		return c, fmt.Errorf("release %v has no shutdown timeout", c.Release)
	}
	return c, nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

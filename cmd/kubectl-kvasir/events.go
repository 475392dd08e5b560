package main

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/vllm"
	"github.com/kvasir-dev/kvasir/internal/zmtp"
)

const aboutEvents = `Decodes KV cache events of engines: payloads (the third frame of a message) as hexadecimal digits, one per
line on standard input, or the messages of a live publisher. Each becomes one line of JSON.`

// events is the command of that name.
func events(std stdio) *cobra.Command {
	c := command.New("events", "Decode KV cache events of engines", aboutEvents)
	set := c.Flags()
	engine := set.String("engine", "vllm", "engine that has sent the events: vllm or sglang")
	connect := set.String("connect", "", "read the live publisher at this address, tcp://HOST:PORT")
	topic := set.String("topic", "", "with --connect: take only messages whose topic begins with this")
	count := set.Int("count", 0, "with --connect: end after this many messages; 0 reads on")
	envelope := set.Bool("envelope", false, "with --connect: show the topic and sequence number of each message too")
	command.Values(c, "engine", "vllm", "sglang")
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx := c.Context()
		var d *decoder
		switch strings.ToLower(*engine) {
		case "vllm":
			d = newDecoder("VLLM")
		case "sglang":
			d = newDecoder("SGLang")
		default:
			return command.Usage("unknown engine %q", *engine)
		}
		if *connect != "" {
			return follow(ctx, d, std, publisher{*connect, *topic, *count, *envelope})
		}
		return eachLine(ctx, std, func(line []byte) (any, error) {
			payload, err := hex.AppendDecode(d.payload[:0], line)
			d.payload = payload
			if err != nil {
				return nil, err
			}
			return d.batch(payload)
		}, fail)
	}
	return c
}

// publisher is what to read of a live publisher.
type publisher struct {
	address, topic string
	count          int
	envelope       bool
}

var errEnough = errors.New("enough")

// follow prints the messages of a publisher until ctx ends, the connection is lost, or it was enough.
func follow(ctx context.Context, d *decoder, std stdio, p publisher) error {
	out := newPrinter(std.Out)
	source := zmtp.EventSource{Topics: []string{p.topic}}
	connected := func() { fmt.Fprintf(std.Err, "Connected to %s\n", p.address) }
	seen := 0
	err := source.Subscribe(ctx, p.address, connected, func(frames [][]byte) error {
		v, err := d.message(frames, p.envelope)
		if err != nil {
			v = fail(err)
		}
		if err := out.print(v); err != nil {
			return err
		}
		if seen++; seen == p.count {
			return errEnough
		}
		return out.flush()
	})
	if errors.Is(err, errEnough) || ctx.Err() != nil {
		return out.flush()
	}
	return err
}

// decoder turns payloads into what is printed.
type decoder struct {
	decoder *vllm.Decoder
	batchIn kvevent.Batch
	raw     vllm.Raw
	payload []byte
}

func newDecoder(engine string) *decoder { return &decoder{decoder: vllm.NewDecoder(engine)} }

// batch is one payload as it is printed.
type batch struct {
	Topic *string `json:"topic,omitempty"`
	Seq   *uint64 `json:"seq,omitempty"`
	// TS is nil for what is no number.
	TS *float64 `json:"ts"`
	// Rank is nil where the engine does not report it.
	Rank    *int    `json:"rank"`
	Events  []event `json:"events"`
	Skipped int     `json:"skipped"`
}

// event is one event as it is printed. Every kind of event has all keys.
type event struct {
	Type      string   `json:"type"`
	Hashes    []string `json:"hashes"`
	Parent    *string  `json:"parent"`
	Tokens    int      `json:"tokens"`
	BlockSize int      `json:"blockSize"`
	Medium    *string  `json:"medium"`
	LoRAName  *string  `json:"loraName"`
	Group     int      `json:"group"`
	Indexed   bool     `json:"indexed"`
}

// message decodes one message of a publisher: topic, sequence number, payload.
func (d *decoder) message(frames [][]byte, envelope bool) (any, error) {
	n := len(frames)
	if n < 2 || len(frames[n-2]) != 8 {
		return nil, fmt.Errorf("a message of %d frames without a sequence number", n)
	}
	b, err := d.batch(frames[n-1])
	if err != nil || !envelope {
		return b, err
	}
	topic, seq := "", binary.BigEndian.Uint64(frames[n-2])
	if n > 2 {
		topic = string(frames[0])
	}
	b.Topic, b.Seq = &topic, &seq
	return b, nil
}

func (d *decoder) batch(payload []byte) (*batch, error) {
	if err := d.decoder.DecodeRaw(payload, &d.batchIn, &d.raw); err != nil {
		return nil, err
	}
	in := &d.batchIn
	out := &batch{Events: make([]event, len(in.Events)), Skipped: in.Skipped}
	if !math.IsNaN(in.Time) && !math.IsInf(in.Time, 0) {
		out.TS = &in.Time
	}
	if in.Rank >= 0 {
		out.Rank = &in.Rank
	}
	for i := range in.Events {
		out.Events[i] = show(&in.Events[i], &d.raw.Events[i])
	}
	return out, nil
}

func show(e *kvevent.Event, raw *vllm.RawEvent) event {
	out := event{
		Hashes: make([]string, len(raw.Hashes)), Tokens: len(e.Tokens), BlockSize: e.BlockSize,
		Medium: optional(e.Medium), LoRAName: optional(e.Adapter), Group: e.Group, Indexed: indexed(e),
	}
	switch e.Kind {
	case kvevent.Stored:
		out.Type = "BlockStored"
	case kvevent.Removed:
		out.Type = "BlockRemoved"
	case kvevent.Cleared:
		out.Type = "AllBlocksCleared"
	}
	for i, h := range raw.Hashes {
		out.Hashes[i] = h.String()
	}
	if e.HasParent {
		out.Parent = optional(raw.Parent.String())
	}
	return out
}

// optional is nil for what is empty.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// indexed reports whether the event alone is enough for its blocks to be indexed: it stores blocks of a group whose hits
// extend a prefix, with all their tokens and everything else that identifies them. Whether they are indexed at once depends
// on earlier events: a block waits for its parent, and one announced by hash alone counts if the same hash is held in
// another tier.
func indexed(e *kvevent.Event) bool {
	return e.Kind == kvevent.Stored && !e.Partial && !e.Unkeyed &&
		e.BlockSize > 0 && len(e.Hashes) > 0 && len(e.Tokens) == len(e.Hashes)*e.BlockSize && knownMedium(e.Medium)
}

// knownMedium reports whether the picker knows the medium without an entry for it in the pool.
func knownMedium(medium string) bool {
	switch strings.ToLower(medium) {
	case "", "gpu", "cpu", "cpu_pinned", "cpu_tier1", "fs", "disk", "obj", "external", "remote":
		return true
	}
	return false
}

package events

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/vllm"
)

// Subscriber is the transport of live events.
type Subscriber interface {
	// Subscribe follows the publisher at addr until ctx ends, the connection is lost or each returns an error. It
	// calls up once when it is subscribed, then each for every message: topic, sequence number (8 bytes, big-endian)
	// and payload; only the last two frames count, and they are valid only during the call. The error is never nil.
	Subscribe(ctx context.Context, addr string, up func(), each func(frames [][]byte) error) error
}

// Source is the transport of events. zmtp.EventSource is one.
type Source interface {
	Subscriber
	// Replay calls each for the batches that the publisher keeps from sequence number from on, in order, and returns
	// nil at their end. A payload is valid only during the call.
	Replay(ctx context.Context, addr string, from uint64, each func(seq uint64, payload []byte) error) error
}

// Decoder reads the payload of one message into a batch, whose buffers it reuses. vllm.Decoder is one.
type Decoder interface {
	// Limit makes Decode fail if take reports that there is no room for so many more bytes of a batch's buffers.
	Limit(take func(bytes int) bool)
	Decode(payload []byte, into *kvevent.Batch) error
}

// Sink takes what a stream finds. Its methods are called from one goroutine at a time.
type Sink interface {
	// Begin means that nothing is held, and that the blocks will be reported from the beginning. With sameLife it was lost on
	// the way here, and the engine might hold the same as before; else the engine has begun another life.
	Begin(sameLife bool)
	// Revert means that what Begin(true) has announced was aborted. The sink can go back to what was held before, with
	// what was applied before, and returns whether it has.
	Revert() bool
	// Apply makes the changes of a batch, in its order, which leads to a position. It must not keep the batch.
	Apply(b *kvevent.Batch, at Position)
	// Mark records up to where batches have been applied, and how far the held blocks can be trusted. What Begin(true) has
	// announced is complete.
	Mark(at Position, state State)
}

// LayoutSink is a Sink that is notified whether the engine's batches can be read.
type LayoutSink interface {
	Sink
	// Unreadable records that the last batch was of no known layout, or no longer is.
	Unreadable(now bool)
}

// DoubtfulSink is a Sink that knows how many blocks the engine has.
type DoubtfulSink interface {
	Sink
	// Impossible reports whether, since it was asked last, more than twice as many blocks were held on the GPU as the engine has. None is
	// held there then.
	Impossible() bool
}

// Position is a place in the batches of one life of an engine.
type Position struct {
	// Next is the number of the first batch that was not applied; meaningless unless Known.
	Next  uint64
	Known bool
	// Proof identifies the batch before Next among batches with the same number; 0 for none. Batches carry the time, so two
	// lives of an engine have different proofs.
	Proof uint64
	// State is how far what was applied can be trusted, whether there is a connection or not.
	State State
}

// Keys is what turns an engine's blocks into keys; the same for all endpoints of a pool.
type Keys struct {
	// Model roots the keys of blocks without an adapter, Seed those of all.
	Model string
	Seed  kvblock.Seed
	// BlockTokens is the size of a key's block in tokens.
	BlockTokens int
	// Media maps further lower-case medium strings of engines to tiers.
	Media map[string]kvblock.Tier
}

// Feed is one endpoint whose events the picker follows.
type Feed struct {
	Endpoint endpoint.Endpoint
	// Engine is VLLM or SGLang.
	Engine string
	Keys   Keys
	// Writer is where the endpoint's blocks go. It is the stream's alone.
	Writer kvindex.Writer
	// Capacity, if set, is the number of physical blocks of the engine's GPU tier, 0 while it is not known.
	Capacity func() int
	// Sink, if set, takes the batches in place of Keys and Writer.
	Sink Sink
	// Resume is what the sink has from before; Begin is not called if the engine proves to be in the same life still.
	Resume Position
	// OnLookahead, if set, is called after batches with blocks whose hashes also cover tokens that follow them.
	OnLookahead func()
	// OnStored, if set, is called with the keys of blocks that have just entered the index, in any tier. It is called
	// from the stream's goroutine and must not keep keys.
	OnStored func(keys []kvblock.Key)
}

// address names the endpoint to the transport of its events; it is empty when it has none.
func (f *Feed) address() string {
	if f.Endpoint.DialsIn {
		return f.Endpoint.Epoch()
	}
	return f.Endpoint.EventsAddress
}

// Config is what all streams share. Zero values take the defaults.
type Config struct {
	// Source of events; required.
	Source Source
	// Reception, if set, takes the publishers that connect to the picker; feeds that dial in have no stream without it.
	Reception *Reception
	// NewDecoder makes a stream's decoder; that of package vllm by default.
	NewDecoder func(engine string) Decoder
	// Join makes the sink of an endpoint whose engine blocks are parts of key blocks: it writes to the feed's Writer, and
	// counts its work in stats, and what it holds draws on share. Without Join such blocks are not indexed. cachesync.Join is one.
	Join func(f *Feed, stats *Stats, share *budget.Share) Sink
	// Changed, if set, is called after the State of a stream can have become another one. It must not wait.
	Changed func()
	// Log gets the changes of streams' states.
	Log logr.Logger
	// Now is the clock, time.Now by default. Engines' time stamps are compared with it too.
	Now func() time.Time
	// Sleep waits for d, false when ctx has ended before; with a timer by default.
	Sleep func(ctx context.Context, d time.Duration) bool

	// Room bounds what all streams together hold of what engines send, beside blocks in the index and, of each stream, the first
	// 128 KiB of its messages and of what is kept of them:
	// messages that wait, what is decoded of one, blocks that wait for their parents, and notes on blocks. nil for no bound.
	Room *budget.Room
	// QueueBytes bounds the messages of an endpoint that wait to be applied.
	QueueBytes int
	// MaxBlocks bounds the blocks mirrored for an endpoint; further ones are not indexed.
	MaxBlocks int
	// MaxOrphans and MaxOrphanBytes bound the blocks that wait for their parent; the oldest are dropped first.
	MaxOrphans, MaxOrphanBytes int
	// ReplayAttempts is how often a replay of a gap is requested before the endpoint counts as degraded.
	ReplayAttempts int
	// MinBackoff and MaxBackoff bound the pause before connecting again. It doubles, and half of it is random.
	MinBackoff, MaxBackoff time.Duration
	// MinQuiet and MaxQuiet bound the time without a message after which the replay socket is asked whether the last
	// ones were lost. It doubles from one such question to the next.
	MinQuiet, MaxQuiet time.Duration
	// MinResync and MaxResync bound the pause before an endpoint that could not be replayed is replayed again. It
	// doubles.
	MinResync, MaxResync time.Duration
}

// Defaults of Config.
const (
	// ownBytes of each stream are outside of Config.Room.
	ownBytes              = 128 << 10
	DefaultQueueBytes     = 16 << 20
	DefaultMaxBlocks      = 4 << 20
	DefaultMaxOrphans     = 64 << 10
	DefaultMaxOrphanBytes = 16 << 20
	DefaultReplayAttempts = 3
	DefaultMinBackoff     = 100 * time.Millisecond
	DefaultMaxBackoff     = 5 * time.Second
	DefaultMinQuiet       = 2 * time.Second
	DefaultMaxQuiet       = 30 * time.Second
	DefaultMinResync      = 5 * time.Second
	DefaultMaxResync      = time.Minute
)

func (c Config) withDefaults() Config {
	number := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	span := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	if c.NewDecoder == nil {
		c.NewDecoder = func(engine string) Decoder { return vllm.NewDecoder(engine) }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Sleep == nil {
		c.Sleep = sleep
	}
	number(&c.QueueBytes, DefaultQueueBytes)
	number(&c.MaxBlocks, DefaultMaxBlocks)
	number(&c.MaxOrphans, DefaultMaxOrphans)
	number(&c.MaxOrphanBytes, DefaultMaxOrphanBytes)
	number(&c.ReplayAttempts, DefaultReplayAttempts)
	span(&c.MinBackoff, DefaultMinBackoff)
	span(&c.MaxBackoff, DefaultMaxBackoff)
	span(&c.MinQuiet, DefaultMinQuiet)
	span(&c.MaxQuiet, DefaultMaxQuiet)
	span(&c.MinResync, DefaultMinResync)
	span(&c.MaxResync, DefaultMaxResync)
	return c
}

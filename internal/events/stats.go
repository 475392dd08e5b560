package events

import (
	"sync/atomic"
	"time"
)

// State is how far a stream's blocks can be trusted. See the package's picture.
type State int32

// The states.
const (
	Disconnected State = iota
	Syncing
	Synced
	Unverified
	Degraded
)

// String is the state's name in logs and metrics.
func (s State) String() string {
	switch s {
	case Disconnected:
		return "Disconnected"
	case Syncing:
		return "Syncing"
	case Synced:
		return "Synced"
	case Unverified:
		return "Unverified"
	case Degraded:
		return "Degraded"
	}
	return "unknown"
}

// Reason is why everything of an endpoint was replayed.
type Reason int

// The reasons.
const (
	Connected  Reason = iota // a new connection
	FellBack                 // a sequence number lower than the last
	Overflow                 // messages dropped from a full queue
	ShortGap                 // a gap whose beginning is no longer kept
	Retry                    // an earlier replay failed
	NumReasons int    = iota
)

// String is the reason's name in logs and metrics.
func (r Reason) String() string {
	switch r {
	case Connected:
		return "Connected"
	case FellBack:
		return "FellBack"
	case Overflow:
		return "Overflow"
	case ShortGap:
		return "ShortGap"
	case Retry:
		return "Retry"
	}
	return "unknown"
}

// Stats counts what a stream did since it was started. All can be read at any time.
//
// It has many fields because each is a metric.
type Stats struct {
	// Batches applied, and the Events in them.
	Batches, Events atomic.Uint64
	// Stored and Removed count announced blocks, including copies; Cleared counts events.
	Stored, Removed, Cleared atomic.Uint64
	// RemovedUnknown counts removals of blocks that were not known, part of Removed.
	RemovedUnknown atomic.Uint64

	// Connections made, and Failures to make or keep one.
	Connections, Failures atomic.Uint64
	// Gaps in the sequence, and the batches missing in gaps that were never filled.
	Gaps, Missing atomic.Uint64
	// Duplicates are batches received again and ignored.
	Duplicates atomic.Uint64
	// Replays asked for, and those that failed.
	Replays, ReplayFailures atomic.Uint64
	// Resumes counts connections made again to an engine that was in the same life still, and TailLosses the batches
	// that were found missing only by asking.
	Resumes, TailLosses atomic.Uint64
	// Resyncs counts replays of everything, by reason.
	Resyncs [NumReasons]atomic.Uint64
	// Overflows of the queue.
	Overflows atomic.Uint64

	// Malformed messages have no sequence number, or one that cannot follow; DecodeErrors are payloads that cannot be read.
	// UnknownLayouts are the ones among them that are of no known layout, and batches with events of a known kind that
	// cannot be read.
	Malformed, DecodeErrors, UnknownLayouts atomic.Uint64
	// Unreadable reports that the last batch, or an event of a known kind in it, had an unknown layout.
	Unreadable atomic.Bool
	// Silent reports that the engine reports that it publishes no events.
	Silent atomic.Bool
	// Panics are bugs that showed while an event batch was applied or a connection was read; the batch is skipped, and the
	// endpoint's blocks are forgotten and replayed.
	Panics atomic.Uint64
	// Skipped counts events and fields that the decoder skipped.
	Skipped atomic.Uint64

	// Blocks not indexed, by reason: of a group with unknown conditions for a hit; without the data that identifies them;
	// in an unknown tier; of a number of tokens that does not fit the number of blocks; of a block size that is no multiple
	// of the key block; beyond the limit.
	Partial, Unkeyed, UnknownMedium, Misaligned, BlockSizeUnsupported, Refused atomic.Uint64
	// Struck counts copies that were announced and cannot exist, because the engine has fewer blocks; Superseded counts
	// blocks of adapters that were loaded again with other weights.
	Struck, Superseded atomic.Uint64
	// Impossible counts how often more than twice as many blocks were held as the engine has, so that all on its GPU were forgotten.
	Impossible atomic.Uint64

	// OrphansDropped counts blocks that waited for their parent and were given up.
	OrphansDropped atomic.Uint64

	// Blocks and Orphans are how many are held now; QueuedBytes is what waits to be applied.
	Blocks, Orphans, OrphanBytes, QueuedBytes atomic.Int64
	lag                                       atomic.Int64
}

// Lag is how long ago, by the engine's clock, the batch was published that was applied last.
func (s *Stats) Lag() time.Duration { return time.Duration(s.lag.Load()) }

package metrics

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// EventStats is what became of an endpoint's events since its stream was first set.
type EventStats struct {
	// Pool is the pool's name. Pod and ID name the endpoint.
	Pool, Pod string
	ID        endpoint.ID
	// State of the stream, a word of a short fixed list.
	State string
	// Batches applied, and the blocks that their events have stored and removed; Cleared counts the events that
	// cleared all.
	Batches, Stored, Removed, Cleared uint64
	// Gaps in the sequence numbers, Missed the batches in them, Replayed those of them that came afterwards.
	Gaps, Missed, Replayed uint64
	// Resyncs are fresh starts: the endpoint's blocks were forgotten.
	Resyncs uint64
	// Connects counts connections made.
	Connects uint64
	// DecodeErrors counts batches that could not be read, Skipped the events in readable batches that are not known
	// or make no sense.
	DecodeErrors, Skipped uint64
	// Orphans is the number of blocks that wait for their parent now.
	Orphans int
	// Lag is the time from the engine's stamp on the last batch to its use here; it includes the difference of the
	// clocks.
	Lag time.Duration
	// LastBatch is when the last batch came; zero when none did.
	LastBatch time.Time
}

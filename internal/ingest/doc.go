// Package ingest keeps the index true to what engines say: one stream per endpoint, from the messages of its event
// publisher to the blocks of its holder in the index.
//
//	            receiver                                applier
//	publisher ------------> queue, ordered, bounded ------------> mirror ----> index
//	                          ^ bytes                    | gap,     engine hash -> own keys,
//	                          |                          | new life  copies per tier
//	                     up, messages                    v
//	                                                replay socket
//
// What a stream does is decided in Stream, which has no goroutine, socket or timer; run drives it with two goroutines,
// and a simulation step by step.
//
// Everything that changes an endpoint's blocks passes the one queue, so that a late event cannot bring back what a
// restart has cleared. Sequence numbers are always checked. The states of a stream:
//
//	                 subscribed, or the sequence fell back
//	Disconnected ---------------------------------------> Syncing: cleared, replaying from 0
//	     ^                                                  |            |
//	     | connection lost (from every state;               | all from   | history cut short,
//	     | blocks stay, and a new connection clears         | number 0   | or no replay
//	     | unless it proves the same life)                  |            |
//	     |                                                  v            v
//	     |<---------------------------------------------- Synced     Unverified
//	     |                                                  |            |
//	     |          a gap that no replay fills,             v            v
//	     '--------- or a batch that cannot be read ------- Degraded <----'
//	                                                        |
//	                                                        '--> replayed from 0 again, when that succeeds
//
// What is replayed while the engine lives on loads into a shadow, so that requests find what was held before until all of
// it is there; if the replay breaks off, nothing has changed. Another life begins with nothing at once.
//
// Synced means that every batch of this life of the engine was applied. Unverified means that the beginning is
// missing: what the index has is true, but not all there is. Degraded means that batches in between are missing: some
// of what the index has may be gone. Live events are applied in every state.
//
// A number more than 2^32 ahead is no gap: whoever reaches the publisher's subscribers can send one. Its message is
// passed over, unless the next one goes on from it; then the engine is taken to be in another life.
//
// A gap is filled only by an engine that still has the batch before it: behind a connection that is not lost yet there
// may be another life already.
//
// A connection that is made again may be to another life of the engine, and nothing in the protocol tells. So the
// batch applied last is asked for again: batches carry the time, and if it is the same to the byte, so is the life, and
// the stream goes on from there. Otherwise it is a new life: everything is cleared and replayed.
//
// Messages lost last are followed by none that shows the gap. So the replay socket is asked in the same way when a
// stream has been quiet, less and less often while it stays so.
package ingest

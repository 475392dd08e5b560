// Package events keeps the index consistent with what engines report: one stream per endpoint, from the messages of its
// event publisher to the blocks of its holder in the index.
//
//	            receiver                                applier
//	publisher ------------> queue, ordered, bounded ------------> mirror ----> index
//	                          ^ bytes                    | gap,     engine hash -> own keys,
//	                          |                          | new life  copies per tier
//	                     up, messages                    v
//	                                                replay socket
//
// Stream decides what a stream does; it has no goroutine, socket or timer. run drives it with two goroutines, and a
// simulation step by step.
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
// While the engine stays in the same life, a replay loads into a shadow: requests find the earlier blocks until the replay
// is complete, and an interrupted replay changes nothing. In another life the index starts empty at once.
//
// Synced means that every batch of this life of the engine was applied. Unverified means that the beginning is
// missing: the blocks in the index are right, but incomplete. Degraded means that batches in between are missing: some
// of what the index has might be gone. Live events are applied in every state.
//
// A number more than 2^32 ahead is not a gap: any client that reaches the publisher's subscribers can send one. Its message
// is skipped, unless the next one continues from it; then the engine is assumed to be in another life.
//
// A gap is filled only by an engine that still has the batch before it: behind a connection that is not lost yet there
// might be another life already.
//
// A new connection might lead to another life of the engine, and the protocol does not show it. So the stream asks for the
// last applied batch again: batches carry the time, so if it is identical to the byte, the life is the same, and the stream
// continues from there. Otherwise it is a new life: everything is cleared and replayed.
//
// If the last messages are lost, no later message shows the gap. So a quiet stream asks the replay socket in the same way,
// at growing intervals while it stays quiet.
package events

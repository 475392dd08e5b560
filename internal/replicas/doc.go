// Package replicas is how pickers send each other what they have assigned to the endpoints: both sides of the exchange without
// sockets or clocks, so that they run the same in processes, in tests and in virtual time.
//
//	picker A                                        picker B
//	trackers, guesses --> Outbox --> Sender --Update--> Receiver (of Inbox) --> trackers, index
//	trackers, index <-- Receiver <--Update-- Sender <-- Outbox <-- trackers, guesses
//
// Each picker has an Outbox and an Inbox, and for each peer a Sender and a Receiver. Updates carry absolute values, so that
// a loss has no lasting effect: an update names the endpoints that have changed, and twice a second a full one names all
// endpoints with work of this picker; the others have none. Counters of a peer without an update for load.PeerFresh do not
// count, and are then dropped. A picker that starts again is another peer.
//
// A change is sent at once if no other was sent to the peer for some milliseconds, and otherwise after
// them (Gather). A slow reader gets fewer updates, never outdated values.
//
// Speculation is sent in the same way: which blocks an endpoint is assumed to hold because a request with them was just
// sent there, and when that ends. It is a hint: sent once, bounded in bytes and time on both sides, and never a fact in the
// index. Where texts without keys were sent is sent once, too. Homes of sessions are sent when they change, again with two full
// updates, and all of them to a peer that connects. Pools are named by namespace and name, endpoints by (pod UID, rank), and
// key roots by their id; a root itself is never sent. If the receiver has another root, it ignores the assumption but not the
// counters.
//
// In virtual time: when a bell has rung (Sender.Bell), and at the time that Next returned, call Next until it has nothing,
// and pass each message to the other side's Receiver.Handle after the link's delay; the first one goes to Inbox.Open. Call
// Inbox.Expire now and then, and Receiver.Lost when a picker fails. The example of Sender does that.
package replicas

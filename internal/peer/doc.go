// Package peer is how pickers tell each other what they have given the endpoints: both sides of the exchange without
// sockets or clocks, so that they run the same in processes, in tests and in virtual time.
//
//	picker A                                        picker B
//	trackers, guesses --> Outbox --> Sender --Update--> Receiver (of Inbox) --> trackers, index
//	trackers, index <-- Receiver <--Update-- Sender <-- Outbox <-- trackers, guesses
//
// Each picker has an Outbox and an Inbox, and for each peer a Sender and a Receiver. What is told are absolute values,
// so that a loss leaves nothing wrong behind: an update names the endpoints that have changed, and twice a second a full
// one names all that the picker has given something, by which the others have nothing from it. Counters of a peer that
// is not heard for load.PeerFresh do not count, and then go. A picker that starts again is another peer.
//
// A change is told at once when the peer has not been told of another for some milliseconds, and after those otherwise
// (Gather). Who reads slowly is told less often, never late values.
//
// Speculation goes the same way: which blocks an endpoint is assumed to hold because a request with them was just sent
// there, and when that ends. It is a hint: told once, bounded in bytes and time on both sides, and never a fact in the
// index. Pools are told by namespace and name, endpoints by (pod UID, rank), and roots of keys by their id; a root
// itself is never told. Where it is another, the assumption is passed over and the counters are not.
//
// In virtual time: when a bell has rung (Sender.Bell), and at the time that Next said, call Next until it has nothing,
// and hand each message to the other side's Receiver.Handle as much later as the link takes; the first one goes to
// Inbox.Open. Call Inbox.Expire now and then, and Receiver.Lost when a picker is to die. The example of Sender does that.
package peer

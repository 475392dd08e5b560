// Package cachesync transfers the state of a reporter to pickers: both sides of the protocol without sockets or clocks,
// so that they run the same in processes, in tests and in virtual time.
//
//	engine --events--> Mirror: blocks by the engine's names, with their tokens
//	                      |
//	                      | one View for each root of keys: which keys are held, digests, a log of changes
//	                      |
//	                      +--> Sender ---- changes, digests, buckets ----> Receiver --> index of picker 1
//	                      |           <--- welcome, repair, restart -----
//	                      +--> Sender ----                           ----> Receiver --> index of picker 2
//
// Reports carry a set of keys for each (tier, group), and its changes: a key enters, a key leaves. The mirror resolves
// copies, several engine hashes of one key, and blocks larger or smaller than key blocks. So a set can be compared by a
// digest, and any part of it can be sent again without harm.
//
// A position in the reported changes is (epoch, key id, log, number of changes). With the same log a sender continues at
// the receiver's position. With the same epoch and keys but another log, or one that no longer reaches back, the receiver's
// blocks are adopted: a digest shows in which buckets they differ, and those are sent. Otherwise everything is sent, and
// replaces the earlier state at once; blocks of another epoch are removed before that.
package cachesync

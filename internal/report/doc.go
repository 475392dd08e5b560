// Package report is how pickers come to know what a reporter knows: both sides of the protocol without sockets or
// clocks, so that they run the same in processes, in tests and in virtual time.
//
//	engine --events--> Mirror: blocks by the engine's names, with their tokens
//	                      |
//	                      | one View for each root of keys: which keys are held, digests, a log of changes
//	                      |
//	                      +--> Sender ---- changes, digests, buckets ----> Receiver --> index of picker 1
//	                      |           <--- welcome, repair, restart -----
//	                      +--> Sender ----                           ----> Receiver --> index of picker 2
//
// What is told is a set of keys for each (tier, group), and its changes: a key enters, a key leaves. Copies, several
// engine hashes of one key, and blocks larger or smaller than ours are settled by the mirror. So a set can be compared
// by a digest, and any part of it be told again without harm.
//
// A position in what was told is (epoch, key id, log, number of changes). With the same log a sender goes on where the
// receiver is. With the same epoch and keys but another log, or one that no longer reaches back, what the receiver has
// is adopted: a digest tells in which buckets it differs, and those are told. Otherwise everything is told, and
// replaces at once what there was; blocks of another epoch go before that.
package report

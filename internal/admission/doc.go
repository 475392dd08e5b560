// Package admission keeps requests in the picker while a pool is full, so that they wait where priorities and tenants
// count, and not in an engine's queue, where they do not.
//
//	           no room                      room
//	request ------------> Queue ------------------------> the pick goes on
//	   |                    | full: the least worthy     ^
//	   | room, nobody waits | too old: refused           |
//	   '-------------------------------------------------'
//
// A pool has room while some endpoint would begin a prefill within the policy's wait budget (Room). Higher priority
// levels go first. Within a level tenants share by weight what they cost, in uncached tokens; within a tenant the first
// come is the first served.
//
// A pool may have a target for first tokens instead (Pace, FirstToken, Joins, Fits). Requests then wait for an endpoint from
// which they are in time, and are refused when there can be none any more. So that all lengths of prompts find one,
// endpoints keep their steps as short as the targets of those who come (Spread, Brief); so that all tenants do, whoever is
// ahead leaves a place to those who were refused (Ahead, Urgent).
//
// Sharing is by virtual time: the tenant that has had the least work for its weight goes next, and one that comes back
// starts no earlier than the others are. That is a deficit round robin with an arbitrarily small quantum: the same
// shares, without a quantum to choose and without rounds in which nobody is served. (Start-time fair queueing: Goyal,
// Vin, Cheng, SIGCOMM 1996.)
//
// Nothing here has a clock, a lock or a goroutine: the picker and the lab bring their own.
package admission

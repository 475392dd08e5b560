// Package admission keeps requests in the picker while a pool is full, so that they wait where priorities and tenants
// count, and not in an engine's queue, where they do not.
//
//	           no room                      room
//	request ------------> Queue ------------------------> the pick continues
//	   |                    | full: the least worthy     ^
//	   | room, queue empty | too old: refused           |
//	   '-------------------------------------------------'
//
// An endpoint has room while it would begin a prefill within the policy's wait budget (Backlog); which request waits for which
// endpoint is for the picker to decide. Higher priority levels are served first. Within a level tenants share by weight what
// they cost, in uncached tokens. The queue keeps a tenant's requests in order of arrival.
//
// A pool can have a target for first tokens instead (Pace, FirstToken, Joins, Fits). Requests then wait for an endpoint
// from which they are in time, and are refused once there can be none. So that prompts of all lengths find a place,
// endpoints keep their steps as short as the targets of arriving requests require (Spread, Brief). So that all tenants find
// a place, a tenant that is ahead leaves one to tenants that were refused (Ahead, Urgent).
//
// Sharing is by virtual time: the tenant that has had the least work for its weight is next, and a returning tenant starts
// no earlier than the others are. That is a deficit round robin with an arbitrarily small quantum: the same shares, without
// a quantum to choose and without rounds in which no request is served. (Start-time fair queueing: Goyal, Vin, Cheng,
// SIGCOMM 1996.)
//
// The package has no clock, lock or goroutine: the picker and the lab supply them.
package admission

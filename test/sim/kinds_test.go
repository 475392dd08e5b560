package sim

// kinds are what must have happened in a simulation of enough seeds, so that a simulation in which nothing goes wrong
// cannot pass for one in which everything holds.
var kinds = []string{
	// Messages and connections.
	"lost", "repeated", "dropped at the publisher", "malformed", "number far ahead", "truncated", "garbled", "unknown layout",
	"unknown event", "unreadable event", "connection lost", "connection lost during a replay", "end of a connection noticed late",
	"reordered across a reconnect", "replay failed", "replay with a hole", "replay too short", "consumer stalled", "queue overflowed",
	// Lives.
	"engine restarted", "engine restarted behind the same connection", "pod deleted", "address used again",
	"picker restarted", "reporter restarted with its state", "reporter restarted without its state",
	// Caches.
	"block held twice", "cache cleared", "tier cleared", "offloaded", "second group", "steps with orphans", "steps with ghosts",
	"steps after an eviction",
	// Reports.
	"report stream opened", "report stream lost", "reporter took over", "given back by its reporter", "root rotated",
	"mirror in the picker's process",
	// Guesses.
	"speculated", "guess confirmed",
	// How it ended.
	"judged equal, subscribed", "judged a part, subscribed", "judged degraded, subscribed",
	"judged equal, reported", "judged a part, reported", "judged degraded, reported",
}

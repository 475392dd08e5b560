// Package reporter is the sidecar beside an engine: it mirrors what the engine caches, rank by rank, reports it to every
// picker replica, keeps its mirrors across its own restarts, and serves the wait endpoint of the engine container's preStop
// hook.
//
//	engine, rank 0 --events--> stream --> mirror --> one sender for each picker replica
//	engine, rank 1 --events--> stream --> mirror --> one sender for each picker replica
//	                                        |
//	                                 state directory, on a volume in memory
//
// It does not depend on Kubernetes: pickers are found by name or listed, and they send the roots of keys.
package reporter

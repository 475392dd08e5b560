// Package operatorfeed is the state that pickers send to the operator, and its evaluation.
//
// Each picker replica sends its State of one pool: what its picks follow now, and what it knows of each pod. A Pool keeps
// the states of all replicas, and gives one View of those that are live. The package has no clock and no socket: times are
// passed in.
//
// The mark on a pod to be removed (label kvasir.dev/drain) is acknowledged when every live replica has reported that its
// picks no longer choose the pod. A replica is live while its pod is ready, or while it reports. So a ready replica that
// does not report delays every drain, until it reports, stops being ready, or its pod is deleted; the deadline of the drain
// bounds the wait.
//
// Pickers read the metrics of the engines that they send requests to, in a mesh or behind a network policy that keeps the
// operator out. What they read of draining pods stands in for the operator's own readings.
package operatorfeed

import "time"

// State is the state of one pool as one picker replica sends it. It is complete: what it does not name, the replica does
// not know.
type State struct {
	// Picker is the replica's name: that of its pod.
	Picker string
	// Incarnation is drawn by each process; Totals begin at 0 with it.
	Incarnation uint64
	// PoolGeneration, PolicyName and PolicyGeneration are what the picks follow now; no name where no policy applies.
	PoolGeneration   int64
	PolicyName       string
	PolicyGeneration int64
	// Ready reports that the replica would take requests.
	Ready bool
	// KeyID is the fingerprint of the key root in use; empty before there is one.
	KeyID string
	// Tokens reports whether block keys are made of the engines' own tokens, Predictions whether what is expected to be
	// cached is what engines find.
	Tokens, Predictions Finding
	// Gateways reports whether the gateways that the replica has seen follow its picks and pass streams on.
	Gateways Finding
	// Model reports whether the engines list the pool's model.
	Model Finding
	// Accepted reports whether the replica can apply the pool, with what the pool names, as of AcceptedGeneration.
	Accepted           Finding
	AcceptedGeneration int64
	// Unserved replicas do not serve the pool: besides the replica's name and incarnation, only Accepted is known.
	Unserved bool
	// Resolved reports that the replica has read all Secrets that the policy in force names. Replicas of earlier versions do not.
	Resolved bool
	// Resources reports whether the replica's memory, goroutines and descriptors suffice.
	Resources Finding
	// Pods by UID: all that the pool selects and the replica has seen.
	Pods   map[string]PodState
	Totals Totals
}

// Findings are all findings of a replica, in a fixed order.
func (s *State) Findings() [6]Finding {
	return [...]Finding{s.Tokens, s.Predictions, s.Gateways, s.Model, s.Accepted, s.Resources}
}

// Finding is what a replica has found out about its pool. The zero value is that of one that has not looked yet.
type Finding struct {
	Verdict Verdict
	// Reason in one word, as conditions have it; Message for people.
	Reason, Message string
}

// Verdict of a finding, the better the greater.
type Verdict int

// The verdicts.
const (
	NoVerdict Verdict = iota
	Bad
	Unclear
	Good
)

// PodState is what a replica knows of a pod, all ranks together.
type PodState struct {
	// Draining reports that the pod has the mark, or is being deleted, and that picks follow that: no request is sent to
	// the pod any more.
	Draining bool
	// InFlight is the requests that this replica has sent there and that have not ended.
	InFlight int
	// Synced reports that the blocks of every rank are known in full, Degraded that they are known in part; Reason is why
	// it is not Synced, or why blocks of it are not indexed all the same, in a word.
	Synced, Degraded bool
	Reason           string
	// UncachedTokens are prompt tokens that this replica has sent there and that are still to be prefilled.
	UncachedTokens int64
	// WorkSeconds is the part of Totals.WorkSeconds for prefills of this pod, since it is an endpoint of this replica.
	WorkSeconds float64
	// Waiting requests in the engine's own queue, KVUsage the part of its KV cache that running requests hold, by its
	// metrics; Blocks is what the index holds of it.
	Waiting int
	KVUsage float64
	Blocks  int64
	// Busy is the number of requests that run or wait in the engine, by its metrics, and ReadAge how old that is: the age of
	// the oldest reading of a rank, at least a millisecond; 0 when a rank was not read.
	Busy    int
	ReadAge time.Duration
	// Value is the tokens that requests recently found in the cache of this pod and would have found in no other, as
	// this replica's picks have counted them; older ones count less.
	Value float64
}

// Totals are counted from the start of the process. Waiting and LastRequest are what they are now.
type Totals struct {
	// Requests that were placed, the tokens of their prompts, those of them that were expected to be cached, and those
	// that were not.
	Requests, PromptTokens, HitTokens, PrefillTokens int64
	// WorkSeconds is the time that the engines were expected to need for the prefills, one after the other; decoding is
	// not in it.
	WorkSeconds float64
	// Evictions are the blocks that engines have removed.
	Evictions int64
	// Refused requests for which there was no room: those that 429 and 503 were answered.
	Refused int64
	// TTFT counts the first tokens by the time they took, between TTFTBounds; one more bucket than bounds.
	TTFT Histogram
	// Waiting requests at this picker.
	Waiting int64
	// LastRequest is when the last request arrived, zero before the first.
	LastRequest time.Time
}

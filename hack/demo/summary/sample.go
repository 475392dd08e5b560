// Package summary turns what was measured of each request into what a report says of a run, and checks it. It is pure.
package summary

import "time"

// Workloads of the demo.
const (
	Trace = "trace"
	Chat  = "chat"
)

// Sample is one request, as the client saw it.
type Sample struct {
	// Workload is Trace or Chat.
	Workload string
	// Sent is when the request was sent, since the start of the run, in model time.
	Sent time.Duration
	// Late is how much later than planned it was sent, in wall time: the load generator's own fault.
	Late time.Duration
	// Err is what went wrong, empty for an answer that came whole. The rest holds only without an error.
	Err string
	// Pod served the request, by the proxy's word.
	Pod string
	// Prompt and Answer are tokens, by the engine's count; Routed are the prompt's tokens by the picker's.
	Prompt, Answer, Routed int
	// Blind requests were routed without token ids.
	Blind bool
	// Predicted is how many prompt tokens the picker expected the pod to find in its cache, Confirmed the part of them
	// that the pod itself had announced, and Delivered what the engine did find.
	Predicted, Confirmed, Delivered int
	// TTFT is the time to the first generated text and Total to the end of the answer, in model time.
	TTFT, Total time.Duration
}

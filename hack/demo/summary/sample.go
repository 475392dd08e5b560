// Package summary turns the measurements of requests into the summary of a run, and checks it. It is pure.
package summary

import "time"

// Workloads of the demo.
const (
	Trace = "trace"
	Chat  = "chat"
)

// Sample is one request, as the client saw it. Its JSON is a line of requests.jsonl; times are in nanoseconds.
type Sample struct {
	// Workload is Trace or Chat.
	Workload string `json:"workload"`
	// Sent is when the request was sent, since the start of the run, in model time.
	Sent time.Duration `json:"sentNanoseconds"`
	// Late is how much later than planned it was sent, in wall time: the load generator's own fault.
	Late time.Duration `json:"lateNanoseconds"`
	// Err is what failed, empty for a complete answer. The other fields are valid only without an error.
	Err string `json:"error,omitempty"`
	// Pod served the request, by the proxy's word.
	Pod string `json:"pod"`
	// Prefiller is the pod that has prefilled the request for Pod; empty without a hand-off.
	Prefiller string `json:"prefiller,omitempty"`
	// Prompt and Answer are tokens, by the engine's count; Routed are the prompt's tokens by the picker's.
	Prompt int `json:"promptTokens"`
	Answer int `json:"answerTokens"`
	Routed int `json:"routedTokens"`
	// Blind requests were routed without token ids.
	Blind bool `json:"blind,omitempty"`
	// Predicted is how many prompt tokens the picker expected the pod to find in its cache, Confirmed the part of them
	// that the pod itself had announced, and Delivered what the engine did find.
	Predicted int `json:"predictedTokens"`
	Confirmed int `json:"confirmedTokens"`
	Delivered int `json:"deliveredTokens"`
	// Held is how many prompt tokens a cache without bounds that all pods share would have held. No strategy can find more.
	Held int `json:"heldTokens"`
	// TTFT is the time to the first generated text and Total to the end of the answer, in model time.
	TTFT  time.Duration `json:"ttftNanoseconds"`
	Total time.Duration `json:"totalNanoseconds"`
}

package policy

import (
	"fmt"
	"math"
)

// approximatePrefix weighs what was routed where before against queues and KV use, and asks no engine what it holds
// ("Prefix Cache Aware Request Scheduling", a proposal of the Gateway API inference extension):
//
//	score = prefixWeight × leading chunks of the prompt that were routed to the endpoint / chunks of the prompt
//	      + queueWeight × (longest queue - queue) / (longest queue - shortest queue)
//	      + kvWeight × (1 - KV use)
//	queue = requests whose prefill has not ended, or those that the engine reports to be waiting, whichever is more
//
// The highest score is chosen, ties by requests in flight. A term that is equal for all endpoints does not count: that of
// the queues is left out when they are equal, that of the prefix for a prompt without a complete chunk.
//
// Chunks are those of the proposal: the prompt's bytes cut every chunkBytes, each named by hash(chunk i) = H(content of
// chunk i, hash(chunk i-1)) from a root that differs for each model, adapter and cache salt. Endpoints remember the chunks
// that they were sent, chunksPerEndpoint of them, and forget the least recently sent ones. The caller fills Request.Chunks
// and Candidate.Routed (package routinghistory has both hash and memory). Requests of other pickers count like
// the picker's own. Text that conversations share counts like their own: if the shared text is longer than maxChunks, all
// endpoints that ever served one match alike.
type approximatePrefix struct{ prefix, queue, kv float64 }

func newApproximatePrefix(c ApproximatePrefixConfig) (Policy, error) {
	if c.ChunkBytes < 1 || c.MaxChunks < 1 || c.ChunksPerEndpoint < 1 {
		return nil, fmt.Errorf("approximate prefix: chunks of %d bytes, %d of a prompt, %d of an endpoint: want at least 1 of each",
			c.ChunkBytes, c.MaxChunks, c.ChunksPerEndpoint)
	}
	for _, weight := range []float64{c.PrefixWeight, c.QueueWeight, c.KVWeight} {
		if !(weight >= 0) || math.IsInf(weight, 1) {
			return nil, fmt.Errorf("approximate prefix: weights %v, %v, %v: want none below 0", c.PrefixWeight, c.QueueWeight, c.KVWeight)
		}
	}
	return approximatePrefix{prefix: c.PrefixWeight, queue: c.QueueWeight, kv: c.KVWeight}, nil
}

func (p approximatePrefix) Score(r *Request, candidates []Candidate, out []Cost) {
	shortest, longest := math.MaxInt, 0
	for i := range candidates {
		n := candidates[i].queue()
		shortest, longest = min(shortest, n), max(longest, n)
	}
	chunks := math.Max(1, float64(r.Chunks))
	spread := math.Max(1, float64(longest-shortest))
	for i := range candidates {
		c := &candidates[i]
		score := p.prefix*float64(min(c.Routed, r.Chunks))/chunks +
			p.queue*float64(longest-c.queue())/spread +
			p.kv*(1-c.Load.KVUsage)
		out[i] = Cost{First: -score, Then: float64(c.Load.InFlight)}
	}
}

// queue is the number of requests that wait for their first token.
func (c *Candidate) queue() int { return max(c.Load.InFlight-c.Load.Decoding, c.Load.Waiting) }

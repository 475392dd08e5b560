// Package enginemodel is a model of a paged, prefix-caching inference engine in the manner of vLLM: a pool of
// reference-counted blocks with least-recently-used eviction, a continuous-batching scheduler with chunked prefill,
// and a time model that says how long each step takes on a given GPU.
//
// The model is pure and deterministic: it starts no goroutine, reads no clock and draws no random numbers. Time comes
// in as a parameter and the length of a step goes out, so that the same code runs in real time behind sockets
// (package vllmsim) and in virtual time in an offline lab:
//
//	r, err := e.NewRequest(spec)      // hashes the prompt; any goroutine
//	e.Add(r, now)
//	for {
//		res, ok := e.Step(now)        // schedules, computes, samples
//		if !ok { ... nothing to do: wait for the next Add ... }
//		now += res.Duration           // tokens and events of res exist from here on
//	}
//
// What is modelled after the engine:
//   - Blocks are cached, and their events queued, when a step schedules them, before it computes them, per prefill
//     chunk. Generated tokens fill blocks like prompt tokens do. The last generated token is never computed.
//   - A request for log probabilities of its prompt does not read the cache, and is cached.
//   - Only full blocks are cached. At most all but one token of a prompt is taken from the cache, so that a prompt of
//     whole blocks that is sent twice recomputes its last block, and two physical blocks then hold the same hash.
//   - A finished or aborted request's blocks keep their hashes and go to the end of the free queue tail first, so that
//     leaves are evicted before roots; blocks without a hash go to its front.
//   - Running requests are served before waiting ones, in order of arrival; when blocks run out the newest running
//     request is preempted: it loses its blocks (which stay cached until reallocated) and goes to the head of the
//     waiting queue. Nothing is reserved at admission beyond the first chunk.
//
// What is not: speculative decoding, sliding windows, multimodal inputs, priorities, several KV cache groups, and a
// second tier.
package enginemodel

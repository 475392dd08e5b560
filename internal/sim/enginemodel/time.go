package enginemodel

import (
	"fmt"
	"time"
)

// TimeModel computes how long a step takes:
//
//	max(Base, Linear*N) + Attention*sum(chunk*(context+chunk/2)) + KVRead*sum(decode context) + Overhead
//
// with N the tokens of the step (prefill chunks and one for each decoding request). Base is the time to read the
// weights once, Linear the matrix products, Attention the query-key pairs of prefill, KVRead the cache that decoding
// reads, Overhead the scheduler and the launch.
type TimeModel struct {
	Base     time.Duration
	Overhead time.Duration
	// Linear is in seconds per token, Attention in seconds per pair of tokens, KVRead in seconds per cached token.
	Linear, Attention, KVRead float64
}

// Profile is a time model and a cache size of a known deployment.
type Profile struct {
	Name string
	Time TimeModel
	// KVTokens is the capacity of the GPU's cache in tokens.
	KVTokens int
}

// The profiles: an 8B model on one H100, and a 70B model on four. Base and Linear are derived from measured kernel times
// (Vidur's published profiles), Attention from 4 x layers x width FLOP for each pair at 450 TFLOP/s, KVRead from the
// bytes of a cached token at 2.7 TB/s.
//
// The last one is a 70B model on eight L4, by their data sheet alone (300 GB/s, 121 TFLOP/s, 24 GB each): 141 GB of weights
// read at 90 % of the bandwidth, 2 FLOP for each parameter and token at 45 % of the peak, what the weights leave of
// the memory less 3 GB each for the cache at 320 KiB a token.
var profiles = []Profile{
	{
		Name: "8b-h100", KVTokens: 400_000,
		Time: TimeModel{Base: 6500 * time.Microsecond, Overhead: 2 * time.Millisecond, Linear: 22e-6, Attention: 1.2e-9, KVRead: 0.05e-6},
	},
	{
		Name: "70b-tp4-h100", KVTokens: 420_000,
		Time: TimeModel{Base: 16 * time.Millisecond, Overhead: 3 * time.Millisecond, Linear: 63e-6, Attention: 1.6e-9, KVRead: 0.035e-6},
	},
	{
		Name: "70b-tp8-l4", KVTokens: 80_000,
		Time: TimeModel{Base: 65 * time.Millisecond, Overhead: 5 * time.Millisecond, Linear: 320e-6, Attention: 6e-9, KVRead: 0.15e-6},
	},
}

// LookupProfile returns the profile with the given name.
func LookupProfile(name string) (Profile, error) {
	for _, p := range profiles {
		if p.Name == name {
			return p, nil
		}
	}
	return Profile{}, fmt.Errorf("unknown profile %q (known: %v)", name, ProfileNames())
}

// ProfileNames lists the profiles.
func ProfileNames() []string {
	names := make([]string, len(profiles))
	for i, p := range profiles {
		names[i] = p.Name
	}
	return names
}

// work is what a step computes, in the terms of the time model.
type work struct {
	tokens  int     // prefill chunks and decodes
	pairs   float64 // sum of chunk*(context+chunk/2)
	context float64 // sum of the decodes' contexts

	// What an uneven engine counts besides.
	unevenPairs      float64
	decodes, longest int // number of decodes, and the longest of their contexts
}

func (w *work) prefill(chunk, context int) {
	w.tokens += chunk
	w.pairs += float64(chunk) * (float64(context) + float64(chunk)/2)
	w.unevenPairs += unevenPairs(chunk, context)
}

func (w *work) decode(context int) {
	w.tokens++
	w.context += float64(context)
	w.decodes++
	w.longest = max(w.longest, context)
}

// duration of a step that does w; a step without tokens takes no time.
func (m TimeModel) duration(w work) time.Duration {
	if w.tokens == 0 {
		return 0
	}
	linear := max(m.Base.Seconds(), m.Linear*float64(w.tokens))
	return m.Overhead + time.Duration((linear+m.Attention*w.pairs+m.KVRead*w.context)*1e9)
}

// Prefill is the time that prefilling tokens takes alone when the first cached of them are cached, in chunks of at
// most budget tokens.
func (m TimeModel) Prefill(tokens, cached, budget int) time.Duration {
	var sum time.Duration
	for at := cached; at < tokens; {
		var w work
		chunk := min(tokens-at, budget)
		w.prefill(chunk, at)
		sum += m.duration(w)
		at += chunk
	}
	return sum
}

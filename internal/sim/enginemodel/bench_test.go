package enginemodel

import "testing"

// BenchmarkPrefill measures block operations in a full pool: every prompt of 750 blocks hits half of them and evicts
// as many as it stores.
func BenchmarkPrefill(b *testing.B) {
	const prompt, blocks = 12_000, 12_000 / DefaultBlockSize
	e := newEngine(b, Config{NumBlocks: 25_000})
	shared := sequence(1, prompt/2)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		tokens := make([]uint32, 0, prompt+64)
		tokens = append(tokens, shared...)
		tokens = append(tokens, sequence(n*prompt, prompt/2)...)
		r := newRequest(b, e, Spec{Prompt: tokens, MaxTokens: 1})
		e.Add(r, 0)
		for e.Busy() {
			e.Step(0)
		}
	}
	b.ReportMetric(float64(blocks)*float64(n)/b.Elapsed().Seconds(), "blocks/s")
}

// BenchmarkDecode measures steps of 64 decoding requests.
func BenchmarkDecode(b *testing.B) {
	e := newEngine(b, Config{NumBlocks: 25_000})
	b.ReportAllocs()
	live, n, next := 0, 0, 0
	for b.Loop() {
		for ; live < 64; live++ {
			next += 1000
			e.Add(newRequest(b, e, Spec{Prompt: sequence(next, 500), MaxTokens: 300}), 0)
		}
		res, _ := e.Step(0)
		n += res.DecodeTokens
		for _, o := range res.Outputs {
			if o.Last {
				live--
			}
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "tokens/s")
}

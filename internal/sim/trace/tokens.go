package trace

const (
	// FirstToken is the lowest id of a made-up token: above the special tokens of models.
	FirstToken = 1_000
	// EndToken is above the highest id of a made-up token, and inside the vocabulary of any model.
	EndToken = 31_000
)

// AppendTokens appends a prompt of length tokens with the given blocks to dst. The same id always gives the same 512
// tokens, and ids give unrelated ones, so that two prompts share a prefix exactly as far as their ids are equal. The
// last block can be cut. Blocks that length does not reach are ignored; length must not exceed the blocks.
func AppendTokens(dst []uint32, blocks []int, length int) []uint32 {
	for _, id := range blocks {
		n := min(length, BlockTokens)
		state := mix(uint64(id) + 1)
		for range n {
			state += 0x9e3779b97f4a7c15
			dst = append(dst, FirstToken+uint32(mix(state)>>32)%(EndToken-FirstToken))
		}
		length -= n
	}
	return dst
}

// mix is the finaliser of SplitMix64: a bijection that scatters neighbours.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

package kvindex

import "github.com/kvasir-dev/kvasir/internal/kvblock"

// Holder names an endpoint in the index. Holders are never used twice.
type Holder uint32

// Match is how many leading blocks of a request a holder has without a gap, by where they lie. A block in several
// places counts once, for the nearest; a speculative block counts only where it is not confirmed.
type Match struct {
	// Tiers counts the confirmed blocks by tier.
	Tiers [kvblock.NumTiers]uint32
	// Speculative counts the blocks assumed because a request with them has just been routed there.
	Speculative uint32
}

// Confirmed is the number of matching blocks that the pod itself has announced.
func (m *Match) Confirmed() int {
	n := 0
	for _, blocks := range m.Tiers {
		n += int(blocks)
	}
	return n
}

// Blocks is the length of the gapless match in blocks, confirmed and speculative together.
func (m *Match) Blocks() int { return m.Confirmed() + int(m.Speculative) }

// Credit is the length of the match in GPU blocks: blocks of lower tiers count by weight, speculative ones in full.
func (m *Match) Credit(weight *[kvblock.NumTiers]float64) float64 {
	credit := float64(m.Speculative)
	for tier, blocks := range m.Tiers {
		credit += weight[tier] * float64(blocks)
	}
	return credit
}

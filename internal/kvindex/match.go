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

// Plus returns the sum of two matches, of prompts that have nothing in common.
func (m Match) Plus(other Match) Match {
	for tier, blocks := range other.Tiers {
		m.Tiers[tier] += blocks
	}
	m.Speculative += other.Speculative
	return m
}

// Whole returns what is left of the match when only the first most blocks can be used, and only a multiple of grain: an
// engine whose block is several key blocks long reuses whole engine blocks. Blocks are dropped from the speculative part
// first and then from the slowest tier, since these are at the end of nearly every match.
func (m Match) Whole(most, grain int) Match {
	n := m.Blocks()
	if grain = max(1, grain); grain == 1 && n <= most {
		return m
	}
	want := max(0, min(n, most))
	over := uint32(n - want + want%grain) // a match counts in 32 bits
	cut := min(over, m.Speculative)
	m.Speculative -= cut
	m.takeSlowest(over - cut)
	if odd := uint32(m.Confirmed() % grain); odd > 0 { // less than grain
		m.takeSlowest(odd) // a guess completes the engine's block
		m.Speculative += odd
	}
	return m
}

// takeSlowest takes n confirmed blocks away, from the slowest tier on.
func (m *Match) takeSlowest(n uint32) {
	for tier := len(m.Tiers) - 1; tier >= 0 && n > 0; tier-- {
		cut := min(n, m.Tiers[tier])
		m.Tiers[tier] -= cut
		n -= cut
	}
}

// Credit is the length of the match in GPU blocks: blocks of lower tiers count by weight, speculative ones in full.
func (m *Match) Credit(weight *[kvblock.NumTiers]float64) float64 {
	credit := float64(m.Speculative)
	for tier, blocks := range m.Tiers {
		credit += weight[tier] * float64(blocks)
	}
	return credit
}

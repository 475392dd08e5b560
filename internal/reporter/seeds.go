package reporter

import (
	"slices"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// Seeds are the roots of keys that the pool's pickers have announced. Those of a picker that cannot be reached stay for as long as it is
// one of the pool.
func (r *Reporter) Seeds() (seeds []kvblock.Seed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pickers {
		for _, seed := range p.announced() {
			if !slices.Contains(seeds, seed) {
				seeds = append(seeds, seed)
			}
		}
	}
	return seeds
}

// announced are the seeds that the picker has announced last.
func (p *picker) announced() []kvblock.Seed {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, sender := range p.senders {
		if sender != nil {
			if seeds := sender.Seeds(); len(seeds) > 0 {
				return seeds
			}
		}
	}
	return p.seeds
}

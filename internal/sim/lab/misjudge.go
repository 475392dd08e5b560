package lab

import (
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// maker makes a run's strategy.
func (c *Config) maker() func(policy.Config) (policy.Policy, error) {
	build := c.NewStrategy
	if build == nil {
		build = policy.New
	}
	factor := c.Strategy.RateError
	if factor == 0 || factor == 1 {
		return build
	}
	return func(p policy.Config) (policy.Policy, error) {
		made, err := build(p)
		return misjudging{made, factor}, err
	}
}

// misjudging takes every endpoint's prefill rate for factor times what was learned: how much depends on knowing it?
type misjudging struct {
	policy.Policy
	factor float64
}

func (m misjudging) Score(r *policy.Request, candidates []policy.Candidate, out []policy.Cost) {
	seen := make([]policy.Candidate, len(candidates))
	copy(seen, candidates)
	for i := range seen {
		seen[i].Load.Rate *= m.factor
		seen[i].Load.PairSeconds /= m.factor
	}
	m.Policy.Score(r, seen, out)
}

package lab

import (
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// Misjudging makes strategies that take every endpoint's prefill rate for factor times what was learned: how much
// depends on knowing it?
func Misjudging(factor float64) func(policy.Config) (policy.Policy, error) {
	return func(c policy.Config) (policy.Policy, error) {
		p, err := policy.New(c)
		if err != nil || factor == 1 {
			return p, err
		}
		return misjudging{p, factor}, nil
	}
}

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

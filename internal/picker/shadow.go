package picker

import (
	"fmt"
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/policy"
)

// ShadowSpec is a strategy that is scored on live requests and compared, never acted on.
type ShadowSpec struct {
	Name     string
	Strategy policy.Config
	// Percent of requests that are scored, 1 to 100.
	Percent int
}

// shadow is a strategy that is compared.
type shadow struct {
	spec     ShadowSpec
	strategy policy.Policy
	stats    *shadowStats
}

type shadowStats struct {
	sampler          sampler
	compared, agreed atomic.Int64
	saved, lost      atomic.Int64 // nanoseconds
}

// ShadowStats compare a shadow strategy with the applied one, since the shadow was added.
type ShadowStats struct {
	Name, Strategy string
	// Compared requests, and those for which both chose the same endpoint.
	Compared, Agreed int64
	// SavedSeconds is how much sooner the first tokens would have arrived under the shadow's choices, and LostSeconds how
	// much later, as predicted (policy.Predict). It is an estimate of one request at a time, in a fleet where the applied
	// strategy has chosen for all others: how the shadow would have changed caches and queues is not included.
	SavedSeconds, LostSeconds float64
}

// yardstick estimates what a choice costs, in seconds, whatever strategy is applied.
var yardstick = mustPolicy(policy.Config{Type: policy.MarginalCost, MarginalCost: policy.MarginalCostConfig{DecodeHarm: 1}})

func mustPolicy(c policy.Config) policy.Policy {
	p, err := policy.New(c)
	if err != nil {
		panic(err)
	}
	return p
}

// shadows makes the shadows of a spec; those that stay as they are keep their state and their counters.
func shadows(spec *Spec, old *view) ([]*shadow, error) {
	var list []*shadow
	for _, s := range spec.Policy.Shadows {
		if kept := old.shadow(s); kept != nil {
			list = append(list, kept)
			continue
		}
		strategy, err := policy.New(s.Strategy)
		if err != nil {
			return nil, fmt.Errorf("shadow %s: %w", s.Name, err)
		}
		list = append(list, &shadow{spec: s, strategy: strategy, stats: new(shadowStats)})
	}
	return list, nil
}

// shadow finds a shadow that is as s wants it.
func (v *view) shadow(s ShadowSpec) *shadow {
	if v != nil {
		for _, known := range v.shadows {
			if known.spec == s {
				return known
			}
		}
	}
	return nil
}

// compare scores the shadows on a request for which s.order has been chosen.
func (v *view) compare(s *scratch, p *prompt, question *policy.Request) {
	judged, recalled := false, v.history
	for i, shadow := range v.shadows {
		if !shadow.stats.sampler.takes(shadow.spec.Percent) {
			continue
		}
		if !judged {
			judged = true
			s.predicted = resize(s.predicted, len(s.candidates))
			policy.Predict(question, s.candidates, s.predicted)
		}
		s.shadowCosts = resize(s.shadowCosts, len(s.candidates))
		if h := v.shadowHistories[i]; h != fallback && h != recalled {
			v.matchHistory(s, p, question, h)
			recalled = h
		}
		shadow.strategy.Score(question, s.candidates, s.shadowCosts)
		s.shadowOrder = policy.Rank(question, s.candidates, s.shadowCosts, s.shadowOrder, 1)
		acted, would := s.order[0], s.shadowOrder[0]
		shadow.stats.compared.Add(1)
		if acted == would {
			shadow.stats.agreed.Add(1)
			continue
		}
		if saved := s.predicted[acted] - s.predicted[would]; saved > 0 {
			shadow.stats.saved.Add(nanoseconds(saved))
		} else {
			shadow.stats.lost.Add(nanoseconds(-saved))
		}
	}
	if recalled != v.history {
		v.matchHistory(s, p, question, v.history)
	}
}

// nanoseconds of so many seconds, at most an hour.
func nanoseconds(seconds float64) int64 { return int64(min(seconds, 3600) * 1e9) }

func (v *view) shadowStats() []ShadowStats {
	var all []ShadowStats
	for _, s := range v.shadows {
		all = append(all, ShadowStats{
			Name: s.spec.Name, Strategy: string(s.spec.Strategy.Type), Compared: s.stats.compared.Load(), Agreed: s.stats.agreed.Load(),
			SavedSeconds: float64(s.stats.saved.Load()) / 1e9, LostSeconds: float64(s.stats.lost.Load()) / 1e9,
		})
	}
	return all
}

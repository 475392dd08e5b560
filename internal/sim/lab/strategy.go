package lab

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/policy"
)

// Strategy is what a run tests: a strategy with its parameters, and perhaps a workload that is cut for it.
type Strategy struct {
	Name   string
	Config policy.Config
	// MaxTurns is the most turns of a session that are sent; 0 sends all.
	MaxTurns int
	// RateError is how many times as fast as learned the strategy takes engines for; 0 is 1.
	RateError float64
}

// cappedTurns is the cap of the B3 policies' "capped".
const cappedTurns = 8

// five are the five policies of the B3 sweep, by the names that it gives them. They are what it says, literally.
var five = []string{"lmetric", "load_only", "sticky", "unified", "capped"}

// Strategies finds strategies by name: those of a RoutingPolicy with its defaults, the variants "LMetric/literal",
// "LongestPrefix/literal", "Rendezvous/prefix" and "ApproximatePrefix/long" (4096 chunks of a prompt), and the names of the
// B3 routing policies: lmetric, load_only, sticky, unified and capped ("five" names all of them). "all" is every strategy
// of a RoutingPolicy. A number behind a star, as in "MarginalCost*4", is the factor by which the strategy overestimates the
// learned speed of engines.
func Strategies(names string) ([]Strategy, error) {
	var list []Strategy
	for name := range strings.SplitSeq(names, ",") {
		switch name = strings.TrimSpace(name); name {
		case "five":
			for _, n := range five {
				s, err := strategy(n)
				if err != nil {
					return nil, err
				}
				list = append(list, s)
			}
			continue
		case "all":
			for _, t := range policy.Types() {
				list = append(list, Strategy{Name: string(t), Config: policy.Default(t)})
			}
			continue
		}
		s, err := strategy(name)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

func strategy(name string) (Strategy, error) {
	if plain, factor, ok := strings.Cut(name, "*"); ok {
		s, err := strategy(plain)
		if err == nil {
			s.RateError, err = strconv.ParseFloat(factor, 64)
		}
		if err != nil || !(s.RateError > 0) {
			return s, fmt.Errorf("no strategy is called %q", name)
		}
		s.Name += "*" + factor
		return s, nil
	}
	s := Strategy{Name: name}
	of := policy.Default
	switch name {
	case "lmetric", "LMetric/literal":
		s.Config = of(policy.LMetric)
		s.Config.LMetric.Literal = true
	case "capped":
		s.Config, s.MaxTurns = of(policy.LMetric), cappedTurns
		s.Config.LMetric.Literal = true
	case "load_only":
		s.Config = of(policy.LeastLoad)
	case "sticky":
		s.Config = of(policy.Sticky)
	case "unified":
		s.Config = of(policy.Unified)
	case "LongestPrefix/literal":
		s.Config = of(policy.LongestPrefix)
		s.Config.LongestPrefix.Literal = true
	case "ApproximatePrefix/long":
		s.Config = of(policy.ApproximatePrefix)
		s.Config.ApproximatePrefix.MaxChunks = 4096
	case "Rendezvous/prefix":
		s.Config = of(policy.Rendezvous)
		s.Config.Rendezvous.ByPrefix = true
	default:
		for _, t := range policy.Types() {
			if strings.EqualFold(name, string(t)) {
				s.Name, s.Config = string(t), of(t)
				return s, nil
			}
		}
		return s, fmt.Errorf("no strategy is called %q", name)
	}
	return s, nil
}

package picker

import (
	"math"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// Where a request can go besides what an endpoint holds and has to do: LoRA adapters, and islands.

const (
	// adapterLoad is what it takes to bring an adapter that no request uses into an engine's memory, adapterWait how
	// long one waits for its turn where as many run as can. Both are rough: what matters is that they are more than
	// nothing and less than a long prefill.
	adapterLoad = 200 * time.Millisecond
	adapterWait = 2 * time.Second
)

// Crossing defines when a request is allowed to leave the picker's island.
type Crossing uint8

// The rules.
const (
	// CrossWhenCheaper counts the way: what is faster all the same is taken.
	CrossWhenCheaper Crossing = iota
	// CrossAsLastResort leaves the island when no endpoint of it is eligible.
	CrossAsLastResort
	// CrossNever stays.
	CrossNever
)

// place is what decides where a request can go besides.
type place struct {
	v *view
	// adapter that the request is for; empty for the base model.
	adapter string
	// having are the endpoints that are known to have the adapter; nil when that is not known of any.
	having map[endpoint.ID]bool
	// prefills: the request is to be prefilled only. Otherwise it is to be decoded.
	prefills bool
}

// place looks up what is known of the model of a request.
func (v *view) place(model string) place {
	p := place{v: v}
	if v.identity(model) == v.spec.Model {
		return p
	}
	p.adapter = model
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, models := range v.listed {
		if v.spec.DiscoverAdapters && hasAdapter(models, model) {
			if p.having == nil {
				p.having = map[endpoint.ID]bool{}
			}
			p.having[id] = true
		}
	}
	return p
}

// allows reports whether an endpoint can serve the request at all: engines refuse adapters that they do not have.
func (p *place) allows(ep *endpoint.Endpoint) bool {
	if !p.suits(ep) || p.having != nil && !p.having[ep.ID] {
		return false
	}
	return p.v.spec.Policy.Crossing != CrossNever || p.home(ep)
}

// suits reports whether an endpoint has a role for the request.
func (p *place) suits(ep *endpoint.Endpoint) bool {
	if p.prefills {
		return ep.Role.Prefills()
	}
	return ep.Role.Decodes()
}

// prefers reports whether an endpoint ranks before those for which it is false.
func (p *place) prefers(ep *endpoint.Endpoint) bool {
	return p.v.spec.Policy.Crossing != CrossAsLastResort || p.home(ep)
}

// home reports whether an endpoint is in the picker's island. Without an island of its own every endpoint is.
func (p *place) home(ep *endpoint.Endpoint) bool {
	return p.v.island == "" || ep.Island == "" || ep.Island == p.v.island
}

// delay is what the endpoint costs the request besides, in seconds: the way there and back, and bringing its adapter in.
func (p *place) delay(ep *endpoint.Endpoint, l *load.View) float64 {
	if p.adapter == "" && len(p.v.spec.Islands) == 0 {
		return 0
	}
	d := time.Duration(0)
	if p.v.island == "" || ep.Island != p.v.island {
		d = p.v.spec.Islands[ep.Island]
	}
	if p.adapter != "" && l.MaxAdapters > 0 {
		running, here := 0, false
		for name := range strings.SplitSeq(l.Adapters, ",") {
			if name = strings.TrimSpace(name); name != "" {
				running++
				here = here || name == p.adapter
			}
		}
		switch {
		case here:
		case running < l.MaxAdapters:
			d += adapterLoad
		default:
			d += adapterWait
		}
	}
	return d.Seconds()
}

// keepInIsland takes out the endpoints of other islands when none of them is worth the way, for strategies that do not count in
// seconds and would go there for less. It judges by the estimate of MarginalCost, which does.
func (v *view) keepInIsland(s *scratch, question *policy.Request) {
	at := place{v: v}
	if v.island == "" || v.spec.Policy.Crossing != CrossWhenCheaper || v.spec.Policy.Strategy.Type == policy.MarginalCost {
		return
	}
	s.estimates = resize(s.estimates, len(s.candidates))
	yardstick.Score(question, s.candidates, s.estimates)
	home, away := math.Inf(1), math.Inf(1)
	for i, cost := range s.estimates {
		if at.home(&v.spec.Endpoints[s.index[i]]) {
			home = min(home, cost.First)
		} else {
			away = min(away, cost.First)
		}
	}
	if math.IsInf(home, 1) || away < home {
		return
	}
	s.keep(func(c int) bool { return at.home(&v.spec.Endpoints[s.index[c]]) })
}

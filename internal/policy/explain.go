package policy

import "math"

// Term is a part of a cost. Unit is seconds, tokens, blocks, chunks or requests; empty for a factor.
type Term struct {
	Name  string
	Value float64
	Unit  string
}

// Explanation is what the costs of a strategy are made of, for people.
type Explanation struct {
	// Unit of the costs.
	Unit string
	// Fleet are the terms that all candidates have in common, Candidates those of each.
	Fleet      []Term
	Candidates [][]Term
}

// Explain reports what a strategy makes its costs of. It is not for the hot path.
func Explain(p Policy, r *Request, candidates []Candidate) Explanation {
	e := Explanation{Candidates: make([][]Term, len(candidates))}
	var each func(c *Candidate) []Term
	switch p := p.(type) {
	case marginalCost:
		p.explain(r, candidates, &e)
		return e
	case longestPrefix:
		e.Unit = "blocks"
		if !p.literal {
			e.Fleet = []Term{{"most-in-flight", p.maxLoad * math.Max(1, meanInFlight(candidates)), "requests"}}
		}
		each = func(c *Candidate) []Term {
			return []Term{{"match", math.Min(c.Match.Credit(&r.Credit), float64(r.Blocks)), "blocks"}, pending(c), inFlight(c)}
		}
	case lMetric, leastPendingWork:
		e.Unit = "tokens"
		each = func(c *Candidate) []Term { return []Term{pending(c), uncached(r, c), inFlight(c)} }
	case *unified:
		e.Unit = "tokens"
		e.Fleet = []Term{{"most-in-flight", p.maxLoad * math.Max(1, meanInFlight(candidates)), "requests"}}
		each = func(c *Candidate) []Term { return []Term{pending(c), uncached(r, c), inFlight(c), home(r, c)} }
	case sticky:
		each = func(c *Candidate) []Term { return []Term{home(r, c), inFlight(c)} }
	case stickyLeastLoaded:
		each = func(c *Candidate) []Term {
			return []Term{{"match", float64(c.Match.Blocks()), "blocks"}, inFlight(c)}
		}
	case leastLoad:
		e.Unit = "requests"
		each = func(c *Candidate) []Term { return []Term{inFlight(c)} }
	case approximatePrefix:
		e.Fleet = []Term{{"chunks", float64(r.Chunks), "chunks"}}
		each = func(c *Candidate) []Term {
			return []Term{{"routed", float64(min(c.Routed, r.Chunks)), "chunks"}, {"queue", float64(c.queue()), "requests"},
				{"kv-usage", c.Load.KVUsage, ""}}
		}
	default: // by turns, by chance, or by hashes alone
		each = func(*Candidate) []Term { return nil }
	}
	for i := range candidates {
		e.Candidates[i] = each(&candidates[i])
	}
	return e
}

func pending(c *Candidate) Term  { return Term{"pending", c.Load.PendingTokens, "tokens"} }
func inFlight(c *Candidate) Term { return Term{"in-flight", float64(c.Load.InFlight), "requests"} }

func uncached(r *Request, c *Candidate) Term {
	return Term{"uncached", float64(r.Uncached(c)), "tokens"}
}

// home is 1 for the endpoint of the session's last request.
func home(r *Request, c *Candidate) Term {
	if r.Home != 0 && r.Home == c.Hash {
		return Term{"home", 1, ""}
	}
	return Term{"home", 0, ""}
}

// explain computes the terms of
//
//	cost = (wait + reload + lack + own + wasted + evicted) × crowd + delay
//	wasted = waste × (own - least),  evicted = evict × fresh × token
func (p marginalCost) explain(r *Request, candidates []Candidate, e *Explanation) {
	fleet := p.fleet(candidates)
	waste, reuse, least := wasteOf(candidates), reuseOf(candidates), math.Inf(1)
	for i := range candidates {
		least = min(least, fleet.own(r, &candidates[i]))
	}
	e.Unit = "seconds"
	e.Fleet = []Term{{"waste", waste, ""}, {"reuse", reuse, ""}, {"least", least, "seconds"}, {"token", fleet.PerToken, "seconds"}}
	for i := range candidates {
		c := &candidates[i]
		own := fleet.own(r, c)
		e.Candidates[i] = []Term{
			{"wait", fleet.wait(c), "seconds"}, {"reload", r.reload(c), "seconds"}, {"lack", fleet.PerToken * r.lack(c), "seconds"},
			{"own", own, "seconds"}, {"wasted", waste * (own - least), "seconds"},
			{"evicted", fleet.PerToken * evict(c, reuse) * float64(r.fresh(c)), "seconds"},
			{"crowd", 1 + crowding*p.harm*float64(c.Load.InFlight), ""}, {"delay", c.Delay, "seconds"},
		}
	}
}

// Parts reports what the cost of candidate i is made of by a MarginalCost strategy, in seconds. They add up to the cost, but for the
// steps in which costs are compared. It returns nil for other strategies.
func Parts(p Policy, r *Request, candidates []Candidate, i int) []Term {
	m, ok := p.(marginalCost)
	if !ok {
		return nil
	}
	fleet, c, least := m.fleet(candidates), &candidates[i], math.Inf(1)
	for j := range candidates {
		least = min(least, fleet.own(r, &candidates[j]))
	}
	own := fleet.own(r, c)
	parts := []Term{
		{"wait", fleet.wait(c), "seconds"}, {"prefill", own, "seconds"}, {"reload", r.reload(c), "seconds"},
		{"lack", fleet.PerToken * r.lack(c), "seconds"}, {"wasted", wasteOf(candidates) * (own - least), "seconds"},
		{"evicted", fleet.PerToken * evict(c, reuseOf(candidates)) * float64(r.fresh(c)), "seconds"},
	}
	sum := 0.0
	for _, t := range parts {
		sum += t.Value
	}
	return append(parts, Term{"harm", sum * crowding * m.harm * float64(c.Load.InFlight), "seconds"}, Term{"delay", c.Delay, "seconds"})
}

// TakesTurns reports whether a strategy chooses differently each time that it is asked.
func TakesTurns(p Policy) bool {
	switch p.(type) {
	case *roundRobin, *random, *unified:
		return true
	}
	return false
}

// Still is a strategy that chooses as p does now; asking it does not move p's turns on.
func Still(p Policy) Policy {
	switch p := p.(type) {
	case *roundRobin:
		still := new(roundRobin)
		still.turn.Store(p.turn.Load())
		return still
	case *random:
		still := &random{seed: p.seed}
		still.turn.Store(p.turn.Load())
		return still
	case *unified:
		still := &unified{minHit: p.minHit, maxLoad: p.maxLoad}
		still.turn.Store(p.turn.Load())
		return still
	}
	return p
}

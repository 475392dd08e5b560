package picker

import "github.com/kvasir-dev/kvasir/internal/kvindex"

// match looks the request's blocks up for every candidate. Blocks that are not certainly held count half. The strategy does
// not see matches that are distrusted, or that the request cannot use because the engine reads no cache for it; for
// distrusted endpoints, what was routed before takes their place. Some picks probe distrusted matches.
func (v *view) match(s *scratch, p *prompt, probing bool) {
	v.matchKeys(s, p, probing)
	v.approximate(s, p)
}

// matchKeys is match without approximations: for requests that have keys.
func (v *view) matchKeys(s *scratch, p *prompt, probing bool) {
	s.holders = s.holders[:0]
	for _, i := range s.index {
		s.holders = append(s.holders, v.holders[i])
	}
	v.lookUp(s, p)
	s.ignored = resize(s.ignored, len(s.candidates))
	class := p.class()
	for i := range s.candidates {
		c, m := &s.candidates[i], v.members[s.index[i]]
		s.ignored[i] = !m.trust.believes(class, probing)
		switch {
		case s.ignored[i] || p.noRead:
			c.Match = kvindex.Match{}
		case m.doubted.Load():
			c.Match = v.whole(m, half(s.matches[i]), p.total())
		default:
			c.Match = s.matches[i]
		}
	}
}

// half is a match whose confirmed blocks count half.
func half(m kvindex.Match) kvindex.Match {
	for tier := range m.Tiers {
		m.Tiers[tier] /= 2
	}
	return m
}

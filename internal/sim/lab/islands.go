package lab

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Islands are where the pods of a fleet lie. The pickers are at home.
type Islands struct {
	// Away is how many of the pods lie on another island.
	Away int
	// Way is how long a request takes there and its answer back, in sum.
	Way time.Duration
	// Crossing reports when pickers send a request there.
	Crossing picker.Crossing
	// Unknown leaves out of what the pickers know that there are islands.
	Unknown bool
}

// The names of the islands.
const (
	home = "home"
	away = "away"
)

// island of a pod.
func (s *sim) island(pod int) string {
	if pod < s.Pods-s.Islands.Away {
		return home
	}
	return away
}

// way is how long it takes to a pod, or back.
func (s *sim) way(pod int) time.Duration {
	if s.island(pod) == home {
		return 0
	}
	return s.Islands.Way / 2
}

// settle enters the islands into what pickers know of a pool.
func (s *sim) settle(spec *picker.Spec) {
	if s.Islands.Away == 0 || s.Islands.Unknown {
		return
	}
	spec.Islands = map[string]time.Duration{home: 0, away: s.Islands.Way}
	spec.Policy.Crossing = s.Islands.Crossing
	for i := range spec.Endpoints {
		spec.Endpoints[i].Island = s.island(i)
	}
}

// travel lets a request arrive at its pod after the way there.
func (s *sim) travel(slot int) {
	x := s.live[slot]
	if way := s.way(x.pod); way > 0 {
		s.agenda.add(s.now+way, reached, slot)
		return
	}
	s.hand(x)
}

// answer lets what a pod has said of a request reach the picker after the way back: its first token, or its end.
func (s *sim) answer(what kind, slot int) {
	if way := s.way(s.live[slot].pod); way > 0 {
		s.agenda.add(s.now+way, what, slot)
		return
	}
	s.answered(what, slot)
}

// answered handles the first token or the end of an answer from there.
func (s *sim) answered(what kind, slot int) {
	if what == begins {
		s.begin(slot)
	} else {
		s.end(slot)
	}
}

// Distance are the variants of what pickers do about the way to another island: they price it and go there where that is
// faster all the same, go there when nothing else is left, never, or know nothing of it.
func Distance() []Variant {
	crossing := func(c picker.Crossing) func(*Config) { return func(at *Config) { at.Islands.Crossing = c } }
	return []Variant{
		{"distance priced", crossing(picker.CrossWhenCheaper)},
		{"distance unknown", func(c *Config) { c.Islands.Unknown = true }},
		{"as a last resort", crossing(picker.CrossAsLastResort)},
		{"never", crossing(picker.CrossNever)},
	}
}

package lab

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// Stall is a time in which a pod computes nothing: it accepts requests and answers to scrapes, and nothing else. Requests
// that were sent there wait until it is over. (A proxy takes those that have not begun elsewhere; the lab has none.)
type Stall struct {
	Pod     int
	At, For time.Duration
}

// stalledUntil is when the stall of a pod is over; 0 if it does not stall now.
func (s *sim) stalledUntil(pod int) time.Duration {
	x := &s.Stall
	if end := x.At + x.For; pod == x.Pod && s.now >= x.At && s.now < end {
		return end
	}
	return 0
}

// holdStep delays the end of a pod's step, or its next one, until its stall is over. It reports whether it stalls.
func (s *sim) holdStep(i int) bool {
	end := s.stalledUntil(i)
	if end == 0 {
		return false
	}
	p := s.pods[i]
	if !p.busy {
		p.busy, p.result = true, enginemodel.StepResult{}
	}
	s.agenda.add(end, stepEnd, i)
	return true
}

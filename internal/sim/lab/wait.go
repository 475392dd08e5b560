package lab

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// lookEvery is how often pickers look whether those that wait have room, as in the picker.
const lookEvery = 5 * time.Millisecond

// waiting is a request that waits in a picker because the fleet is full.
type waiting struct {
	wait    *picker.Wait
	i       int // the request
	picker  int
	arrived time.Duration
	routing *picker.Routing // nil without a route
}

// wait lets a request wait.
func (s *sim) wait(w waiting) {
	s.waiting = append(s.waiting, w)
	if len(s.waiting) == 1 {
		s.agenda.add(s.now+lookEvery, looks, 0)
	}
	s.poll() // it might have been refused at once, or have taken another's place
}

// look lets pickers look at what time has changed.
func (s *sim) look() {
	for _, p := range s.pickers {
		p.Look()
	}
	s.poll()
	if len(s.waiting) > 0 {
		s.agenda.add(s.now+lookEvery, looks, 0)
	}
}

// poll sends the requests whose wait is over, until none is left: each makes room for a look at the next. Those that were refused go
// to a fallback of their route, if they have one.
func (s *sim) poll() {
	for again := true; again; {
		again = false
		kept := s.waiting[:0]
		var refused []waiting
		var why []error
		for _, w := range s.waiting {
			d, over, err := w.wait.Poll()
			switch {
			case !over:
				kept = append(kept, w)
				continue
			case err != nil && w.routing != nil:
				refused, why = append(refused, w), append(why, err)
			default:
				s.send(w.i, s.Workload.Requests[w.i].Prompt(), d, err, w.arrived)
			}
			again = true
		}
		clear(s.waiting[len(kept):])
		s.waiting = kept
		for i, w := range refused {
			if !s.fallBack(w, why[i]) {
				s.send(w.i, nil, nil, why[i], w.arrived)
			}
		}
	}
}

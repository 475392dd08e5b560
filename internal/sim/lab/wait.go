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

// poll sends the requests whose wait is over, until none is left: each makes room for a look at the next.
func (s *sim) poll() {
	for again := true; again; {
		again = false
		kept := s.waiting[:0]
		for _, w := range s.waiting {
			d, over, err := w.wait.Poll()
			if !over {
				kept = append(kept, w)
				continue
			}
			again = true
			s.send(w.i, s.Workload.Requests[w.i].Prompt(), d, err, w.arrived)
		}
		clear(s.waiting[len(kept):])
		s.waiting = kept
	}
}

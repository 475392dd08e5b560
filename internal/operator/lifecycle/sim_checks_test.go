package lifecycle

import (
	"fmt"
	"strings"
	"time"
)

// do executes an action with its preconditions.
func (s *sim) do(v view, a Action) bool {
	s.kinds[kind{a.Kind, a.Cause}]++
	if a.Kind == Create {
		for _, p := range s.pods {
			if p.Name == a.Name {
				s.say("%s exists", a.Name)
				return false
			}
		}
		s.uid++
		p := &simPod{Pod: Pod{
			UID: fmt.Sprintf("u%04d", s.uid), Name: a.Name, Slot: a.Slot, Revision: a.Revision, Island: a.Island, Created: s.now,
			WarmGate: v.pool.WarmUp > 0, Ends: a.Ends, Moves: a.Moves, Role: a.Role,
		}, bad: strings.HasPrefix(a.Revision, "bad"), next: s.now.Add(s.between(time.Second, 10*time.Second))}
		s.pods[p.UID] = p
		s.touch(p)
		s.say("create %s on %s", a.Name, a.Island)
		s.checkSurge(v.pool, p)
		return true
	}
	if a.Kind == WarmUp {
		if _, ok := s.warming[a.UID]; !ok {
			s.warming[a.UID] = s.now.Add(s.between(time.Second, 2*time.Minute))
		}
		return true
	}
	p := s.pods[a.UID]
	if p == nil || p.version != v.at2[a.UID] {
		s.say("conflict: %v of %s", a.Kind, a.Name)
		return false
	}
	switch a.Kind {
	case SetMark:
		p.Mark, p.Readings = a.Mark, nil
		s.say("mark %s %s: %s", a.Name, a.Mark.Reason, a.Why)
		s.touch(p)
		s.checkFloor(v.pool, p, a)
	case Unmark:
		p.Mark = Mark{}
		s.say("unmark %s", a.Name)
		s.touch(p)
	case Show:
		p.Shown = a.Shown
		s.touch(p)
	case Delete:
		if p.Running && p.busy() > 0 && s.now.Before(p.Mark.Deadline) || p.Running && p.Mark.Reason == "" {
			s.fail("%s is deleted with %d requests, %+v", p.Name, p.busy(), p.Mark)
		}
		p.Deleting, p.gone = true, s.now.Add(s.between(time.Second, 5*time.Second))
		s.say("delete %s: %s %s", a.Name, a.Cause, a.Why)
		s.touch(p)
	}
	return true
}

// checkFloor looks whether a planned change leaves enough pods that serve.
func (s *sim) checkFloor(pool Pool, p *simPod, a Action) {
	if !p.Ready || a.Cause == CauseNodeDies || s.now.Sub(s.unplan) <= 2*simLag {
		return
	}
	if s.roles != nil {
		s.roles.checkFloor(s, p)
		return
	}
	n := 0
	for _, q := range s.pods {
		if q.serving() {
			n++
		}
	}
	if n < pool.Size-pool.Unavailable {
		s.fail("%d pods serve after the mark of %s, %d wanted, %d may be missing", n, p.Name, pool.Size, pool.Unavailable)
	}
}

// checkSurge checks that there are not more pods than allowed. Pods that are being deleted for good do not count.
func (s *sim) checkSurge(pool Pool, made *simPod) {
	if s.now.Sub(s.unplan) <= 2*simLag {
		return
	}
	n, ofRole := 0, 0
	for _, p := range s.pods {
		lost := p.Assigned && s.nodes[p.node] == NodeUnready && !p.Ready // takes no place
		if !lost && !p.Deleting && !p.Finished && (!p.draining() || p.Mark.Reason == DrainRollout) {
			n++
			if p.Role == made.Role {
				ofRole++
			}
		}
	}
	if s.roles != nil {
		s.roles.checkSurge(s, made, n, ofRole)
		return
	}
	if n > pool.Size+pool.Surge {
		s.fail("%d pods exist, size %d, surge %d", n, pool.Size, pool.Surge)
	}
}

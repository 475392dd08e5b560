package lifecycle

import (
	"fmt"
	"time"
)

// drain moves marked pods on:
//
//	marked -> acknowledged by all pickers -> idle on two readings, later than the longest way -> deleted
//	   +----------------------- deadline ------------------------------------------------------^
func (r *plan) drain() {
	for _, p := range r.draining {
		switch {
		case !p.Running && !p.Ready:
			r.delete(p, CauseIdle, "nothing runs")
		case p.Mark.Deadline.IsZero(): // the operator's mark, from which the deadline was removed
			r.add(Action{
				Kind: SetMark, UID: p.UID, Name: p.Name, Cause: CauseReplaced, Why: "the mark had no deadline",
				Mark: Mark{Reason: p.Mark.Reason, Deadline: r.Now.Add(r.Pool.DrainDeadline)},
			})
			r.wake(r.Now.Add(min(Poll, r.Pool.DrainDeadline)))
		case r.idle(p):
			r.delete(p, CauseIdle, "idle")
		case !r.Now.Before(p.Mark.Deadline):
			why := "no reading"
			if n := len(p.Readings); n > 0 {
				why = fmt.Sprintf("%d requests", max(p.Readings[n-1].Busy, p.Load))
			}
			r.delete(p, CauseDeadline, why)
		default:
			r.wake(p.Mark.Deadline)
			r.wake(r.Now.Add(Poll))
		}
	}
}

func (r *plan) delete(p *Pod, cause, why string) {
	r.add(Action{Kind: Delete, UID: p.UID, Name: p.Name, Mark: p.Mark, Cause: cause, Why: why})
}

// idle reports whether no request is at the pod and none can be on its way.
func (r *plan) idle(p *Pod) bool { return Idle(p, r.Now, r.Pool.LongestWay) }

// Idle reports whether no request is at the pod and none can be on its way: all pickers have ceased to choose it and count no
// request there, and its engine was idle on the last two readings, both later than the longest way from a pick to an
// engine. Neither is enough alone: an engine that is paused, or at the first step of a long prompt, reads idle, and
// pickers do not know of requests that reach it past them.
func Idle(p *Pod, now time.Time, longestWay time.Duration) bool {
	if !p.Running && !p.Ready {
		return true
	}
	if p.Acknowledged.IsZero() || p.Load > 0 || len(p.Readings) < IdleReadings {
		return false
	}
	for _, reading := range p.Readings[len(p.Readings)-IdleReadings:] {
		if reading.Busy > 0 || !reading.At.After(p.Acknowledged.Add(longestWay)) || now.Sub(reading.At) > ReadingFresh {
			return false
		}
	}
	return true
}

// show keeps the conditions of pods and begins warm-ups.
func (r *plan) show() {
	removed := map[string]bool{}
	for _, a := range r.out.Actions {
		if a.Kind == Delete {
			removed[a.UID] = true
		}
	}
	for i := range r.Pods {
		p := &r.Pods[i]
		if p.Deleting || p.Finished || removed[p.UID] {
			continue
		}
		want := p.Shown
		want.Synced = p.Synced
		want.Idle = p.held() && r.idle(p)
		if p.held() && !want.Idle && len(p.Readings) > 0 {
			r.wake(r.Now.Add(Poll))
		}
		if p.WarmGate && p.Loaded && !p.Shown.Warm {
			until := p.LoadedAt.Add(r.Pool.WarmUp)
			switch {
			case p.WarmedUp || !r.Now.Before(until):
				want.Warm = true
			default:
				r.add(Action{Kind: WarmUp, UID: p.UID, Name: p.Name})
				r.wake(until)
			}
		}
		if want != p.Shown {
			r.add(Action{Kind: Show, UID: p.UID, Name: p.Name, Shown: want})
		}
	}
}

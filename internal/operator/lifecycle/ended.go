package lifecycle

import (
	"slices"
	"time"
)

// Limits of pods that have ended.
const (
	// firstBackoff and longestBackoff bound the pause before a pod that ended is replaced. They equal those of a Job; the
	// first end of a series has no pause, because a served pool should be complete again soon.
	firstBackoff, longestBackoff = 10 * time.Second, 6 * time.Minute
	// provenAfter is how long a pod must have lived for its end to begin a new series.
	provenAfter = 10 * time.Minute
	// keptEnded newest pods that ended are kept to be looked at, each for keepEnded.
	keptEnded = 3
	keepEnded = time.Hour
	// stoppingEnds is how many ends in a row of the newest revision stop a rollout.
	stoppingEnds = 2
)

// ends counts the pods that ended in a row, up to and including this one.
func (p *Pod) ends() int {
	if p.Lived >= provenAfter {
		return 1
	}
	return p.Ends + 1
}

// backoff is the pause after so many ends in a row.
func backoff(ends int) time.Duration {
	pause := firstBackoff
	for n := 2; n < ends && pause < longestBackoff; n++ {
		pause *= 2
	}
	if ends < 2 {
		return 0
	}
	return min(pause, longestBackoff)
}

// settleEnded keeps the pods whose place must stay empty for a while, and the newest of the others for inspection. It
// deletes the rest.
func (r *plan) settleEnded() {
	slices.SortStableFunc(r.ended, func(a, b *Pod) int { return b.EndedAt.Compare(a.EndedAt) })
	for i, p := range r.ended {
		again, forgotten := p.EndedAt.Add(backoff(p.ends())), p.EndedAt.Add(keepEnded)
		counts := p.Revision == r.nextRevision() // another template is another chance
		switch {
		case counts && r.Now.Before(again):
			r.backoff++
			r.out.Backoff++
			r.wake(again)
			if again.After(r.out.Retry) {
				r.out.Retry = again
			}
		case i >= keptEnded || !r.Now.Before(forgotten):
			r.delete(p, CauseFinished, p.Trouble.Message)
			continue
		default:
			r.wake(forgotten)
		}
		r.out.Ended = append(r.out.Ended, p)
		if counts {
			r.series = max(r.series, p.ends())
		}
	}
}

// brokenRevision reports whether pods of the newest revision end over and over, and none has become ready since.
func (r *plan) brokenRevision(forward time.Time) bool {
	return slices.ContainsFunc(r.Pods, func(p Pod) bool {
		return p.Finished && !p.Deleting && p.Revision == r.Pool.Revision && p.ends() >= stoppingEnds &&
			p.EndedAt.After(forward) && r.Now.Before(p.EndedAt.Add(keepEnded))
	})
}

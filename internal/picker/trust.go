package picker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// trust is whether the matches of a pool are believed. Each answer that tells how much of its prompt was cached is
// compared with what its endpoint had announced and not removed. When the engines repeatedly find little of it
// (tokenizer, template, salts or block size do not fit), matches are ignored until predictions are true again:
//
//	            of the last 64 answers, 32 or more, less than half was found
//	Trusted ---------------------------------------------------------------> Distrusted: one pick in 16 matches
//	   ^                                                                        |
//	   '------- of 32 or more answers since, three quarters were found ---------'
//
// An answer counts where all of its match was announced by an endpoint whose events are known to be complete. One of
// which less than half was found counts only two seconds later, and only if the first block that was not found has not
// been removed meanwhile: what is evicted while a request waits is nobody's mistake.
type trust struct {
	lost  atomic.Bool
	picks atomic.Uint64
	// ignored counts picks without matches, losses how often trust was lost.
	ignored, losses atomic.Int64

	mu       sync.Mutex
	window   [trustWindow]verdict // guarded by mu, a ring
	judged   int                  // guarded by mu; since trust was lost or won last
	sum      verdict              // guarded by mu; over the window
	suspects []suspect            // guarded by mu, in the order of time
}

const (
	trustWindow  = 64
	trustEnough  = 32
	trustProbe   = 16
	trustGrace   = 2 * time.Second
	maxSuspects  = 256
	distrustPart = 0.5
	regainPart   = 0.75
)

// verdict is how many prompt tokens were announced, and how many of them were found.
type verdict struct{ announced, found int }

// suspect is an answer that has found little, until it is clear that no removal explains it.
type suspect struct {
	verdict
	due    time.Time
	picked time.Time
	member *member
	block  kvblock.Key // the first that was not found
}

// matching tells whether the next pick is to believe the matches.
func (t *trust) matching() bool {
	if !t.lost.Load() {
		return true
	}
	if t.picks.Add(1)%trustProbe == 0 {
		return true
	}
	t.ignored.Add(1)
	return false
}

// answered takes what an answer has told. It returns whether trust was lost or won by it, and by what.
func (t *trust) answered(now time.Time, s suspect) (changed bool, why verdict) {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed, why = t.settle(now)
	switch {
	case float64(s.found) >= distrustPart*float64(s.announced):
		c, w := t.judge(s.verdict)
		if c {
			changed, why = c, w
		}
	case len(t.suspects) < maxSuspects:
		s.due = now.Add(trustGrace)
		t.suspects = append(t.suspects, s)
	}
	return changed, why
}

// settle judges the suspects whose time has come. mu is held.
func (t *trust) settle(now time.Time) (changed bool, why verdict) {
	n := 0
	for n < len(t.suspects) && !now.Before(t.suspects[n].due) {
		s := &t.suspects[n]
		n++
		if s.member.doubted.Load() || s.member.removals.happened(s.block, s.picked) {
			continue
		}
		if c, w := t.judge(s.verdict); c {
			changed, why = c, w
		}
	}
	if n > 0 {
		t.suspects = append(t.suspects[:0], t.suspects[n:]...)
	}
	return changed, why
}

// judge enters a verdict. mu is held.
func (t *trust) judge(v verdict) (changed bool, why verdict) {
	at := &t.window[t.judged%trustWindow]
	if t.judged >= trustWindow {
		t.sum.announced -= at.announced
		t.sum.found -= at.found
	}
	*at = v
	t.judged++
	t.sum.announced += v.announced
	t.sum.found += v.found
	if t.judged < trustEnough {
		return false, verdict{}
	}
	part := float64(t.sum.found) / float64(max(1, t.sum.announced))
	lost := t.lost.Load()
	if !lost && part >= distrustPart || lost && part < regainPart {
		return false, verdict{}
	}
	why = t.sum
	t.lost.Store(!lost)
	if !lost {
		t.losses.Add(1)
	}
	t.judged, t.sum = 0, verdict{}
	return true, why
}

// Trust is whether a pool's matches are believed.
type Trust struct {
	// Lost: they are ignored, but for one pick in 16.
	Lost bool
	// Losses is how often that began, Ignored how many picks were made without them.
	Losses, Ignored int64
	// Judged answers since trust was lost or won; over the last of them, prompt tokens that the endpoints had announced
	// and not removed, and those of them that the engines found.
	Judged           int
	Announced, Found int
}

func (t *trust) read() Trust {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Trust{
		Lost: t.lost.Load(), Losses: t.losses.Load(), Ignored: t.ignored.Load(),
		Judged: t.judged, Announced: t.sum.announced, Found: t.sum.found,
	}
}

package picker

import (
	"math"
	"sync"
	"time"
)

const (
	// A window of claims is judged when it has so many answers and tokens, and given up after judgedFor without.
	claimedAnswers, claimedTokens = 8, 64
	// maxClaimants bounds the gateways that are judged at one endpoint. Requests of others are not.
	maxClaimants = 4
)

// claims find out whether gateways that do not report which endpoint has served a request follow the picks: an endpoint
// that answers requests generates their tokens, and its engine counts all tokens that it generates. If the answers to
// requests that were picked for the endpoint have more tokens than that, others have answered them. What else the engine
// generates only hides this, so that no gateway is blamed for another one.
//
// If the gateway was given a list, a later endpoint of it can rightly have answered, after the first one had failed the
// request. Such answers only show that a gateway avoids the endpoint: its engine, which reports to the picker, has generated
// nothing at all in at least avoidedFor.
//
// It is safe for concurrent use.
type claims struct {
	mu sync.Mutex
	// known: the engine has reported its count, which was generated at the time at.
	known     bool
	generated float64
	at        time.Time
	gateways  []claim
}

// claim is a window of one gateway's requests. It begins before they were picked.
type claim struct {
	gateway string
	begin   time.Time
	base    float64 // what the engine had generated then
	listed  bool    // the gateway was given lists
	// settled answers had ended when the last report came, so that the next one must have their tokens; fresh ones had not.
	settled, fresh claimed
}

type claimed struct {
	answers int
	tokens  float64
}

// followed is what a window of a gateway has shown: so many of its answers did not come from the picked endpoint.
type followed struct {
	gateway          string
	answers, ignored int
}

// add takes the tokens of an answer to a request that was picked for the endpoint at a time. listed: the gateway was given
// further endpoints.
func (c *claims) add(gateway string, picked time.Time, tokens int, listed bool) {
	if tokens <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		return
	}
	w := c.of(gateway)
	if w == nil || picked.Before(w.begin) {
		return
	}
	w.listed = w.listed || listed
	w.fresh.answers++
	w.fresh.tokens += float64(tokens)
}

// of returns the window of a gateway, nil if there is no room for another one. c.mu is held.
func (c *claims) of(gateway string) *claim {
	for i := range c.gateways {
		if c.gateways[i].gateway == gateway {
			return &c.gateways[i]
		}
	}
	if len(c.gateways) >= maxClaimants {
		return nil
	}
	c.gateways = append(c.gateways, claim{gateway: gateway, begin: c.at, base: c.generated})
	return &c.gateways[len(c.gateways)-1]
}

// report takes the engine's count of the tokens that it has generated, and returns what it shows. Reports come in the order
// in which the engine was asked.
func (c *claims) report(at time.Time, generated float64, known bool) (found []followed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !known || generated < c.generated { // an engine that has been restarted begins at 0
		c.gateways = nil
	}
	c.known, c.generated, c.at = known, generated, at
	kept := c.gateways[:0]
	for i := range c.gateways {
		w := c.gateways[i]
		switch n := float64(w.settled.answers); {
		case w.settled.answers >= claimedAnswers && w.settled.tokens >= claimedTokens && !w.undecided(at, generated):
			// Half of the tokens are enough: a count is not exact to the token.
			ignored := 0
			if share := (generated - w.base) / w.settled.tokens; share <= 0 || share < 0.5 && !w.listed {
				ignored = int(math.Round(n * (1 - share)))
			}
			found = append(found, followed{w.gateway, w.settled.answers, ignored})
		case at.Sub(w.begin) < judgedFor:
			w.settled.answers += w.fresh.answers
			w.settled.tokens += w.fresh.tokens
			w.fresh = claimed{}
			kept = append(kept, w)
		}
	}
	c.gateways = kept
	return found
}

// undecided reports whether the gateway can have retried all answers of the window.
func (w *claim) undecided(at time.Time, generated float64) bool {
	return w.listed && generated <= w.base && at.Sub(w.begin) < avoidedFor
}

// claim records that the endpoint must have generated the answer, if the gateway has not reported which one did. d.mu is
// held.
func (d *Decision) claim() {
	t := &d.Targets[d.target]
	switch {
	case d.gateway == "", d.servedReported, d.observed, d.background, t.Endpoint.RankHeader >= 0:
		// A background answer precedes the tokens, and the engine can choose another rank.
	default:
		tokens := d.reported.Generated
		if tokens < 0 {
			tokens = int(d.seen.Load())
		}
		t.member.claims.add(d.gateway, d.picked, tokens, d.Spec().OrderedDestinations && len(d.Targets) > 1)
	}
}

// judgeClaims compares what an endpoint's engine has generated with what its answers had.
func (v *view) judgeClaims(at time.Time, m *member, generated float64, known bool) {
	for _, f := range m.claims.report(at, generated, known) {
		v.gateways.add(f.gateway, func(t *gatewayTally) {
			t.stats.Unfollowed += int64(f.ignored)
			for i := range min(f.answers, judgedAnswers) {
				t.served.add(at, i < f.ignored)
			}
		})
	}
}

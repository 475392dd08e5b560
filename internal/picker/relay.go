package picker

import (
	"math/rand/v2"
	"time"

	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/relay"
)

// PrefillerHeader is the request header, in lower case, that llm-d's routing sidecar and Dynamo's read in front of an engine that
// decodes. Its value is the ip:port of the endpoint that prefills. The sidecar sends the first leg of NixlConnector there and the second to
// its engine, and removes the header. Without it, the engine gets the request as a whole.
//
// A gateway sends a request to one endpoint. With HandoffSpec.Sidecar, both legs of a hand-off behind it are decided at once, in their
// order. The gateway gets the decision for the second leg, which ends the first:
//
//	DecodeLeg    booked at the endpoint that decodes, from the pick to the end of the answer
//	PrefillLeg   booked at the endpoint that prefills, until its events announce the prompt, until the first token, or for as long as it
//	             should take if neither shows
//
// What only the sidecar sees is not learned: the time of the transfer, and whose fault an error is. llm-d's v0.6 to v0.8 answer with the
// engine that decodes alone if the engine that prefills fails, and other releases pass its error on. See answeredBy and failed. Kvasir's
// own sidecar takes a relay.Ticket in place of the header, and reports what it has seen: see SidecarReport.
const PrefillerHeader = "x-prefiller-host-port"

// Prefiller is the value of PrefillerHeader that the request must get; empty for none. It is the address of an endpoint of the pool.
func (d *Decision) Prefiller() string {
	if d.handoff.first == nil || d.handoff.atOnce {
		return ""
	}
	return d.handoff.from.Endpoint.Address
}

// RelayHeader is the request header that asks the sidecar for the hand-off; empty if the request is served alone.
func (d *Decision) RelayHeader() (name, value string) {
	switch {
	case d.handoff.first == nil:
		return "", ""
	case d.view.spec.Policy.Handoffs.Own:
		return relay.TicketHeader, d.ticket()
	}
	return PrefillerHeader, d.Prefiller()
}

// ticket is good for the pods of the targets, once in each. It is signed with the root of keys before the present one, too: a sidecar
// learns of another root later than the picker, and takes a ticket that is signed with one that it knows.
func (d *Decision) ticket() string {
	t := relay.Ticket{Address: d.Prefiller(), Within: d.handoff.first.handoff.within, ID: rand.Uint64()}
	for i := range d.Targets {
		t.Pods = append(t.Pods, relay.TagOf(d.Targets[i].Endpoint.ID.Pod))
	}
	if r := d.view.rotation; r != nil {
		return t.Sign(d.now(), d.view.spec.Seed, r.from)
	}
	return t.Sign(d.now(), d.view.spec.Seed)
}

// canRelay reports whether an endpoint can be part of the hand-off, as far as it is relayed: a sidecar sends both legs with the same
// headers, so that none can name a rank.
func (state *pickState) canRelay(v *view, i int) bool {
	ep := &v.spec.Endpoints[i]
	return !state.relays || ep.RankHeader < 0 && ep.Socket == ""
}

// relay decides on the first leg of a hand-off that a sidecar sends. s has the candidates for it. The request is then a DecodeLeg.
func (p *Picker) relay(v *view, s *scratch, state *pickState, now time.Time) {
	d := v.decide(p.now, s, &s.question, state, false)
	d.picked = now
	if !d.reportsPrefill() {
		d.booking.Leave(now, 1)
	}
	d.handoff.within = relayedWithin(&v.spec.Policy, d.Targets[0].member.load.Predict(now, load.Work{}))
	p.remember(v, s, state, d.Targets[0].Predicted, now)
	state.first, state.again = d, true
	state.leg, state.handoff = DecodeLeg, d.handoff
	state.handoff.from = &d.Targets[0]
}

// slowPrefill is how long a relayed prefill can take in any case.
const slowPrefill = 30 * time.Second

// relayedWithin is how long the first endpoint can take for a prefill that is predicted to end after a time: nothing but its answer shows
// the sidecar that the endpoint makes progress.
func relayedWithin(p *PolicySpec, predicted time.Duration) time.Duration {
	within := slowPrefill + unlikely*predicted
	if p.FirstByte > 0 {
		within = min(within, p.FirstByte)
	}
	return within
}

// answeredBy records that the endpoint of the DecodeLeg has answered, so that a relayed PrefillLeg is over. If the endpoint has not
// announced anything since the pick, it has a little time left for it. The decision for the DecodeLeg is locked; that for the first leg
// never locks it.
func (d *Decision) answeredBy(to *Target) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return
	}
	d.ended, d.handoff.accused = true, &pair{&d.Targets[d.target], to}
	now := d.now()
	owes, waits := d.awaitsEvents(), d.view.pending.has(d)
	d.complete(now)
	d.passed(now, Completed)
	if !owes || !waits {
		d.judgeRelay(!owes || d.announcedAny())
	}
}

// announcedAny reports whether the endpoint of a relayed PrefillLeg has announced blocks since the pick, of any request, or can have done
// so.
func (d *Decision) announcedAny() bool {
	t := &d.Targets[d.target]
	return t.Doubted || t.member.doubted.Load() || t.member.stored.Load() != d.stored
}

// relayOver is the end of a relayed prefill, whose last block the endpoint has announced, or whose time is up. d.mu is held.
func (d *Decision) relayOver(now time.Time, announced bool) {
	if !d.ended {
		d.booking.Release(now)
		return
	}
	d.judgeRelay(announced || d.announcedAny())
}

// judgeRelay counts a relayed hand-off whose DecodeLeg has answered. If nothing was prefilled, the endpoint that decodes has no sidecar,
// or the sidecar could not reach the one that prefills. d.mu is held.
func (d *Decision) judgeRelay(prefilled bool) {
	ends := d.handoff.accused
	d.handoff.accused = nil
	switch {
	case ends == nil: // it was counted, or has failed
	case prefilled:
		d.completed(ends.from, ends.to)
	default:
		d.Handoff(HandoffNotPrefilled)
		d.blamePair(ends)
	}
}

// endRelay ends a relayed PrefillLeg whose DecodeLeg has ended without an answer. left: what becomes of it is not reported.
func (d *Decision) endRelay(left bool) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return
	}
	d.ended = true
	now := d.now()
	if left {
		d.left = true
		d.view.pending.shorten(d, now.Add(2*d.booking.Leave(now, 1)+time.Second))
	} else {
		d.leaveTarget(now)
	}
	d.passed(now, Unreported)
}

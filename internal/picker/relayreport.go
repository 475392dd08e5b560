package picker

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/relay"
)

// SidecarReport takes the relay.Report in the header of an answer, empty if it has none, to a request that a sidecar of Kvasir's was to
// hand over. Other decisions ignore it. A pod that decodes speaks for another one here, so what it says of a failed prefill counts against
// the hand-offs between the two, and not against the circuit of the other one.
func (d *Decision) SidecarReport(header string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handoff.first == nil || !d.view.spec.Policy.Handoffs.Own || d.ended || !d.loading() || d.handoff.seen {
		return
	}
	report, ok := relay.ReadReport(header)
	if !ok {
		report.Outcome = "" // there is no sidecar
	}
	now, first, ends := d.now(), d.handoff.first, &pair{d.handoff.from, &d.Targets[d.target]}
	policy := &d.view.spec.Policy
	switch report.Outcome {
	case relay.HandedOver:
		d.handoff.seen, d.handoff.sent = true, now.Add(-min(report.Since, now.Sub(d.picked)))
		d.handoff.lease = first.prefilledAt(d.handoff.sent, &report)
		return
	case relay.DecodeFailed:
		first.prefilledAt(now, &report).release()
		d.Handoff(HandoffDecodeFailed)
		d.handoff.accused = ends // the request is served alone now
	case relay.NoParameters:
		first.prefilledAt(now, &report).release()
		d.Handoff(HandoffNoParameters)
		if report.Owed && ends.from.member.gives.fail(ends.to.member.hash, now, policy.CircuitOpen) {
			d.leftOut("Endpoint answers without the parameters of its blocks: some or all hand-offs from it are left out for a time", ends.from)
		}
	case relay.NoMemory:
		first.notPrefilled(now)
		d.handoff.trial.giveUp(now)
		d.Handoff(HandoffNoMemory)
	case relay.PrefillFailed:
		first.notPrefilled(now)
		d.Handoff(HandoffPrefillFailed)
		if !blames(report.Cause) {
			d.handoff.trial.giveUp(now)
		} else if ends.from.member.gives.fail(ends.to.member.hash, now, policy.CircuitOpen) {
			d.leftOut("Hand-offs from the endpoint fail: some or all of them are left out for a time", ends.from)
		}
	case relay.Refused: // by no fault of the endpoints: a key that one side does not know yet, say
		first.notPrefilled(now)
		d.handoff.trial.giveUp(now)
		if report.Cause == relay.CauseRequest {
			d.Handoff(HandoffNotPrefilled)
		} else {
			d.Handoff(HandoffTicketRefused)
		}
	default:
		first.notPrefilled(now)
		d.Handoff(HandoffNotPrefilled)
		d.blamePair(ends)
	}
	d.handoff.alone, d.handoff.loaded, d.handoff.prompt = true, true, nil
}

// blames reports whether a failed prefill can be the fault of the endpoint that was to prefill.
func blames(cause relay.Cause) bool {
	return cause != relay.CauseFull && cause != relay.CauseRequest && cause != relay.CauseLocal
}

// prefilledAt ends a relayed PrefillLeg that went well, and returns the lease of its blocks. Only a report of HandedOver shows when it has
// ended: others come with the answer to the request alone.
func (d *Decision) prefilledAt(at time.Time, report *relay.Report) *lease {
	if report.Prompt >= 0 {
		d.Usage(report.Prompt, report.Cached)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return nil
	}
	d.ended = true
	if report.Outcome == relay.HandedOver {
		d.booking.FirstToken(at)
	} else {
		d.booking.EndPrefill(at)
	}
	d.complete(at)
	d.checkBlocks(at)
	d.passed(at, Completed)
	return d.Targets[d.target].member.leases.add(at)
}

// notPrefilled ends a relayed PrefillLeg whose endpoint has not prefilled.
func (d *Decision) notPrefilled(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return
	}
	d.ended = true
	d.booking.Drop(now)
	d.leaveTarget(now)
	d.passed(now, Failed)
}

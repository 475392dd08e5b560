package picker

import (
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// Fail records that the present target has not answered, has answered with a server error, or has given the request up: its
// circuit counts it, and the time of the request is not used for learning.
func (d *Decision) Fail() { d.failed(unanswered) }

// FailLate is Fail for a target that has not begun to answer in time. If it was to load the blocks of another endpoint, that can be
// the fault of either.
func (d *Decision) FailLate() { d.failed(late) }

// Unasked records that a gateway answered by itself without asking an endpoint. That says nothing about the endpoint, and the
// time of the request is not used for learning.
func (d *Decision) Unasked() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ended {
		d.booking.Drop(d.now())
	}
}

// failure is how an attempt has failed.
type failure uint8

const (
	unanswered failure = iota // or the connection has closed before the end of the answer
	late                      // no first byte in time
	errored                   // the endpoint has answered with an error
	gaveUp                    // the endpoint has answered that it has given the request up
)

// failed is Fail for all kinds of failures.
func (d *Decision) failed(how failure) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return
	}
	if (how == errored || how == late) && d.loading() { // that it could not load the blocks is mostly the fault of others
		accused := &pair{d.handoff.from, &d.Targets[d.target]}
		if d.handoff.first != nil && !d.handoff.atOnce { // a gateway does not send the request again as a whole
			d.blamePair(accused)
		} else {
			d.handoff.accused = accused
		}
		d.giveUpTrial()
	} else {
		d.probe = false
		d.fail(&d.Targets[d.target], how == errored || how == gaveUp)
	}
	d.booking.Drop(d.now())
}

// fail counts a failed attempt at a target. answered: it was an answer. d.mu is held.
func (d *Decision) fail(t *Target, answered bool) {
	if d.elsewhere || d.isMirror() {
		return
	}
	p := &d.view.spec.Policy
	t.member.circuit.Fail(d.now(), p.CircuitFailures, p.CircuitOpen, answered)
	t.member.usage.failed()
	t.member.stats.failures.Add(1)
}

// WaitsForRoom reports whether the request can wait until an endpoint's queue has room. One that an endpoint has refused with
// nothing else in it has more sequences than the limit and is never let in, and of unparsed requests their number is not known.
func (d *Decision) WaitsForRoom() bool {
	return d.view.spec.Policy.Admission.Queue && !d.beyond && !d.unparsed
}

// succeed notifies the circuit of the present target that it answers. d.mu is held.
func (d *Decision) succeed() {
	d.probe = false
	if !d.elsewhere && !d.isMirror() {
		d.Targets[d.target].member.circuit.Succeed(d.sent)
	}
}

// Full records that the present target has refused the request by a limit of its queue. That is no failure: the endpoint
// gets no more than it has until it has room again. Of requests whose number of sequences is not known, nothing is learned.
func (d *Decision) Full(limit openai.QueueLimit) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return
	}
	now := d.now()
	m := d.Targets[d.target].member
	if d.handoff.full = d.loading(); d.handoff.full {
		d.handoff.trial.giveUp(now)
	}
	d.booking.Drop(now)
	d.leaveTarget(now)
	if d.elsewhere || d.handoff.full && d.handoff.first != nil && !d.handoff.atOnce { // it can be the queue of either endpoint
		return
	}
	var l load.View
	m.load.Read(now, &l)
	if !d.unparsed || limit == openai.TokenLimit {
		m.ceiling.refused(now, limit, &l, d.answers)
	}
	d.beyond = d.beyond || limit != openai.TokenLimit && d.answers > 1 && l.Sequences == 0
	m.stats.full.Add(1)
}

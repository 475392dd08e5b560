package picker

// Connector is the engines' connector, which decides how the blocks of a prompt are handed over.
type Connector uint8

// The connectors.
const (
	// NIXL: the first endpoint answers with the parameters by which the second one reads the blocks.
	NIXL Connector = iota
	// Mooncake: both legs are sent at once. The second endpoint asks the first for the blocks of a transfer that both know by its id.
	Mooncake
	// Offloading: both legs are sent at once, to engines with the tier p2p of the offloading connector.
	Offloading
)

// atOnce reports whether both legs of a hand-off are sent at the same time.
func (c Connector) atOnce() bool { return c != NIXL }

// Both legs of a request that are sent at the same time are decided together, as those that a sidecar sends (relay.go). The caller
// sends them, so that it sees both answers, and how each of them ends:
//
//	DecodeLeg    the decision that Pick returns: from the pick to the end of the answer
//	PrefillLeg   its FirstLeg: from the pick to Prefilled, to PrefillFailed, or to the end of the DecodeLeg
//
// The DecodeLeg's lock is taken before that of its FirstLeg.

// FirstLeg is the decision for the first leg, if both legs are sent at the same time; nil otherwise.
func (d *Decision) FirstLeg() *Decision {
	if !d.handoff.atOnce {
		return nil
	}
	return d.handoff.first
}

// Prefilled records that the endpoint of the FirstLeg has answered. It holds the blocks until they are loaded.
func (d *Decision) Prefilled() {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, first := d.now(), d.handoff.first
	if d.loading() && !d.ended {
		d.handoff.prefilled = now
		d.handoff.lease = d.handoff.from.member.leases.add(now)
	}
	first.mu.Lock()
	defer first.mu.Unlock()
	if first.ended {
		return
	}
	first.ended = true
	first.succeed()
	first.booking.FirstToken(now) // the answer is that of the prefill, so it shows the endpoint's speed
	first.complete(now)
	first.checkBlocks(now)
	first.passed(now, Completed)
}

// PrefillFailed records that the FirstLeg has failed, and reports whether the DecodeLeg waits for it, so that it is to be given up.
// outcome is then counted.
func (d *Decision) PrefillFailed(outcome HandoffOutcome) (waits bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handoff.first.endRelay(false)
	if d.ended || !d.loading() || d.handoff.lost {
		return false
	}
	d.handoff.lost = true
	if outcome == HandoffNoMemory {
		d.handoff.trial.giveUp(d.now())
	}
	d.Handoff(outcome)
	return true
}

// AwaitsBlocks reports whether the decision is for a DecodeLeg whose endpoint has not generated a token yet.
func (d *Decision) AwaitsBlocks() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.loading()
}

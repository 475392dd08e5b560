package picker

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/decisionlog"
	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// Leg is the part of a request that a decision is for.
//
//	Whole                         one endpoint prefills and decodes
//	PrefillLeg --> DecodeLeg      one endpoint prefills and holds the blocks, another one loads them and decodes
//	     |             |
//	     +-- fails ----+--> Whole
//
// Each leg is a decision of its own, which ends before the next one is made, so that a request is booked on one endpoint at a
// time.
type Leg uint8

// The legs.
const (
	Whole Leg = iota
	PrefillLeg
	DecodeLeg
)

// HandoffRule defines which requests are handed over from one endpoint to another between prefill and decode.
type HandoffRule uint8

// The rules.
const (
	// HandoffOff hands over nothing, and endpoints have no roles.
	HandoffOff HandoffRule = iota
	// HandoffNever hands over nothing.
	HandoffNever
	// HandoffByCost compares the plans for a request in seconds.
	HandoffByCost
	// HandoffAbove hands over requests with at least so many uncached tokens on the endpoint that would serve them alone.
	HandoffAbove
)

// HandoffSpec defines which requests are handed over. It has no effect in pools without roles.
type HandoffSpec struct {
	Rule HandoffRule
	// UncachedTokens is the bound of HandoffAbove.
	UncachedTokens int
	// Sidecar: the endpoints that decode have a sidecar, which sends both legs of requests with a PrefillerHeader. Own: it is Kvasir's, takes
	// a relay.Ticket in place of that header, and reports what it has seen.
	Sidecar, Own bool
	// Connector of the engines, and the port of its side channel.
	Connector Connector
	Port      int
}

// HandoffOutcome is a result of a hand-off, or of one of its attempts.
type HandoffOutcome uint8

// The outcomes.
const (
	// HandoffCompleted: the second endpoint has answered with the blocks of the first.
	HandoffCompleted HandoffOutcome = iota
	// HandoffPrefillFailed: no endpoint has prefilled. The request goes on alone.
	HandoffPrefillFailed
	// HandoffNoParameters: the endpoint that has prefilled did not say where the blocks are. The request goes on alone.
	HandoffNoParameters
	// HandoffNoMemory: there was no room for the parameters or the bodies of the legs. The request goes on alone.
	HandoffNoMemory
	// HandoffDecodeFailed: an endpoint that was to load the blocks has failed. Another one is tried, or the request goes on
	// alone.
	HandoffDecodeFailed
	// HandoffNoDecode: there was no endpoint to decode.
	HandoffNoDecode
	// HandoffClientGone: the client has left.
	HandoffClientGone
	// HandoffNotPrefilled: a sidecar was to send the first leg, and the endpoint that was to prefill has announced nothing.
	HandoffNotPrefilled
	// HandoffTicketRefused: Kvasir's sidecar has not taken the picker's ticket. The request was served alone.
	HandoffTicketRefused
	numHandoffOutcomes int = iota
)

// String is the value of the metric label.
func (o HandoffOutcome) String() string {
	return [...]string{
		"completed", "prefill_failed", "no_parameters", "no_memory", "decode_failed", "no_decode", "client_gone", "not_prefilled",
		"ticket_refused",
	}[o]
}

// NoDecoder is the outcome of a hand-off for which no endpoint to decode was picked.
func NoDecoder(ctx context.Context) HandoffOutcome {
	if endOf(ctx) == ClientGone {
		return HandoffClientGone
	}
	return HandoffNoDecode
}

// handoffs are what a pool knows of its hand-offs.
type handoffs struct {
	price    transferPrice
	outcomes [numHandoffOutcomes]atomic.Int64
	plans    [numPlanChoices]atomic.Int64
}

// handoff is the state of a decision that only hand-offs need. The zero value is that of a whole request.
type handoff struct {
	leg Leg
	// split: a hand-off was planned for this decision or for one before.
	split bool
	// relayed: a sidecar sends the PrefillLeg.
	relayed bool
	// loaded: the endpoint that was to load the blocks has generated a token, so that later failures
	// have nothing to do with the hand-off.
	loaded bool
	// full: the present endpoint has refused the DecodeLeg because its queue is full, which is no failure.
	full bool
	// prompt is kept for the DecodeLeg, whose keys need not be made again.
	prompt *prompt
	// coming is the endpoint that a PrefillLeg's plan counts on for the DecodeLeg; nil once the mark there is gone.
	coming *member
	// planned is the endpoint that the plan was made for; from is the one that has prefilled for a DecodeLeg.
	planned *member
	from    *Target
	// lease is that of the blocks, from the end of the PrefillLeg on.
	lease *lease
	// accused is what a request has to do alone after an endpoint has answered that it cannot load its blocks: if it is served
	// now, it was not the fault of the request. In a relayed PrefillLeg whose DecodeLeg has answered, it is what has failed if the endpoint
	// has not prefilled, until that is known.
	accused *pair
	// tokens of the prompt that the DecodeLeg's first endpoint has to load, and wait is the predicted wait there; idle is
	// what it would be without other prefills.
	tokens     int
	wait, idle time.Duration
	// compared is the record of the plans, if decisions are logged.
	compared *decisionlog.Plan
	// within is how long the endpoint of a relayed PrefillLeg can take.
	within time.Duration
	// first is the PrefillLeg of a DecodeLeg that was decided with it: it is relayed, or sent at the same time.
	first *Decision
	// seen: the sidecar has reported that it has handed over, and has sent the second leg at sent; alone: that it has served the request
	// as a whole.
	seen, alone bool
	sent        time.Time
	// atOnce: both legs are sent at the same time.
	atOnce bool
	// pulls is what the first target loads from a peer; nil for nothing.
	pulls *pulled
	// lost: the first leg has failed while the second was under way, and was counted.
	lost bool
	// trial is that of the pair, if hand-offs between the two were left out; nil otherwise.
	trial *trial
	// prefilled is when a first leg that was sent at the same time has ended.
	prefilled time.Time
}

// pair is the two endpoints of a hand-off.
type pair struct{ from, to *Target }

// Leg is the part of the request that the decision is for.
func (d *Decision) Leg() Leg { return d.handoff.leg }

// Handoff counts an outcome of the hand-off that the decision is a leg of. The decision itself counts DecodeLegs that complete, fail
// or are abandoned.
func (d *Decision) Handoff(outcome HandoffOutcome) { d.view.handoffs.outcomes[outcome].Add(1) }

// Unconnected records that the endpoint of a PrefillLeg has no parameters, as engines without a connector do. owed: others would have had
// some. After some such answers it prefills for no others for a time. The caller counts the outcome.
func (d *Decision) Unconnected(owed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := &d.Targets[d.target]
	if owed && t.member.gives.fail(0, d.now(), unconnectedFor) {
		d.leftOut("Endpoint answers without the parameters of its blocks: it prefills for no others for a time", t)
	}
}

// blame counts a hand-off against both of its endpoints, after the request was served alone. d.mu is held.
func (d *Decision) blame() {
	a := d.handoff.accused
	if a == nil {
		return
	}
	d.handoff.accused = nil
	d.blamePair(a)
}

func (d *Decision) blamePair(a *pair) {
	now, period := d.now(), d.view.spec.Policy.CircuitOpen
	if a.from.member.gives.fail(a.to.member.hash, now, period) {
		d.leftOut("Hand-offs from the endpoint fail: some or all of them are left out for a time", a.from)
	}
	if a.to.member.receives.fail(a.from.member.hash, now, period) {
		d.leftOut("Hand-offs to the endpoint fail: some or all of them are left out for a time", a.to)
	}
}

func (d *Decision) leftOut(message string, t *Target) {
	d.view.log.Info(message, "pool", d.view.spec.Name, "endpoint", nameOf(t.Endpoint))
}

// splittable reports whether a request can be handed over: engines transfer the blocks of one prompt for one answer, and a
// request that controls transfers itself is left alone. Some releases fail on a first leg that has to call a tool, because its
// only token does not.
func splittable(in *Request, r *openai.Request) bool {
	return !in.Unparsed && !in.Light && routeSplits(in, r) &&
		len(r.Prompts) <= 1 && r.N <= 1 && r.MaxTokens != 1 && !r.CacheUnreported && !r.ForcesTool && !r.NoCacheRead &&
		!r.Background && r.Steering&openai.SteersTransfer == 0
}

// routeSplits reports whether requests of a route are handed over. For Responses, an engine can call tools itself and then generate again
// with the same parameters, whose blocks are free by then, and only one engine can know what comes before the prompt. Sidecars were
// run with two routes only.
func routeSplits(in *Request, r *openai.Request) bool {
	switch in.Route {
	case openai.Completions, openai.ChatCompletions:
		return true
	case openai.Messages:
		return in.Splits
	case openai.Responses:
		return in.Splits && !r.Stateful && len(r.Tools) == 0
	}
	return false
}

// passOn ends the decision for the next one of the same request, which gets what the tenant has taken. handedOver: the next
// decision is for the DecodeLeg.
func (d *Decision) passOn(handedOver bool) caller {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return caller{class: everybody}
	}
	d.ended = true
	now, outcome := d.now(), Failed
	if handedOver { // the endpoint has prefilled
		outcome = Completed
		d.succeed()
		d.handoff.lease = d.Targets[d.target].member.leases.add(now)
		d.booking.FirstToken(now) // the answer is that of the prefill, so it shows the endpoint's speed
		d.complete(now)
		d.checkBlocks(now)
	} else {
		d.leaveTarget(now)
		d.handoff.lease.release()
		d.handoff.first.endRelay(false)
		if d.handoff.leg == PrefillLeg {
			d.handoff.trial.giveUp(now)
		}
		if d.loading() {
			if d.handoff.full && !d.handoff.lost {
				d.Handoff(HandoffNoDecode)
			}
			d.handoffFailed()
		}
	}
	d.passed(now, outcome)
	return d.caller
}

// passed ends the account of a decision that another one follows. d.mu is held.
func (d *Decision) passed(now time.Time, outcome Outcome) {
	d.keys, d.more, d.chunks = nil, nil, nil
	d.endComing()
	if d.account != nil {
		d.account.log = nil // it gets the last decision
		d.account.end(now, d.Targets[d.target].Endpoint, d.target, outcome)
		d.account = nil
	}
}

// endComing takes the mark off the endpoint that the plan counts on. d.mu is held.
func (d *Decision) endComing() {
	if m := d.handoff.coming; m != nil {
		m.coming.Add(-1)
		d.handoff.coming = nil
	}
}

// endLeg counts how a hand-off has ended with its decision. d.mu is held.
func (d *Decision) endLeg(outcome Outcome) {
	d.endComing()
	d.handoff.lease.release()
	defer d.handoff.first.endRelay(outcome == Unreported)
	switch {
	case d.handoff.leg == Whole, d.handoff.loaded, d.handoff.lost:
	case outcome == ClientGone:
		d.Handoff(HandoffClientGone)
	case d.handoff.leg == DecodeLeg && outcome == Completed:
		d.handedOver()
	case d.handoff.full && !d.fullOfEither():
		d.Handoff(HandoffNoDecode)
	case d.handoff.first != nil && outcome != Failed: // it is not known, or the fault of the request
	case d.handoff.leg == DecodeLeg:
		d.handoffFailed()
	}
}

// fullOfEither reports whether a full queue can be that of either endpoint: a sidecar of llm-d's does not show which one
// has refused its leg.
func (d *Decision) fullOfEither() bool {
	return d.handoff.first != nil && !d.handoff.atOnce && !d.handoff.seen
}

// loading reports whether the decision is for a DecodeLeg whose endpoint has not generated a token yet. d.mu is held.
func (d *Decision) loading() bool { return d.handoff.leg == DecodeLeg && !d.handoff.loaded }

// handedOver counts a hand-off as completed, once, if the decision is for a DecodeLeg. d.mu is held.
func (d *Decision) handedOver() {
	if d.loading() {
		h := &d.handoff
		h.loaded, h.prompt = true, nil
		h.lease.release()
		switch to := &d.Targets[d.target]; {
		case h.lost: // what the endpoint has sent meanwhile
		case h.first != nil && !h.seen && !h.atOnce:
			h.first.answeredBy(to)
		default:
			d.completed(h.from, to)
		}
	}
}

// completed counts a hand-off that went well.
func (d *Decision) completed(from, to *Target) {
	d.Handoff(HandoffCompleted)
	from.member.gives.succeed(to.member.hash)
	to.member.receives.succeed(from.member.hash)
}

// handoffFailed counts an endpoint that has failed to load the blocks, unless its queue was full. d.mu is held.
func (d *Decision) handoffFailed() {
	if !d.handoff.full && !d.handoff.lost {
		d.Handoff(HandoffDecodeFailed)
	}
	d.handoff.full = false
}

// legPrompt finds the leg of a parsed request, and its prompt: what the first leg has kept for the second, if its keys are by
// the root of v, or what can be known of it.
func (p *Picker) legPrompt(ctx context.Context, v *view, s *scratch, state *pickState, in *Request) prompt {
	if !in.HandedOver {
		if in.Again != nil {
			before := &in.Again.handoff
			state.accused, state.handedBefore, state.compared = before.accused, before.split, before.compared
		}
		state.atOnce = in.Splits && v.spec.Policy.Handoffs.Connector.atOnce()
		state.relays = in.Relays && v.spec.Policy.Handoffs.Sidecar || state.atOnce
		state.pulls = in.Splits && splittable(in, &s.request)
		state.splits = v.roles && (in.Splits || state.relays) && splittable(in, &s.request)
		return p.promptOf(ctx, v, s, in.Body)
	}
	state.takeOver(in.Again)
	if kept := state.handoff.prompt; kept != nil && in.Again.view.spec.Seed == v.spec.Seed {
		return *kept
	}
	return p.promptOf(ctx, v, s, in.Body)
}

// takeOver begins the DecodeLeg of a request with what the decision before has kept.
func (state *pickState) takeOver(before *Decision) {
	state.leg, state.handoff, state.handedBefore, state.compared = DecodeLeg, before.handoff, true, before.handoff.compared
	if state.handoff.leg == PrefillLeg {
		state.handoff.from = before.Target()
	}
}

// describeLeg fills in what a decision has as a leg of a request. Its keys are known.
func (d *Decision) describeLeg(s *scratch, state *pickState) {
	d.handoff.leg, d.handoff.split, d.handoff.compared = state.leg, state.handedBefore || state.leg != Whole, state.compared
	switch {
	case state.leg == PrefillLeg && state.relays:
		d.handoff.trial = state.trial
		d.handoff.relayed, d.handoff.planned, d.handoff.atOnce = !state.atOnce, state.coming, state.atOnce
	case state.leg == PrefillLeg:
		kept := state.prompt
		kept.keys, kept.former, kept.ids = d.keys, slices.Clone(state.former), nil
		d.handoff.trial = state.trial
		d.handoff.prompt, d.handoff.coming, d.handoff.planned = &kept, state.coming, state.coming
		if state.logs {
			d.handoff.compared = state.plans.record(d.view)
		}
		state.coming.coming.Add(1)
	case state.leg == DecodeLeg:
		first := d.view.members[s.index[s.order[0]]]
		d.handoff.prompt, d.handoff.planned, d.handoff.from = state.handoff.prompt, state.handoff.planned, state.handoff.from
		d.handoff.lease, d.handoff.first, d.handoff.atOnce = state.handoff.lease, state.first, state.first != nil && state.atOnce
		d.handoff.trial = state.handoff.trial.of(d.handoff.from.member, first, d.now())
		d.handoff.tokens = s.lacking[s.order[0]]
		d.handoff.wait, d.handoff.idle = first.load.Predict(d.now(), load.Work{}), first.load.PredictIdle(load.Work{})
		d.counted = false // its usage counts what it has loaded as found
		first.stats.picks.Add(1)
	default:
		d.handoff.accused = state.accused
		d.describePull(state.pull, d.view.members[s.index[s.order[0]]])
	}
}

// reportsPrefill reports whether the end of the prefill shows, and is the time of a prefill: of streams by their first token,
// and of a PrefillLeg by its answer. In a DecodeLeg it is the end of a transfer. The answer to a relayed PrefillLeg is not shown; without
// events it ends with the first token of the stream at the latest, and of other answers when it should be over. Kvasir's sidecar
// reports it.
func (d *Decision) reportsPrefill() bool {
	switch {
	case d.handoff.relayed && d.view.spec.Policy.Handoffs.Own:
		return true
	case d.handoff.relayed: // by its events
		return d.streamed && !d.view.spec.NoEvents
	case d.handoff.leg == PrefillLeg:
		return true
	}
	return d.streamed && d.handoff.leg == Whole && d.handoff.pulls == nil
}

// addTo reports the hand-offs of a pool.
func (h *handoffs) addTo(s *PoolStats, roles bool) {
	if roles || h.plans[PlanPull].Load() > 0 {
		s.TransferSeconds, s.TransferTokenSeconds = h.price.now()
		s.Plans = map[PlanChoice]int64{}
		for i := range h.plans {
			s.Plans[PlanChoice(i)] = h.plans[i].Load()
		}
	}
	s.Handoffs = map[HandoffOutcome]int64{}
	for i := range h.outcomes {
		s.Handoffs[HandoffOutcome(i)] = h.outcomes[i].Load()
	}
}

package lab

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// Roles are which parts of requests the pods of a fleet serve.
type Roles struct {
	// Prefillers are how many pods only prefill, the first ones of the fleet. The others decode, and can prefill. With 0, all
	// pods serve whole requests.
	Prefillers int
	// Rule is by which requests are handed over.
	Rule picker.HandoffSpec
}

const (
	// transferBase and transferToken are how long a hand-off takes, and how much longer for each token that the second pod
	// lacks: measured between two H200 (docs/disaggregation.md).
	transferBase  = 27 * time.Millisecond
	transferToken = 10700 * time.Nanosecond
)

// of is the role of a pod.
func (r *Roles) of(pod int) endpoint.Role {
	switch {
	case r.Prefillers == 0:
		return endpoint.Both
	case pod < r.Prefillers:
		return endpoint.Prefill
	}
	return endpoint.Decode
}

// prefilled is the first leg of a request at a pod, which holds the blocks.
type prefilled struct {
	pod     int
	request *enginemodel.Request
}

// leg makes the engine's request of that of a decision, and keeps what was prefilled before.
func (s *sim) leg(x, before *sent, spec enginemodel.Spec) enginemodel.Spec {
	if before != nil {
		x.at, x.prefilled = before.at, &prefilled{before.pod, before.request}
	}
	switch x.decision.Leg() {
	case picker.PrefillLeg:
		spec.MaxTokens, spec.Hold = 1, true
	case picker.DecodeLeg:
		spec.Loaded = true
	case picker.Whole:
	}
	return spec
}

// handOver picks the pod that answers a request that was prefilled.
func (s *sim) handOver(slot int) {
	x, r := s.live[slot], &s.Workload.Requests[slot]
	s.out.left(s.now, x.pod)
	s.out.handedOver++
	prompt := r.Prompt()
	s.pick(slot, &picker.Keyed{
		Model: r.model(), Header: r.header, Prompt: prompt, Keys: s.keysOf(r, prompt), Streamed: true, Again: x.decision, HandedOver: true,
	}, x.arrived)
}

// transfer lets a request begin at its pod when the blocks that the pod lacks have arrived.
func (s *sim) transfer(slot int, prompt []uint32) {
	x := s.live[slot]
	has := s.pods[x.pod].engine.Match(s.Workload.Requests[slot].Adapter, "", prompt) * s.BlockTokens
	s.agenda.add(s.now+transferBase+time.Duration(len(prompt)-has)*transferToken, reached, slot)
}

// free lets the pod that has prefilled a request use the blocks for others. It does nothing for other requests, and the second
// time.
func (s *sim) free(x *sent) {
	if x == nil || x.prefilled == nil {
		return
	}
	i := x.prefilled.pod
	s.pods[i].engine.Free(x.prefilled.request)
	if !s.pods[i].busy {
		s.step(i)
	}
}

// drop ends the first leg of a request whose second leg is refused. It does nothing for a request without a first leg.
func (s *sim) drop(slot int) {
	if first := s.live[slot]; first != nil {
		s.live[slot] = nil
		s.free(&sent{prefilled: &prefilled{first.pod, first.request}})
	}
}

// computedBy is the request of the engine that has computed the prompt.
func (x *sent) computedBy() *enginemodel.Request {
	if x.prefilled != nil && x.decision.Leg() == picker.DecodeLeg {
		return x.prefilled.request
	}
	return x.request
}

// token measures the time since the last token of an answer.
func (s *sim) token(out *enginemodel.Output) {
	x := s.live[out.Request.Slot]
	if !out.First {
		s.out.gaps = append(s.out.gaps, (s.now - x.last).Seconds())
	}
	x.last = s.now
}

// pull loads what a pod lacks of a prompt from the peer of a decision, and returns how long that takes; 0 without one.
func (s *sim) pull(d *picker.Decision, pod int, spec *enginemodel.Spec) time.Duration {
	peer := d.PullFrom()
	if peer == nil {
		return 0
	}
	match := func(pod int) int {
		return s.pods[pod].engine.Match(spec.Adapter, spec.Salt, spec.Prompt) * s.BlockTokens
	}
	there, own := match(s.out.pods[peer.Pod]), match(pod)
	if there <= own {
		return 0
	}
	spec.Arrived = there
	return transferBase + time.Duration(there-own)*transferToken
}

// depart sends a request to its pod. With a pull, it begins there once the blocks have arrived.
func (s *sim) depart(slot int, pulls time.Duration) {
	if pulls == 0 {
		s.travel(slot)
		return
	}
	s.out.handedOver++
	s.agenda.add(s.now+pulls, reached, slot)
}

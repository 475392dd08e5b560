package picker

import (
	"slices"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// Keyed is a request whose tokens and keys are known: one of a simulation, which has no body to parse.
type Keyed struct {
	Model string
	// Header reads a request header by its lower-case name; nil when there are none.
	Header func(name string) string
	// Prompt is its token ids.
	Prompt []uint32
	// Keys of the prompt's whole blocks.
	Keys []kvblock.Key
	// Streamed answers show when the prefill ends.
	Streamed bool
	// Splits, Again and HandedOver are as in Request.
	Splits     bool
	Again      *Decision
	HandedOver bool
	// Routing is set by PickKeyed if the model is a ModelRoute's, and kept for the next pick after FallBackKeyed.
	Routing *Routing
}

// Wait is a request that waits for a full pool.
type Wait struct {
	picker *Picker
	queue  *admissionQueue
	waiter *waiter
	keyed  Keyed
	state  pickState
}

// PickKeyed chooses endpoints as Pick does once it has the keys. The caller must end the decision. It never blocks: where
// Pick would wait, the decision is nil, and the Wait returns it when the request is admitted. It fails with an *Error.
func (p *Picker) PickKeyed(in *Keyed) (*Decision, *Wait, error) {
	s := p.scratch.Get().(*scratch)
	defer p.release(s)
	v, err := p.poolOf(in, &s.request)
	if err != nil {
		return nil, nil, err
	}
	state := pickState{
		start: p.now(), header: in.Header, prompt: prompt{keys: in.Keys, tokens: len(in.Prompt), source: TokensGiven, ids: in.Prompt},
	}
	if in.Again != nil {
		state.caller, state.start, state.again = in.Again.passOn(in.HandedOver), in.Again.arrived, true
	} else {
		v.tally.recordArrival(state.start)
		if state.caller, err = v.enter(p.options.Overload, state.start, in.Header, s.request.Model, in.Routing, nil); err != nil {
			return nil, nil, err
		}
	}
	state.splits, state.pulls = v.roles && in.Splits, in.Splits
	if in.HandedOver {
		state.takeOver(in.Again)
	}
	current, w, err := p.passOrQueue(&v.admission, s, &state)
	if err != nil {
		p.refused(v, s, &state, err)
		state.drop()
		return nil, nil, err
	}
	if w != nil {
		wait := &Wait{picker: p, queue: &v.admission, waiter: w, keyed: *in, state: state}
		wait.keyed.Keys, wait.keyed.Model = slices.Clone(in.Keys), s.request.Model
		wait.state.keys = wait.keyed.Keys
		w.state.keys = wait.keyed.Keys // of its own
		return nil, wait, nil
	}
	defer current.unpin()
	d, err := p.choose(current, s, &state)
	if err != nil {
		state.drop()
	}
	return d, nil, err
}

// poolOf finds the pool of a request, by its route if there is one for its model, and makes of the request what a body would.
func (p *Picker) poolOf(in *Keyed, r *openai.Request) (*view, error) {
	in.fill(r)
	s := p.current.Load()
	if in.Routing != nil || s.routes[in.Model] != nil {
		return p.routedKeyed(s, in, r)
	}
	v := s.pool(in.Model)
	if v == nil {
		return nil, UnknownModel(in.Model)
	}
	return v, nil
}

// FallBackKeyed sends a request that was refused, by PickKeyed or after a Wait, to the next fallback of its route, as Pick does. It reports
// false if there is none for this reason, or none that can be tried now. The next pick is a new one, with the same Routing.
func (p *Picker) FallBackKeyed(in *Keyed, refused error) bool {
	if in.Routing == nil {
		return false
	}
	request := &Request{Routing: in.Routing}
	cause, known := p.causeOfRefusal(request, refused)
	return known && !in.Routing.over(p.now()) && p.fallBack(request, cause, false)
}

// drop releases what a request that finds no endpoint has held.
func (state *pickState) drop() {
	state.caller.pass.Release()
	state.handoff.lease.release()
}

// fill makes of a request what a body would.
func (in *Keyed) fill(r *openai.Request) {
	r.Model, r.Stream = in.Model, in.Streamed
	r.Prompts = append(r.Prompts[:0], openai.Prompt{Tokens: in.Prompt, IsTokens: true})
}

// Look lets through what pools have room for, and refuses what has waited too long. It is for callers that
// wait without blocking; ends of requests trigger it, the passing of time does not.
func (p *Picker) Look() {
	for _, v := range p.current.Load().pools {
		v.admission.look()
	}
}

// Poll reports whether the wait is over. Then it returns the decision, which must be ended, or an *Error.
func (w *Wait) Poll() (d *Decision, over bool, err error) {
	select {
	case err = <-w.waiter.over:
	default:
		return nil, false, nil
	}
	p := w.picker
	s := p.scratch.Get().(*scratch)
	defer p.release(s)
	w.keyed.fill(&s.request)
	if err != nil {
		if v := w.queue.view.Load(); v != nil {
			p.refused(v, s, &w.state, err)
		}
	} else {
		var v *view
		var booked func()
		if v, booked, err = p.resume(w.queue, w.waiter, s, &w.state); err == nil {
			defer booked()
			defer v.unpin()
			d, err = p.choose(v, s, &w.state)
		}
	}
	if err != nil {
		w.state.drop()
	}
	return d, true, err
}

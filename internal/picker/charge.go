package picker

import (
	"math"

	"github.com/kvasir-dev/kvasir/internal/load"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// What an answer counts against the rate of its tenant: what was sent, as far as it is known, while it is sent, and never
// more than the request allows. An engine that counts nonsense cannot lock a tenant out.

const (
	// chargeStep is how many tokens of an answer are charged together.
	chargeStep = 64
	// maxAnswers is the most answers that a request can ask an engine for, as far as its charge goes (vLLM refuses more).
	maxAnswers = 1 << 14
)

// allowance is the most tokens that the answer can have: what the request allows, or the model's length.
func (d *Decision) allowance() int {
	if d.route == openai.Embeddings && !d.unparsed {
		return 0
	}
	most := maxKeyed
	if n := d.view.maxLen(d.Targets[d.target].Endpoint.ID); n > 0 {
		most = min(most, n)
	}
	if d.maxTokens > 0 {
		most = min(most, d.maxTokens)
	}
	return min(most*min(max(1, d.answers), maxAnswers), math.MaxInt32)
}

// progress reports about how many tokens of the answer have arrived so far. The tenant is charged for them as they arrive,
// so that a long answer counts while it is sent.
func (d *Decision) progress(tokens int) {
	if d.unparsed && !d.generates {
		return
	}
	d.seen.Store(int64(tokens))
	if d.caller.pass == nil || int64(tokens) < d.charged.Load()+chargeStep {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.chargeUpTo(tokens)
}

// CountsTokens reports whether the tenant is charged for what is sent. Then the engine must not compress the answer: its tokens could not
// be counted, and its bytes are few.
func (d *Decision) CountsTokens() bool { return d.caller.pass.CountsTokens() }

// chargeUpTo charges the tenant for what was not charged of so many tokens of the answer. d.mu is held.
func (d *Decision) chargeUpTo(tokens int) {
	before := d.charged.Load()
	if d.caller.pass == nil || int64(tokens) <= before {
		return
	}
	if tokens = min(tokens, d.allowance()); int64(tokens) > before {
		d.charged.Store(int64(tokens))
		d.charge(tokens - int(before))
	}
}

// Generated records the number of tokens in the answer: they count against the tenant's rate. Call it once.
func (d *Decision) Generated(tokens int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handoff.leg == PrefillLeg {
		return // the token is generated again
	}
	tokens = min(tokens, d.allowance())
	d.chargeUpTo(tokens)
	d.reported.Generated = tokens
	d.account.generated(tokens)
}

// chargeAtEnd charges for what is known of an answer that did not count its tokens: what was received of it, or the engine's work
// on it if the answer is not visible or the client did not wait for it. d.mu is held.
func (d *Decision) chargeAtEnd(outcome Outcome) {
	if d.caller.pass == nil || d.reported.Generated >= 0 || d.handoff.leg == PrefillLeg || d.unparsed && !d.generates {
		return
	}
	bytes, seen := d.answered.Load(), int(d.seen.Load())
	switch {
	case seen > 0:
		d.chargeUpTo(seen)
	case outcome == ClientGone && bytes == 0, outcome == Unreported:
		d.chargeUpTo(load.Unseen(d.maxTokens, d.now().Sub(d.sent)))
	case outcome == Completed || outcome == ClientGone:
		d.chargeUpTo(int(bytes / bytesPerToken))
	}
}

// charge counts tokens for the tenant.
func (d *Decision) charge(tokens int) {
	if d.caller.pass == nil {
		return
	}
	d.caller.pass.Charge(d.now(), tokens)
	d.view.peers.Changed()
	d.view.tenants.add(d.caller.label, 0, int64(tokens))
}

package picker

import "time"

// Output is what was generated for a request.
type Output struct {
	// Tokens of the answer: as the engine counted them, or about as many as have arrived where the answer has no count.
	Tokens int
	// PerToken is the mean time between the tokens of one choice, from the first token of a streamed answer to its end. It is 0
	// where that is not known.
	PerToken time.Duration
}

// Output is what was generated, once the decision has ended.
func (d *Decision) Output() Output {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.output
}

// measure computes the output of an answer that ends now. d.mu is held.
func (d *Decision) measure(now time.Time, outcome Outcome) Output {
	if outcome == Unreported {
		return Output{}
	}
	out := Output{Tokens: d.reported.Generated}
	if out.Tokens < 0 {
		out.Tokens = int(d.seen.Load())
	}
	out.Tokens = min(out.Tokens, d.allowance())
	// Each choice has a first token, before which there is no interval.
	if intervals := out.Tokens - d.answers; intervals > 0 && !d.first.IsZero() {
		out.PerToken = now.Sub(d.first) * time.Duration(d.answers) / time.Duration(intervals)
	}
	return out
}

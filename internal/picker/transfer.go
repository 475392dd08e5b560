package picker

import (
	"sync"
	"time"
)

// learnTransfer takes the time of a transfer from the first token of a DecodeLeg. d.mu is held.
func (d *Decision) learnTransfer(now time.Time) {
	h := &d.handoff
	if h.leg != DecodeLeg || !d.streamed || d.retried || !d.first.IsZero() {
		return
	}
	switch {
	case h.seen: // by a sidecar: prefills that were ahead at the pick have gone on until the second leg was sent
		ahead := max(0, h.wait-h.idle-h.sent.Sub(d.picked))
		d.view.handoffs.price.learn(h.tokens, (now.Sub(h.sent) - h.idle - ahead).Seconds())
	case h.first == nil:
		d.view.handoffs.price.learn(h.tokens, (now.Sub(d.sent) - h.wait).Seconds())
	case h.atOnce && !h.prefilled.IsZero(): // the wait was at the same time as the prefill
		d.view.handoffs.price.learn(h.tokens, now.Sub(h.prefilled).Seconds())
	}
}

// transferPrice learns how long hand-offs take: base seconds and perToken seconds for each token that is loaded, by a
// regression over the recent ones, where each counts less than the next. It is safe for concurrent use. The zero value
// knows the assumed price only.
type transferPrice struct {
	mu              sync.Mutex
	n, x, y, xx, xy float64 // weighted sums over samples of tokens x in seconds y, in thousands of tokens
	base, perToken  float64 // learned
	learned         bool
}

const (
	// assumedBase and assumedPerToken are the price while none is learned: measured between two H200.
	assumedBase, assumedPerToken = 0.027, 10.7e-6
	// transferMemory is the factor by which each sample lowers the weights of earlier ones.
	transferMemory = 0.98
	// shortTransfer and longTransfer are the lengths of two assumed transfers, in thousands of tokens, that always count as one sample each.
	shortTransfer, longTransfer = 0.5, 8
	// unlikely bounds a sample to so many times what was expected, because a wait in the engine can be part of it.
	unlikely = 8
)

// now is the price in seconds for each hand-off, and for each token of it.
func (p *transferPrice) now() (base, perToken float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.learned {
		return assumedBase, assumedPerToken
	}
	return p.base, p.perToken
}

// seconds that a hand-off of so many tokens takes.
func (p *transferPrice) seconds(tokens int) float64 {
	base, perToken := p.now()
	return base + perToken*float64(tokens)
}

// learn takes a hand-off of so many tokens that took so many seconds.
func (p *transferPrice) learn(tokens int, seconds float64) {
	seconds = max(0, min(seconds, unlikely*p.seconds(tokens)))
	x := float64(tokens) / 1000
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, sum := range []*float64{&p.n, &p.x, &p.y, &p.xx, &p.xy} {
		*sum *= transferMemory
	}
	p.n, p.x, p.y, p.xx, p.xy = p.n+1, p.x+x, p.y+seconds, p.xx+x*x, p.xy+x*seconds
	n, sx, sy, xx, xy := p.n, p.x, p.y, p.xx, p.xy
	for _, x := range []float64{shortTransfer, longTransfer} {
		y := assumedBase + assumedPerToken*1000*x
		n, sx, sy, xx, xy = n+1, sx+x, sy+y, xx+x*x, xy+x*y
	}
	slope := max(0, (n*xy-sx*sy)/(n*xx-sx*sx)) // never 0: the assumed transfers differ
	p.base, p.perToken, p.learned = max(0, (sy-slope*sx)/n), slope/1000, true
}

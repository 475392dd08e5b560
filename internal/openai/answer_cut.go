package openai

import "bytes"

// MaxCut is the size in bytes of an event that can be taken out of a stream. Larger ones are passed on: the usage event of an
// engine has a few hundred bytes.
const MaxCut = 4 << 10

// usageCut takes the usage event out of a stream: the event without choices that an engine adds for
// stream_options.include_usage. vLLM then names its fingerprint in that event; in other streams it does so in the event that
// finishes the answer. That event is therefore held back until the next one, and gets the fingerprint of a usage event
// behind it. Positions are in the buffer of the present WriteCut.
type usageCut struct {
	on          bool
	start       int    // of the present event
	waiting     int    // the bytes in front of start of an event that is held back; 0 if there is none
	kept        int    // the bytes that the client gets now: they are moved to the beginning of the buffer
	ended       bool   // an event has just ended
	events      int    // that have ended
	dropped     bool   // the last event was taken out
	passing     bool   // the client has the beginning of the present event already
	usage       bool   // the present event is JSON with a usage, and without choices and errors
	ends        bool   // it is JSON that finishes a choice, without fingerprint
	other       bool   // it has more than one line of data
	fingerprint []byte // the JSON string of its fingerprint; nil if there is none. It is valid until the next event begins
}

// WriteCut is Write for a stream whose request has been changed by PutStreamUsage. p begins with the rest that the last call
// has returned, of seen bytes; what follows is new. out is what the client gets now. rest is the beginning of an event that
// can turn out to be the usage event, and an event in front of it that finishes the answer, together at most MaxCut bytes.
// Both are parts of p, whose bytes are moved. The client gets each byte of the stream except for those of the usage event, in
// order; the fingerprint of that event becomes the last field of the event in front of it, if that finishes the answer.
func (a *AnswerScanner) WriteCut(p []byte, seen int) (out, rest []byte, first bool) {
	c := &a.cut
	c.on, c.start, c.kept = true, c.waiting, 0
	first = a.write(p, seen)
	if len(p)-c.start+c.waiting > MaxCut {
		c.release(p)
		c.passing = c.passing || len(p)-c.start > MaxCut
	}
	if c.passing {
		c.release(p)
		c.keep(p, len(p))
	}
	return p[:c.kept], p[c.start-c.waiting:], first
}

// CloseCut is Close after WriteCut, which has returned rest. It returns what the client gets of that.
func (a *AnswerScanner) CloseCut(rest []byte) (out []byte, first bool) {
	c := &a.cut
	waiting := c.waiting
	c.on, c.start, c.waiting, c.kept = true, 0, 0, 0
	for before := c.events; c.events == before; {
		first = a.write([]byte{'\n'}, 0) || first
	}
	if c.dropped {
		rest = rest[:waiting]
	}
	return rest, first
}

// event takes note that an event ends in front of end.
func (c *usageCut) event(p []byte, end int) {
	c.events++
	c.dropped = c.usage && !c.other && !c.passing
	switch {
	case c.dropped:
		c.sign(p)
		c.start = end
	case c.ends && !c.other && !c.passing && end-c.start <= MaxCut:
		c.release(p)
		c.waiting, c.start = end-c.start, end
	default:
		c.release(p)
		c.keep(p, end)
	}
	c.ended, c.usage, c.ends, c.other, c.passing, c.fingerprint = false, false, false, false, false, nil
}

// release lets the client get the event that is held back, if there is one.
func (c *usageCut) release(p []byte) {
	if c.waiting > 0 {
		c.kept += copy(p[c.kept:], p[c.start-c.waiting:c.start])
		c.waiting = 0
	}
}

// sign is release with the fingerprint of the usage event at start, whose bytes are more than what is added.
func (c *usageCut) sign(p []byte) {
	brace := bytes.LastIndexByte(p[c.start-c.waiting:c.start], '}')
	if c.waiting == 0 || c.fingerprint == nil || brace < 0 {
		c.release(p)
		return
	}
	const field = `,"system_fingerprint":`
	event := p[c.start-c.waiting : c.start]
	c.kept += copy(p[c.kept:], event[:brace])
	copy(p[c.kept+len(field)+len(c.fingerprint):], event[brace:])
	c.kept += copy(p[c.kept:], field)
	c.kept += copy(p[c.kept:], c.fingerprint)
	c.kept += len(event) - brace
	c.waiting = 0
}

// lineFeed takes the line feed in front of end, which follows a carriage return. It belongs to the event that the carriage
// return has ended, if it has ended one.
func (c *usageCut) lineFeed(p []byte, end int) {
	switch {
	case !c.on || c.passing || c.start != end-1:
	case c.waiting > 0:
		c.waiting, c.start = c.waiting+1, end
	case c.dropped:
		c.start = end
	default:
		c.keep(p, end)
	}
}

// keep lets the client get what precedes end. No event in front of it is held back.
func (c *usageCut) keep(p []byte, end int) {
	if c.kept != c.start {
		copy(p[c.kept:], p[c.start:end])
	}
	c.kept += end - c.start
	c.start = end
}

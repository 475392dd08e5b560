package openai

// MaxCut is the size in bytes of an event that can be taken out of a stream. Larger ones are passed on: the usage event of an
// engine has a few hundred bytes.
const MaxCut = 4 << 10

// usageCut takes the usage event out of a stream: the event without choices that an engine adds for
// stream_options.include_usage. Positions are in the buffer of the present WriteCut.
type usageCut struct {
	on      bool
	start   int  // of the present event
	kept    int  // the bytes that the client gets now: they are moved to the beginning of the buffer
	ended   bool // an event has just ended
	events  int  // that have ended
	dropped bool // the last event was taken out
	passing bool // the client has the beginning of the present event already
	usage   bool // the present event is JSON with a usage, and without choices and errors
	other   bool // it has more than one line of data
}

// WriteCut is Write for a stream whose request has been changed by PutStreamUsage. p begins with the rest that the last call
// has returned, of seen bytes; what follows is new. out is what the client gets now. rest is the beginning of an event that
// can turn out to be the usage event, at most MaxCut bytes. Both are parts of p, whose bytes are moved. The client gets each
// byte of the stream except for those of that event, in order.
func (a *AnswerScanner) WriteCut(p []byte, seen int) (out, rest []byte, first bool) {
	c := &a.cut
	c.on, c.start, c.kept = true, 0, 0
	first = a.write(p, seen)
	if c.passing = c.passing || len(p)-c.start > MaxCut; c.passing {
		c.keep(p, len(p))
	}
	return p[:c.kept], p[c.start:], first
}

// CloseCut is Close after WriteCut. It reports whether the client gets the rest.
func (a *AnswerScanner) CloseCut() (pass, first bool) {
	c := &a.cut
	c.on, c.start, c.kept = true, 0, 0
	for before := c.events; c.events == before; {
		first = a.write([]byte{'\n'}, 0) || first
	}
	return !c.dropped, first
}

// event takes note that an event ends in front of end.
func (c *usageCut) event(p []byte, end int) {
	c.events++
	if c.dropped = c.usage && !c.other && !c.passing; c.dropped {
		c.start = end
	} else {
		c.keep(p, end)
	}
	c.ended, c.usage, c.other, c.passing = false, false, false, false
}

// lineFeed takes the line feed in front of end, which follows a carriage return. It belongs to the event that the carriage
// return has ended, if it has ended one.
func (c *usageCut) lineFeed(p []byte, end int) {
	switch {
	case !c.on || c.passing || c.start != end-1:
	case c.dropped:
		c.start = end
	default:
		c.keep(p, end)
	}
}

// keep lets the client get what precedes end.
func (c *usageCut) keep(p []byte, end int) {
	if c.kept != c.start {
		copy(p[c.kept:], p[c.start:end])
	}
	c.kept += end - c.start
	c.start = end
}

package picker

import "sync/atomic"

// Engines report the usage of a stream, and with it the cached tokens, only to requests that ask for it, which most clients do
// not. The proxy asks in their place and takes the report out of the answer (openai.PutStreamUsage, AnswerScanner.WriteCut),
// so that the client gets what it would have got. Some engines report without being asked (--enable-force-include-usage of
// vLLM): their clients keep the report. Each endpoint therefore gets its first stream without the option:
//
//	           no report                           compressed
//	untried ---------------> asked, report removed -----------.
//	   | ^                      |                             v
//	   | '---- a failed attempt-'---------------------------- left alone
//	   '--- a report, or an answer that cannot be read ------>

// streamUsage is what an endpoint is known to do with streams that do not ask for usage.
type streamUsage struct{ state atomic.Uint32 }

const (
	usageUntried uint32 = iota // no such stream has been answered yet
	usageSilent                // it has not reported
	usageAlone                 // it has reported, or its answers cannot be edited
)

// asks reports whether requests can ask for usage.
func (u *streamUsage) asks() bool { return u.state.Load() == usageSilent }

// answered enters a complete stream whose request did not ask. readable: it is neither compressed nor of another form.
func (u *streamUsage) answered(reported, readable bool) {
	next := usageSilent
	if reported || !readable {
		next = usageAlone
	}
	u.state.CompareAndSwap(usageUntried, next)
}

// failed makes the next stream show it again: another engine can answer at the address.
func (u *streamUsage) failed() { u.state.Store(usageUntried) }

// AsksUsage decides, before the first attempt, whether the body must be made to ask for the usage of the stream, by
// openai.PutStreamUsage. Then CutsUsage of the answer reports whether the usage must be taken out.
func (d *Decision) AsksUsage() bool {
	d.asksUsage = d.takesUsage && d.view.spec.Policy.AsksUsage && d.Targets[0].member.usage.asks()
	return d.asksUsage
}

// CutsUsage reports, after Start, whether the usage event must be taken out of the answer to a request that was made to ask
// for it. Then WriteCut and CloseCut take the place of Write.
func (a *Answer) CutsUsage() bool {
	u := &a.decision.member().usage
	if !a.stream || a.status >= 300 || u.state.Load() == usageAlone {
		return false
	}
	if !a.readable {
		u.state.Store(usageAlone)
	}
	return a.readable
}

// WriteCut is Write for an answer whose usage event is taken out, see openai.AnswerScanner.WriteCut.
func (a *Answer) WriteCut(p []byte, seen int) (out, rest []byte, firstToken bool) {
	a.decision.answered.Add(int64(len(p) - seen))
	out, rest, firstToken = a.scanner.WriteCut(p, seen)
	a.decision.progress(a.scanner.Generated())
	if firstToken {
		a.decision.FirstToken()
	}
	return out, rest, firstToken
}

// CloseCut ends the stream after WriteCut, before Close. It returns what the client gets of the rest.
func (a *Answer) CloseCut(rest []byte) (out []byte, firstToken bool) {
	out, firstToken = a.scanner.CloseCut(rest)
	if firstToken {
		a.decision.FirstToken()
	}
	return out, firstToken
}

// learnUsage enters a complete answer.
func (a *Answer) learnUsage() {
	if d := a.decision; d.takesUsage && !d.asksUsage && a.stream && a.status < 300 {
		d.member().usage.answered(a.scanner.Usage.Have, a.readable)
	}
}

// member is that of the present target.
func (d *Decision) member() *member {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Targets[d.target].member
}

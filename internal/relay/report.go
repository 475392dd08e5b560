package relay

import (
	"strconv"
	"strings"
	"time"
)

// ReportHeader is the answer header with a Report, in lower case.
const ReportHeader = "x-kvasir-handoff-report"

// Outcome is how a hand-off has gone until the answer began.
type Outcome string

// The outcomes.
const (
	// HandedOver: the engine that decodes has answered with the parameters of the one that prefills.
	HandedOver Outcome = "handed_over"
	// PrefillFailed: the first engine has not prefilled; see Cause. The request was served alone, as it is after all that follow.
	PrefillFailed Outcome = "prefill_failed"
	// NoParameters: the answer of the first engine has no parameters.
	NoParameters Outcome = "no_parameters"
	// NoMemory: the sidecar had no room for the bodies of the legs.
	NoMemory Outcome = "no_memory"
	// DecodeFailed: the engine that decodes has answered the request with the parameters with an error.
	DecodeFailed Outcome = "decode_failed"
	// Refused: no engine was asked to prefill; see Cause.
	Refused Outcome = "refused"
)

// Cause is why an engine has not prefilled, or was not asked to.
type Cause string

// The causes.
const (
	CauseConnect Cause = "connect" // it has taken nothing of the request
	CauseBroken  Cause = "broken"  // it has closed the connection
	CauseLate    Cause = "late"    // it has not answered in time
	CauseFull    Cause = "full"    // its queue is full
	CauseError   Cause = "error"   // it has answered with an error
	CauseRequest Cause = "request" // it has answered with an error that is the request's fault, or such a request is not handed over
	CauseLocal   Cause = "local"   // the sidecar lacks what it needs to connect
	CauseTicket  Cause = "ticket"  // the sidecar does not take the ticket: it has no key for it, say, or has taken it before
)

// Report is what a sidecar has seen of a hand-off.
type Report struct {
	Outcome Outcome
	Cause   Cause // of PrefillFailed and Refused
	// Owed: the first engine, whose answer had NoParameters, would have had some if it handed over.
	Owed bool
	// Prompt and Cached are the tokens of the prompt that the first engine has counted, and those of them that were in its cache; -1 if it
	// has not reported them.
	Prompt, Cached int
	// Since is the time from when the second leg was sent until this report was; 0 if there was none.
	Since time.Duration
}

const (
	maxReport = 256
	maxTokens = 1 << 30
	maxSince  = 24 * time.Hour
)

// String is the header:
//
//	handed_over;prompt=500;cached=16;since=27.125
//
// Times are in milliseconds.
func (r *Report) String() string {
	b := append(make([]byte, 0, 64), r.Outcome...)
	if r.Cause != "" {
		b = append(append(b, ";cause="...), r.Cause...)
	}
	if r.Owed {
		b = append(b, ";owed=1"...)
	}
	if r.Prompt >= 0 {
		b = strconv.AppendInt(append(b, ";prompt="...), int64(r.Prompt), 10)
	}
	if r.Cached >= 0 {
		b = strconv.AppendInt(append(b, ";cached="...), int64(r.Cached), 10)
	}
	if r.Since > 0 {
		b = strconv.AppendFloat(append(b, ";since="...), float64(r.Since.Microseconds())/1000, 'f', -1, 64)
	}
	return string(b)
}

// ReadReport reads the header. It reports false for what no sidecar writes. Fields that it does not know are skipped.
func ReadReport(header string) (Report, bool) {
	r := Report{Prompt: -1, Cached: -1}
	if len(header) > maxReport {
		return r, false
	}
	outcome, rest, _ := strings.Cut(header, ";")
	switch r.Outcome = Outcome(outcome); r.Outcome {
	case HandedOver, PrefillFailed, NoParameters, NoMemory, DecodeFailed, Refused:
	default:
		return r, false
	}
	for rest != "" {
		var field string
		field, rest, _ = strings.Cut(rest, ";")
		name, value, _ := strings.Cut(field, "=")
		if !r.read(name, value) {
			return r, false
		}
	}
	if r.Cached > r.Prompt {
		return r, false
	}
	return r, true
}

func (r *Report) read(name, value string) bool {
	switch name {
	case "cause":
		r.Cause = Cause(value)
		switch r.Cause {
		case CauseConnect, CauseBroken, CauseLate, CauseFull, CauseError, CauseRequest, CauseLocal, CauseTicket:
			return true
		}
		return false
	case "owed":
		r.Owed = value == "1"
		return r.Owed
	case "prompt":
		return tokens(value, &r.Prompt)
	case "cached":
		return tokens(value, &r.Cached)
	case "since":
		ms, err := strconv.ParseFloat(value, 64)
		if err != nil || !(ms >= 0 && ms <= float64(maxSince.Milliseconds())) {
			return false
		}
		r.Since = time.Duration(ms * float64(time.Millisecond))
	}
	return true
}

func tokens(value string, to *int) bool {
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil || n > maxTokens {
		return false
	}
	*to = int(n)
	return true
}

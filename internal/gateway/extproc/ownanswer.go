package extproc

import (
	"bytes"
	"net/http"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// gatewayText is how much of a gateway's own answer is searched for the reason.
const gatewayText = 1 << 10

// ownAnswer is what is known of an answer that a gateway gives in place of an engine. The texts are Envoy's.
type ownAnswer uint8

const (
	notOwn   ownAnswer = iota
	unread             // it looks like the gateway's own, and its text is not known yet
	overflow           // a limit of the gateway on connections or requests: no endpoint was asked
	noHost             // the gateway knows no endpoint that it can send the request to
	noConnection
	aborted     // the engine aborted
	otherwise   // another reason that has nothing to do with an abort
	unexplained // it gives no reason: the endpoint could not be reached, or aborted
)

// ownAnswerOf reports whether an answer is one that a gateway gives in place of an engine that it did not reach or that
// aborted. Engines answer in JSON, and Envoy adds its header to what they answer.
func ownAnswerOf(code int, h head) ownAnswer {
	switch {
	case code != http.StatusBadGateway && code != http.StatusServiceUnavailable, h.get("x-envoy-upstream-service-time") != "":
		return notOwn
	case h.get("x-envoy-overloaded") != "":
		return overflow
	case strings.HasPrefix(h.get("content-type"), "application/json"):
		return notOwn
	}
	return unread
}

// reasonIn returns the reason that the text of a gateway's own answer gives.
func reasonIn(text []byte) ownAnswer {
	text = bytes.ToLower(bytes.ReplaceAll(text[:min(len(text), gatewayText)], []byte("_"), []byte(" ")))
	for _, known := range [...]struct {
		text string
		ownAnswer
	}{
		{"connection termination", aborted}, {"remote reset", aborted}, {"overflow", overflow}, {"no healthy upstream", noHost},
		{"connection failure", noConnection}, {"connection timeout", noConnection}, {"reset reason", otherwise}, {"timeout", otherwise},
	} {
		if bytes.Contains(text, []byte(known.text)) {
			return known.ownAnswer
		}
	}
	return unexplained
}

// readOwn judges a gateway's own answer by its first piece. An engine that aborted makes the request suspect; without a
// reason in the text the endpoint decides, see circuit.Suspects.
func (x *exchange) readOwn(text []byte) {
	if x.own != unread {
		return
	}
	x.own = reasonIn(text)
	if x.mark != 0 && x.decision != nil && (x.own == aborted || x.own == unexplained) {
		x.decision.BrokeOff(x.server.picker.Suspects(), x.mark, x.own == aborted)
	}
}

// accountOwn accounts for a gateway's own answer that does not count as an answer of the picked endpoint. It reports whether the
// answer is such a one.
func (x *exchange) accountOwn() bool {
	switch x.own {
	case overflow:
		x.decision.Unasked()
	case noHost:
		x.decision.Unasked()
		if !x.silent {
			x.decision.Unfollowed()
		}
	case noConnection:
		x.decision.Fail()
	default:
		return false
	}
	return true
}

// failByHeader accounts for an error whose body is not shown to its end, and returns the outcome of the request.
func (x *exchange) failByHeader() picker.Outcome {
	switch {
	case x.accountOwn():
	case x.own == notOwn:
		return x.answer.Unread()
	case picker.ServerError(x.status):
		x.decision.Fail()
	}
	return picker.OutcomeOf(x.status)
}

package httpproxy

import "net/textproto"

// explain puts into the answer's header where the request went and why, where the policy allows it.
func (e *exchange) explain() {
	if !e.decision.Explains(e.request.Header.Get(explainHeader)) {
		return
	}
	h := e.client.Header()
	e.decision.Explain(e.attempt, func(name, value string) {
		h[textproto.CanonicalMIMEHeaderKey(name)] = []string{value}
	})
}

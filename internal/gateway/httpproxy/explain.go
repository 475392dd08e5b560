package httpproxy

// explain puts into the answer's header where the request went and why, where the policy allows it.
func (e *exchange) explain() {
	if !e.decision.Explains(e.request.Header.Get(explainHeader)) {
		return
	}
	e.decision.Explain(e.attempt, e.client.put)
}

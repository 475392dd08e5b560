package httpproxy

import (
	"strconv"
)

// explain puts into the answer's header where the request went and why, where the policy allows it:
//
//	x-kvasir-endpoint          pod/rank
//	x-kvasir-strategy          the strategy's name
//	x-kvasir-tokens            where the token ids came from, and why there are none
//	x-kvasir-prompt-tokens     the prompt's length, estimated where the ids are not known
//	x-kvasir-predicted-tokens  of them, how many the endpoint should find in its cache
//	x-kvasir-confirmed-tokens  the part of those that the pod itself has announced
//	x-kvasir-reason            match in blocks, requests in flight before this one, cost, candidates
//	x-kvasir-attempt           which of the ordered endpoints has answered, from 1
func (e *exchange) explain() {
	d := e.decision
	switch d.Spec().Policy.AnswerHeaders {
	case "Always":
	case "OnRequest":
		if on, err := strconv.ParseBool(e.request.Header.Get(explainHeader)); err != nil || !on {
			return
		}
	default:
		return
	}
	t := &d.Targets[e.attempt]
	h := e.client.Header()
	put := func(name, value string) { h[ownPrefix+name] = []string{value} }
	put("Endpoint", t.Endpoint.Pod+"/"+strconv.Itoa(t.Endpoint.ID.Rank))
	put("Strategy", string(d.Strategy))
	tokens := d.Tokens.String()
	if d.TokensMissing != "" {
		tokens += "; reason=" + d.TokensMissing
	}
	put("Tokens", tokens)
	put("Prompt-Tokens", strconv.Itoa(d.PromptTokens))
	put("Predicted-Tokens", strconv.Itoa(t.Predicted))
	put("Confirmed-Tokens", strconv.Itoa(t.Confirmed))
	blocks := d.PromptTokens / max(1, d.Spec().BlockTokens)
	reason := make([]byte, 0, 64)
	reason = append(reason, "match="...)
	reason = strconv.AppendInt(reason, int64(t.Match.Blocks()), 10)
	reason = append(reason, '/')
	reason = strconv.AppendInt(reason, int64(blocks), 10)
	reason = append(reason, " inflight="...)
	reason = strconv.AppendInt(reason, int64(t.InFlight), 10)
	reason = append(reason, " cost="...)
	reason = strconv.AppendFloat(reason, t.Cost.First, 'g', 4, 64)
	reason = append(reason, " candidates="...)
	reason = strconv.AppendInt(reason, int64(t.Candidates()), 10)
	put("Reason", string(reason))
	put("Attempt", strconv.Itoa(e.attempt+1))
}

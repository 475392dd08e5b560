package picker

import "strconv"

// Candidates is the number of endpoints that were scored for the request.
func (t *Target) Candidates() int { return t.rankedAmong }

// ExplainHeader is the request header, in lower case, that asks for an explanation.
const ExplainHeader = "x-kvasir-explain"

// Explains reports whether the policy allows an answer to show where its request was sent and why. asked is the value of
// the request's ExplainHeader.
func (d *Decision) Explains(asked string) bool {
	switch d.view.spec.Policy.AnswerHeaders {
	case "Always":
		return true
	case "OnRequest":
		on, err := strconv.ParseBool(asked)
		return err == nil && on
	}
	return false
}

// Explain passes to put the headers that describe where the request was sent and why, when Targets[i] has answered:
//
//	x-kvasir-endpoint          pod/rank
//	x-kvasir-strategy          the strategy's name
//	x-kvasir-tokens            where the token ids came from, and why there are none
//	x-kvasir-prompt-tokens     the length of all prompts, estimated where the ids are not known
//	x-kvasir-predicted-tokens  of them, how many the endpoint should find in its cache; of several choices, how many the
//	                           last one should, because usage counts these
//	x-kvasir-confirmed-tokens  the part of those that the pod itself has announced
//	x-kvasir-reason            match in blocks, requests in flight before this one, cost, candidates; stalled, like all
//	                           others it shows no progress; and found, what the index has in blocks, where not all of it
//	                           counts: doubted, events of the endpoint are missing; distrusted, the endpoint does not find
//	                           what it announces; no-cache-read, the engine looks nothing up for such a request;
//	                           endpoint-differs, it counts or announces other tokens for them than the others; and routed,
//	                           the chunks of the text that were routed there before, where the strategy matches these
//	x-kvasir-prefill-endpoint  the pod/rank that has prefilled, if another one
//	x-kvasir-attempt           which of the ordered endpoints has answered, from 1
//	x-kvasir-hooks             the outcome of each step of the policy, by pool; only where there are steps
//	x-kvasir-route             the ModelRoute, its rule from 0, the pool, and why this one; only where there is a route
func (d *Decision) Explain(i int, put func(name, value string)) {
	t := &d.Targets[i]
	put("x-kvasir-endpoint", t.Endpoint.Pod+"/"+strconv.Itoa(t.Endpoint.ID.Rank))
	put("x-kvasir-strategy", string(d.Strategy))
	tokens := d.Tokens.String()
	if d.TokensMissing != "" {
		tokens += "; reason=" + d.TokensMissing
	}
	put("x-kvasir-tokens", tokens)
	put("x-kvasir-prompt-tokens", strconv.Itoa(d.PromptTokens+d.otherTokens))
	put("x-kvasir-predicted-tokens", strconv.Itoa(t.Expected))
	put("x-kvasir-confirmed-tokens", strconv.Itoa(t.Confirmed))
	blocks := d.PromptTokens / max(1, d.view.spec.BlockTokens)
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
	if d.Chunks > 0 {
		reason = append(reason, " routed="...)
		reason = strconv.AppendInt(reason, int64(t.Routed), 10)
		reason = append(reason, '/')
		reason = strconv.AppendInt(reason, int64(d.Chunks), 10)
	}
	if t.Doubted || t.Distrusted || d.NoCacheRead {
		reason = append(reason, " found="...)
		reason = strconv.AppendInt(reason, int64(t.Found.Blocks()), 10)
	}
	if t.Stalled {
		reason = append(reason, " stalled"...)
	}
	if t.Doubted {
		reason = append(reason, " doubted"...)
	}
	if t.Distrusted {
		reason = append(reason, " distrusted"...)
	}
	if t.Differs {
		reason = append(reason, " endpoint-differs"...)
	}
	if d.NoCacheRead {
		reason = append(reason, " no-cache-read"...)
	}
	put("x-kvasir-reason", string(reason))
	if h := &d.handoff; h.leg == DecodeLeg && !h.alone {
		put("x-kvasir-prefill-endpoint", nameOf(h.from.Endpoint))
	}
	put("x-kvasir-attempt", strconv.Itoa(i+1))
	if d.hooked != nil {
		put("x-kvasir-hooks", d.hooked.String())
	}
	if r := d.routed; r != nil {
		put("x-kvasir-route", r.String()+"; pool="+d.Namespace+"/"+d.Pool+"; "+r.Why())
	}
}

package picker

import "github.com/kvasir-dev/kvasir/internal/openai"

// AsksReport decides, before the first attempt, whether the body must ask the engine, by openai.PutReport, to announce again what
// it finds of the prompt in its cache. That is so after the endpoint's history was lost, for prompts without a known block:
// answers prove their blocks as well (see proofs), but only announced ones are followed when the engine evicts them. A prompt
// with known blocks asks for nothing, because a report would count these as second copies, which the engine removes once.
func (d *Decision) AsksReport() bool {
	t, v := &d.Targets[0], d.view
	usable := (d.PromptTokens - 1) / v.spec.BlockTokens / t.member.grain.keys()
	if !d.takesReport || d.NoCacheRead || len(d.keys) == 0 || usable == 0 || !v.spec.Policy.AsksUsage || !t.member.incomplete.Load() {
		return false
	}
	exact := v.exact.Load()
	return t.Found.Confirmed() == 0 && exact != nil && exact.Releases != nil &&
		(*exact.Releases)[t.Endpoint.Epoch()] >= openai.ReportSince
}

package picker

import (
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// AsksReport decides, before the first attempt, whether the body must ask the engine, by openai.PutReport, to announce again what
// it finds of the prompt in its cache. That is so after the endpoint's history was lost, for prompts that the index does not know
// whole: answers prove such blocks as well (see proofs), but only announced ones are followed when the engine evicts them. A
// prompt whose blocks were announced asks no more.
func (d *Decision) AsksReport() bool {
	t, v := &d.Targets[0], d.view
	if !d.takesReport || d.NoCacheRead || len(d.keys) == 0 || !v.spec.Policy.AsksUsage || !t.member.incomplete.Load() {
		return false
	}
	exact := v.exact.Load()
	if exact == nil || exact.Releases == nil || (*exact.Releases)[t.Endpoint.Epoch()] < openai.ReportSince {
		return false
	}
	var all kvindex.Match
	all.Tiers[kvblock.GPU] = uint32(len(d.keys)) // of one prompt
	known, whole := v.whole(t.member, t.Found, d.PromptTokens), v.whole(t.member, all, d.PromptTokens)
	return known.Confirmed() < whole.Confirmed()
}

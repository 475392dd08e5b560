package view

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
)

// Explanation is where a request would go, with the terms of every candidate's cost.
func Explanation(c *console.Console, e *api.Explanation) []string {
	lines := []string{fmt.Sprintf("Pool %s/%s, model %s, strategy %s", e.Namespace, e.Pool, e.Model, c.Paint(console.Strong, e.Strategy))}
	if e.Route != "" {
		lines = append(lines, "By ModelRoute "+e.Route)
	}
	if e.Hooks != "" {
		lines = append(lines, "Hooks: "+e.Hooks)
	}
	if e.ResponseCache != nil {
		lines = append(lines, "Response cache of this replica: "+cacheResult(e.ResponseCache))
	}
	tokens := fmt.Sprintf("Prompt of %d tokens (%s)", e.PromptTokens, e.Tokens)
	if e.TokensMissing != "" {
		tokens += ", not exact: " + e.TokensMissing
	}
	if e.Prefix != "" {
		tokens += ", prefix " + e.Prefix
	}
	lines = append(lines, tokens)
	if e.Distrusted {
		lines = append(lines, c.Paint(console.Warn, "Matches of some endpoints are not believed: they do not find what they announce for such requests"))
	}
	if e.NoCacheRead {
		lines = append(lines, "Engines read no cache for such a request: it asks for log-probabilities of the prompt")
	}
	if len(e.Candidates) == 0 {
		lines = append(lines, c.Paint(console.Bad, "No endpoint could take it"))
	} else {
		goes := "It would go to " + c.Paint(console.Good, place(e.Candidates[0].Pod, e.Candidates[0].Rank)) + "."
		if e.Plans != nil {
			goes = "The endpoints for it as a whole, the cheapest first:"
		}
		lines = append(lines, "", goes, "")
		lines = append(lines, candidates(e).Lines(c)...)
	}
	if len(e.Fleet) > 0 {
		lines = append(lines, "", "For all of them: "+strings.Join(terms(e.Fleet), ", "))
	}
	if e.Plans != nil {
		lines = append(append(lines, ""), plans(c, e.Plans)...)
	}
	if len(e.LeftOut) > 0 {
		g := console.Grid{Header: []string{"LEFT OUT", "REASON"}}
		for _, l := range e.LeftOut {
			g.Add(console.Text(place(l.Pod, l.Rank)), console.Cell{Text: l.Reason, Tone: console.Warn})
		}
		lines = append(append(lines, ""), g.Lines(c)...)
	}
	return lines
}

// candidates has a column for each term that any of them has.
// cacheResult is what a response cache would do with a request.
func cacheResult(r *api.CacheResult) string {
	text := map[string]string{
		"miss":              "it has no answer with the headers of this question",
		"not_asked":         "not looked up, the client must ask for it",
		"not_deterministic": "not looked up, the request can have several answers",
		"stateful":          "not looked up, the request depends on others or steers the engine",
		"declined":          "not looked up, cache-control refuses it",
		"no_tenant":         "not looked up, the request has no tenant",
		"unreadable":        "not looked up, the body cannot be compared or is too large",
	}
	if r.Result == "hit" {
		return fmt.Sprintf("it would answer, with an answer of %d s ago", r.AgeSeconds)
	}
	if r.Similar {
		return text[r.Result] + "; similar questions are not looked for here, since the embedding service would get the prompt"
	}
	return cmp.Or(text[r.Result], r.Result)
}

func candidates(e *api.Explanation) *console.Grid {
	g := &console.Grid{Header: []string{"CANDIDATE", "COST"}}
	if e.Unit != "" && e.Unit != "seconds" {
		g.Header[1] += " (" + strings.ToUpper(e.Unit) + ")"
	}
	var names []string
	seen := map[string]bool{}
	for _, c := range e.Candidates {
		for _, t := range c.Terms {
			if !seen[t.Name] {
				seen[t.Name] = true
				names = append(names, t.Name)
				g.Header = append(g.Header, strings.ToUpper(t.Name))
			}
		}
	}
	g.Header = append(g.Header, "MATCHED", "CONFIRMED", "UNCACHED", "IN FLIGHT", "PREFILL", "KV USE")
	for i, c := range e.Candidates {
		first := console.Text(place(c.Pod, c.Rank))
		if i == 0 {
			first.Tone = console.Good
		}
		row := []console.Cell{first, console.Number("%s", cost(c.Cost, e.Unit))}
		for _, name := range names {
			cell := none()
			for _, t := range c.Terms {
				if t.Name == name {
					cell = console.Number("%s", term(t))
				}
			}
			row = append(row, cell)
		}
		g.Add(append(row, console.Number("%d", c.Matched), console.Number("%d", c.Confirmed), console.Number("%d", c.Uncached),
			console.Number("%d", c.InFlight), console.Number("%.0f tok", c.PendingTokens), percent(c.KVUsage))...)
	}
	return g
}

// alone is why a request is not handed over, by the word in api.Plans.
var alone = map[string]string{
	"rule":         "the policy hands over nothing",
	"gateway":      "a gateway sends the request, and can send only one",
	"request":      "requests of this kind are never handed over",
	"short":        "the endpoint lacks no more than a block of the prompt",
	"threshold":    "the endpoint lacks less than the policy's uncachedTokens",
	"model-length": "prompt and answer are longer than the model takes",
	"no-prefill":   "no other endpoint that prefills is ready, has room and hands over",
	"no-decode":    "no endpoint that decodes has room and takes over from the one that prefills",
	"cheaper":      "it is cheaper alone",
	"tried":        "the endpoints are tried again by another request after failures",
}

// plans has a line for each way to serve a request, and the reason of the choice.
func plans(c *console.Console, p *api.Plans) []string {
	g := console.Grid{Header: []string{"PLAN", "COST", "PARTS"}}
	add := func(name string, plan *api.Plan, chosen bool) {
		first, price := console.Text(name), none()
		if chosen {
			first.Tone = console.Good
		}
		if plan.Seconds > 0 {
			price = console.Number("%s", seconds(plan.Seconds))
		}
		var parts []string
		for i := range plan.Steps {
			s := &plan.Steps[i]
			part := s.Does
			if s.Seconds > 0 {
				part += " " + seconds(s.Seconds)
			}
			if len(s.Parts) > 0 {
				part += " (" + strings.Join(terms(s.Parts), ", ") + ")"
			}
			parts = append(parts, part)
		}
		g.Add(first, price, console.Text(strings.Join(parts, "; ")))
	}
	if len(p.Alone.Steps) == 0 { // those of another release might send none
		return nil
	}
	add("alone at "+place(p.Alone.Steps[0].Pod, p.Alone.Steps[0].Rank), &p.Alone, !p.HandedOver && p.Because != "pull")
	if h := p.Handoff; h != nil && len(h.Steps) == 2 {
		from, to := &h.Steps[0], &h.Steps[1]
		add("hand-off from "+place(from.Pod, from.Rank)+" to "+place(to.Pod, to.Rank), h, p.HandedOver)
	}
	pulls := p.Pull != nil && len(p.Pull.Steps) == 2
	if pulls {
		from, at := &p.Pull.Steps[0], &p.Pull.Steps[1]
		add("at "+place(at.Pod, at.Rank)+", with blocks of "+place(from.Pod, from.Rank), p.Pull, p.Because == "pull")
	}
	lines := g.Lines(c)
	switch {
	case p.HandedOver:
		return append(lines, "It would be handed over.")
	case p.Because == "pull":
		return append(lines, "One endpoint would serve it, and load a part of the prompt from another one.")
	case pulls && p.Handoff == nil && p.Because == "cheaper":
		return append(lines, "It would load nothing from another endpoint: it is cheaper alone.")
	}
	return append(lines, "It would not be handed over: "+cmp.Or(alone[p.Because], p.Because)+".")
}

func place(pod string, rank int) string {
	if rank == 0 {
		return pod
	}
	return fmt.Sprintf("%s#%d", pod, rank)
}

func terms(all []api.Term) []string {
	var out []string
	for _, t := range all {
		out = append(out, t.Name+" "+term(t))
	}
	return out
}

func term(t api.Term) string {
	switch t.Unit {
	case "":
		return amount(t.Value)
	case "seconds":
		return seconds(t.Value)
	}
	return amount(t.Value) + " " + t.Unit
}

// seconds below one are shown in milliseconds.
func seconds(v float64) string {
	if v > -1 && v < 1 {
		return fmt.Sprintf("%.2f ms", 1000*v)
	}
	return fmt.Sprintf("%.2f s", v)
}

// cost in the unit of a strategy.
func cost(v float64, unit string) string {
	if unit == "seconds" {
		return seconds(v)
	}
	return amount(v)
}

// amount has four significant digits, and no exponent.
func amount(v float64) string {
	text := fmt.Sprintf("%.4g", v)
	if strings.ContainsAny(text, "e") {
		text = fmt.Sprintf("%.0f", v)
		if v > -1 && v < 1 {
			text = fmt.Sprintf("%.6f", v)
		}
	}
	return text
}

// DecisionHeader is the header of a list of decisions.
func DecisionHeader(c *console.Console) string {
	return c.Paint(console.Strong, fmt.Sprintf("%-12s  %-24s  %8s  %8s  %8s  %10s  %10s  %-12s  %-20s  %s", "TIME", "POD", "PROMPT", "MATCHED",
		"CACHED", "COST", "SECOND", "OUTCOME", "POOL", "REQUEST"))
}

// Decision is one decision in a line. The second candidate's cost shows how clear it was.
func Decision(c *console.Console, d *api.Decision) string {
	pod, matched, price, second := "-", "-", "-", "-"
	if d.Attempt >= 0 && d.Attempt < len(d.Candidates) {
		at := &d.Candidates[d.Attempt]
		pod, matched, price = place(at.Pod, at.Rank), fmt.Sprint(at.Matched), cost(at.Cost, d.Unit)
	}
	if len(d.Candidates) > 1 {
		second = cost(d.Candidates[1].Cost, d.Unit)
	}
	cached, outcome := "-", "under way"
	if d.Cached >= 0 {
		cached = fmt.Sprint(d.Cached)
	}
	pool := fmt.Sprintf("%-20s  %s", d.Namespace+"/"+d.Pool, cmp.Or(d.Request, "-"))
	if d.Miss != "" {
		pool += "  " + c.Paint(console.Warn, "missed: "+d.Miss)
	}
	if d.Outcome != "" {
		outcome = d.Outcome
	}
	mark := console.Plain
	switch d.Outcome {
	case "completed":
		mark = console.Good
	case "failed", "rejected":
		mark = console.Bad
	}
	return fmt.Sprintf("%-12s  %-24s  %8d  %8s  %8s  %10s  %10s  %s  %s", d.Time.Local().Format("15:04:05.000"), pod, d.PromptTokens, matched,
		cached, price, second,
		c.Paint(mark, fmt.Sprintf("%-12s", outcome)), pool)
}

// Prefixes are the hottest prefixes of a pool, and the pods that hold them.
func Prefixes(c *console.Console, all []api.Prefix) []string {
	if len(all) == 0 {
		return []string{"No prefix has been found in a cache twice recently."}
	}
	g := console.Grid{Header: []string{"PREFIX", "TOKENS", "HITS", "HOLDERS", "WHERE"}}
	for _, p := range all {
		whole := 0
		var where []string
		for _, h := range p.Holders {
			text := place(h.Pod, h.Rank)
			if h.Tokens >= p.Tokens {
				whole++
			} else {
				text += fmt.Sprintf(" (%d)", h.Tokens)
			}
			if h.Tokens > h.Tiers["GPU"] {
				text += tiers(h.Tiers)
			}
			where = append(where, text)
		}
		if len(where) > maxHolders {
			where = append(where[:maxHolders], fmt.Sprintf("and %d more", len(where)-maxHolders))
		}
		g.Add(console.Text(p.Hash), console.Number("%d", p.Tokens), console.Number("%.1f", p.Hits), console.Number("%d", whole),
			console.Text(dash(strings.Join(where, ", "))))
	}
	return g.Lines(c)
}

// maxHolders bounds the endpoints that are named in a line.
const maxHolders = 4

func tiers(by map[string]int) string {
	var parts []string
	for _, tier := range []string{"GPU", "CPU", "Disk", "Remote"} {
		if n := by[tier]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", tier, n))
		}
	}
	return " [" + strings.Join(parts, ", ") + "]"
}

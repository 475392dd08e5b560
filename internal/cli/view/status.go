package view

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/status"
)

// Statuses are pools, and the routes to them, as a document.
type Statuses struct {
	Pools []*Pool `json:"pools"`
	// Routes that name these pools.
	Routes []*Route `json:"routes,omitempty"`
}

// Names returns the names of the pools.
func (s *Statuses) Names() []string {
	var names []string
	for _, p := range s.Pools {
		names = append(names, "inferencepool.kvasir.dev/"+p.Name)
	}
	return names
}

// Lines are the pools as people read them: a line for each, then of each its pods and what is not as it should be.
func (s *Statuses) Lines(c *console.Console) []string { return s.lines(c, false) }

// Wide are the lines with further columns, and with reasons in full.
func (s *Statuses) Wide(c *console.Console) []string { return s.lines(c, true) }

func (s *Statuses) lines(c *console.Console, wide bool) []string {
	if len(s.Pools) == 0 {
		return []string{"No pools."}
	}
	g := console.Grid{Header: []string{"POOL", "MODEL", "READY", "STATUS", "ROLLOUT", "STRATEGY", "HIT", "PREDICTED", "DIVERGENCE",
		"IN FLIGHT", "WAITING"}}
	if wide {
		g.Header = append(g.Header, "REQUESTS", "REFUSED", "TTFT P99", "EXACT", "REPORTED", "POLICY")
	}
	for _, p := range s.Pools {
		row := p.row()
		if wide {
			row = append(row, p.more()...)
		}
		g.Add(row...)
	}
	lines := g.Lines(c)
	for _, p := range s.Pools {
		title := c.Paint(console.Strong, p.Namespace+"/"+p.Name)
		if p.Fleet != "" {
			title += ", served by the fleet " + p.Fleet
		}
		lines = append(lines, "", title)
		if len(p.Members) > 0 {
			lines = append(lines, indent(members(p, wide).Lines(c))...)
		} else {
			lines = append(lines, "  no pods")
		}
		lines = append(lines, p.roles()...)
		lines = append(lines, p.Live.steps()...)
		for _, b := range p.Problems {
			lines = append(lines, "  "+c.Paint(console.Warn, "! ")+b.Line())
		}
	}
	for _, r := range s.Routes {
		lines = append(append(lines, ""), r.lines(c)...)
	}
	return lines
}

// steps are the lines of what happens to requests before an endpoint is chosen: by the policy's steps, and by the response cache. There
// are none for a pool without either.
func (l *Live) steps() (lines []string) {
	if l == nil {
		return nil
	}
	for _, s := range l.Hooks {
		text := fmt.Sprintf("  hook step %s: %d applied", s.Name, s.Outcomes["applied"])
		for _, outcome := range [...]string{"refused", "failed_open", "failed_closed", "skipped"} {
			if n := s.Outcomes[outcome]; n > 0 {
				text += fmt.Sprintf(", %d %s", n, outcome)
			}
		}
		lines = append(lines, text)
	}
	r := l.ResponseCache
	if r == nil {
		return lines
	}
	others := int64(0)
	for _, n := range r.NotLookedUp {
		others += n
	}
	const mebibyte = 1 << 20
	text := fmt.Sprintf("  response cache: %d hits, %d misses, %d not looked up; ", r.Hits, r.Misses, others)
	lines = append(lines, text+fmt.Sprintf("%d answers, %.1f of %.1f MiB, in all replicas together",
		r.Entries, float64(r.Bytes)/mebibyte, float64(r.Limit)/mebibyte))
	if s := r.Semantic; s != nil {
		lines = append(lines, fmt.Sprintf("  similar questions: %d hits, %d compared, %d vectors", s.Hits, s.Embedded, s.Vectors))
		if s.Trouble != "" {
			lines = append(lines, "  similar questions are not found ("+s.Trouble+"): "+s.TroubleDetail)
		}
	}
	if s := r.Store; s != nil {
		lines = append(lines, fmt.Sprintf("  shared answers: %d of %d questions to Redis, %d written, %d invalid",
			s.Results["hit"], s.Results["hit"]+s.Results["miss"], s.Results["written"], s.Results["invalid"]))
		if s.Trouble != "" {
			lines = append(lines, "  answers are not shared ("+s.Trouble+"): "+s.TroubleDetail)
		}
	}
	return lines
}

// Line is a problem in a sentence.
func (b *Problem) Line() string {
	text := b.Source
	if b.Reason != "" {
		text += " " + b.Reason
	}
	return text + ": " + b.Message
}

func indent(lines []string) []string {
	for i := range lines {
		lines[i] = "  " + lines[i]
	}
	return lines
}

func (p *Pool) row() []console.Cell {
	size := fmt.Sprintf("%d/%d", p.Ready, p.Pods)
	if p.Desired != nil {
		size = fmt.Sprintf("%d/%d", p.Ready, *p.Desired)
	}
	hit, predicted, divergence, inFlight, waiting := none(), none(), none(), none(), none()
	if l := p.Live; l != nil {
		inFlight, waiting = console.Number("%d", l.InFlight), console.Number("%d", l.Waiting)
		if h := l.Hits; h != nil {
			hit, divergence = h.delivered()
			predicted = percent(h.Predicted)
		}
		if l.Waiting > 0 {
			waiting.Tone = console.Warn
		}
	}
	return []console.Cell{
		console.Text(p.Namespace + "/" + p.Name), console.Text(p.Model), {Text: size, Right: true}, {Text: p.Status, Tone: tone(p.Status)},
		console.Text(dash(p.Rollout)), console.Text(dash(p.Strategy)), hit, predicted, divergence, inFlight, waiting,
	}
}

// more are the columns of a wide table. Reported are the answers that state what their engine found in its cache, of all answers.
func (p *Pool) more() []console.Cell {
	requests, refused, ttft, exact, reported := none(), none(), none(), none(), none()
	if l := p.Live; l != nil {
		requests, refused, exact = console.Number("%d", l.Requests), console.Number("%d", l.Refused), percent(l.ExactTokens)
		if l.TTFT != nil {
			ttft = console.Number("%s", seconds(l.TTFT.P99))
		}
		if h := l.Hits; h != nil && h.Answers+h.Unreported > 0 {
			reported = console.Number("%d/%d", h.Answers, h.Answers+h.Unreported)
		}
	}
	return []console.Cell{requests, refused, ttft, exact, reported, console.Text(dash(p.Policy))}
}

// members are the pods of a pool; columns that no pod fills are left out, except in a wide table.
func members(p *Pool, wide bool) *console.Grid {
	g := &console.Grid{Header: []string{"POD", "STAGE", "WHY"}}
	islands, roles, live, ages, revisions := false, false, p.Live != nil, false, map[string]bool{}
	for i := range p.Members {
		m := &p.Members[i]
		islands, ages, revisions[m.Revision] = islands || m.Island != "", ages || m.Age != "", true
		roles = roles || m.Role != ""
	}
	manyRevisions := len(revisions) > 1 || wide
	islands, ages = islands || wide, ages || wide
	add := func(when bool, names ...string) {
		if when {
			g.Header = append(g.Header, names...)
		}
	}
	add(roles, "ROLE")
	add(manyRevisions, "REVISION")
	add(islands, "ISLAND")
	add(ages, "AGE", "NODE")
	add(live, "EVENTS", "FILL", "UNIQUE", "SHARED", "HIT", "DIVERGENCE", "IN FLIGHT", "WAITING", "PREFILL")
	add(live && wide, "PICKS", "FAILURES", "KV USE", "LAG")
	for i := range p.Members {
		m := &p.Members[i]
		why := m.Reason
		if m.Message != "" {
			why = strings.TrimPrefix(why+": "+m.Message, ": ")
		}
		if !wide {
			why = short(why)
		}
		row := []console.Cell{console.Text(m.Name), {Text: m.Stage, Tone: tone(m.Stage)}, console.Text(dash(why))}
		if roles {
			row = append(row, console.Text(dash(m.Role)))
		}
		if manyRevisions {
			row = append(row, console.Text(dash(m.Revision)))
		}
		if islands {
			row = append(row, console.Text(dash(m.Island)))
		}
		if ages {
			row = append(row, console.Text(dash(m.Age)), console.Text(dash(m.Node)))
		}
		if live {
			row = append(row, m.Live.cells()...)
		}
		if live && wide {
			row = append(row, m.Live.more()...)
		}
		g.Add(row...)
	}
	return g
}

// delivered are the cells of what engines found, and of how far predictions were off.
func (r *Ratios) delivered() (hit, divergence console.Cell) {
	if r.Answers == 0 {
		return none(), none()
	}
	divergence = percent(r.Divergence)
	divergence.Tone = grade(r.Divergence, 0.05, 0.2)
	return percent(r.Hit), divergence
}

func (l *LivePod) cells() []console.Cell {
	if l == nil {
		return []console.Cell{console.Text("-")}
	}
	fill, hit, divergence := none(), none(), none()
	if l.Capacity > 0 {
		fill = percent(l.Fill)
	}
	if l.Hits != nil {
		hit, divergence = l.Hits.delivered()
	}
	return []console.Cell{
		{Text: l.Events, Tone: tone(l.Events)}, fill, console.Number("%d", l.Unique), console.Number("%d", l.Shared), hit, divergence,
		console.Number("%d", l.InFlight), console.Number("%d", l.Waiting), console.Number("%.0f tok", l.PendingTokens),
	}
}

// more are the columns of a wide table.
func (l *LivePod) more() []console.Cell {
	if l == nil {
		return nil
	}
	return []console.Cell{
		console.Number("%d", l.Picks), console.Number("%d", l.Failures), percent(l.KVUsage), console.Number("%.1f s", l.Lag),
	}
}

// maxWhy bounds a message in a table, in characters.
const maxWhy = 60

func short(text string) string {
	if runes := []rune(text); len(runes) > maxWhy {
		return string(runes[:maxWhy-1]) + "…"
	}
	return text
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func none() console.Cell { return console.Cell{Text: "-", Right: true} }

func percent(part float64) console.Cell { return console.Number("%.1f %%", 100*part) }

// grade is the tone of what is better small.
func grade(value, warn, bad float64) console.Tone {
	switch {
	case value >= bad:
		return console.Bad
	case value >= warn:
		return console.Warn
	}
	return console.Plain
}

// tone of a word of a status.
func tone(word string) console.Tone {
	switch word {
	case status.ReasonServing, status.ReasonAtZero, string(v1alpha1.StageReady), status.StreamSynced:
		return console.Good
	case status.ReasonNoReadyEndpoint, status.ReasonPickerUnavailable, status.ReasonNotAccepted, api.PhaseCircuit,
		status.StreamDisconnected:
		return console.Bad
	case status.StreamNone, "Unknown":
		return console.Plain
	}
	return console.Warn
}

// needsNoAction reports whether a condition is unknown because its subject is absent, or until more requests have been answered.
func needsNoAction(c *metav1.Condition) bool {
	return status.Absent(c) || c.Status == metav1.ConditionUnknown &&
		(c.Reason == status.ReasonTooFewReplies || c.Reason == status.ReasonNoModelList)
}

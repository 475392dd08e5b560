package bench

import (
	_ "embed" // the page
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

//go:embed report.html
var pageText string

var page = template.Must(template.New("report").Parse(pageText))

const (
	// strangersAbove is the part of the engines' prompt tokens above which they have served others, too.
	strangersAbove = 0.05
	// fewHits is the part of prompt tokens below which the caches have no effect in either way.
	fewHits = 0.01
	// busyAbove is the mean use of this machine's processors above which it measures itself.
	busyAbove = 0.8
)

// Report compares two ways to the same engines; its JSON is what report.json holds.
type Report struct {
	// Before and After are the names of the ways.
	Before string `json:"before"`
	After  string `json:"after"`
	Goals  Goals  `json:"goals"`
	Turns  []Turn `json:"turns"`
	// Setup says what was run, as pairs of a name and a value.
	Setup [][2]string `json:"setup"`
	// CPU is the mean use of the processors of the machine that sent the load, 0 to 1; negative where it is not known.
	CPU float64 `json:"cpu"`
	// Began is the start of the measurement.
	Began time.Time `json:"began"`
}

// measure is a figure that is compared.
type measure struct {
	name  string
	of    func(f *Figures) float64
	text  func(x float64) string
	worse int // 1: more is worse, -1: less is worse
	// client marks figures that need recorded requests.
	client bool
}

var measures = []measure{
	{"Prompt tokens from cache", func(f *Figures) float64 { return f.HitRatio }, percent, -1, false},
	{"First token, median", func(f *Figures) float64 { return f.TTFT.P50 }, seconds, 1, true},
	{"First token, 90 %", func(f *Figures) float64 { return f.TTFT.P90 }, seconds, 1, true},
	{"First token, 99 %", func(f *Figures) float64 { return f.TTFT.P99 }, seconds, 1, true},
	{"Per output token, median", func(f *Figures) float64 { return f.PerToken.P50 }, seconds, 1, true},
	{"Per output token, 90 %", func(f *Figures) float64 { return f.PerToken.P90 }, seconds, 1, true},
	{"Between events, 99 %", func(f *Figures) float64 { return f.Gap.P99 }, seconds, 1, true},
	{"Whole answer, 90 %", func(f *Figures) float64 { return f.Total.P90 }, seconds, 1, true},
	{"Good requests per second", func(f *Figures) float64 { return f.Goodput }, plain, -1, true},
	{"Requests that kept the goals", func(f *Figures) float64 { return f.GoodRatio }, percent, -1, true},
	{"Output tokens per second", func(f *Figures) float64 { return f.TokenRate }, plain, -1, false},
}

// Row is one figure of both ways: the mean of their turns, and the least and most.
type Row struct {
	Name, Before, After, Change, Verdict string
	// Better is 1 where After is better in every turn, -1 where it is worse in every turn, 0 where the turns overlap.
	Better int
}

// Rows are the comparison.
func (r *Report) Rows() []Row {
	var rows []Row
	recorded := false
	for i := range r.Turns {
		recorded = recorded || len(r.Turns[i].samples) > 0 || r.Turns[i].Figures.Requests > 0
	}
	for i := range measures {
		m := &measures[i]
		if m.client && !recorded {
			continue
		}
		before, after := r.values(r.Before, m), r.values(r.After, m)
		if len(before) == 0 || len(after) == 0 {
			continue
		}
		row := Row{Name: m.name, Before: written(before, m), After: written(after, m), Change: change(mean(before), mean(after))}
		row.Better = m.verdict(before, after)
		row.Verdict = map[int]string{1: "better in every turn", -1: "worse in every turn", 0: "the turns overlap"}[row.Better]
		rows = append(rows, row)
	}
	return rows
}

func (r *Report) values(way string, m *measure) []float64 {
	var all []float64
	for i := range r.Turns {
		if r.Turns[i].Way == way {
			all = append(all, m.of(&r.Turns[i].Figures))
		}
	}
	return all
}

func (m *measure) verdict(before, after []float64) int {
	switch {
	case slices.Max(after) < slices.Min(before):
		return m.worse
	case slices.Min(after) > slices.Max(before):
		return -m.worse
	}
	return 0
}

// written is the mean of values, with the least and most where there are several.
func written(values []float64, m *measure) string {
	if len(values) == 1 {
		return m.text(values[0])
	}
	return fmt.Sprintf("%s (%s to %s)", m.text(mean(values)), m.text(slices.Min(values)), m.text(slices.Max(values)))
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// Warnings are what makes the comparison worth less.
func (r *Report) Warnings() []string {
	var all []string
	warn := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	hits := 0.0
	for i := range r.Turns {
		t := &r.Turns[i]
		f := &t.Figures
		hits = math.Max(hits, f.HitRatio)
		if f.Failed > 0 {
			warn("Turn %d (%s): %d of %d requests failed, the first with: %s", i+1, t.Way, f.Failed, f.Requests, f.Error)
		}
		if f.UsagePromptTokens > 0 && f.PromptTokens > f.UsagePromptTokens*(1+strangersAbove) && f.Preemptions == 0 && f.Failed == 0 {
			warn("Turn %d (%s): the engines looked up %.0f prompt tokens, this load had %.0f: others use the engines, too.",
				i+1, t.Way, f.PromptTokens, f.UsagePromptTokens)
		}
		if f.PromptTokens == 0 {
			warn("Turn %d (%s): the engines looked up no prompt token in a prefix cache. Is prefix caching off, or are other engines behind the address?", i+1, t.Way)
		}
		for _, e := range t.Engines {
			switch {
			case e.Restarted:
				warn("Turn %d (%s): %s has restarted; its counters are wrong.", i+1, t.Way, e.Engine)
			case e.PromptTokens == 0 && f.PromptTokens > 0:
				warn("Turn %d (%s): %s got no request.", i+1, t.Way, e.Engine)
			}
		}
	}
	if hits < fewHits && len(r.Turns) > 0 {
		warn("The engines found less than 1 %% of the prompts in their caches, whichever way: with this load, routing by caches has no effect.")
	}
	if r.CPU > busyAbove {
		warn("The machine that sent the load was %.0f %% busy: times include its own delays. Use a larger one, or less load.", 100*r.CPU)
	}
	if n := len(r.Turns); n == 2 {
		warn("There is one turn of each way: nothing says how much turns differ by themselves. Use --pairs 2 or more.")
	}
	return all
}

// WriteTable prints the comparison for a terminal.
func (r *Report) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(t, "\t%s\t%s\tCHANGE\t\n", strings.ToUpper(r.Before), strings.ToUpper(r.After))
	for _, row := range r.Rows() {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", row.Name, row.Before, row.After, row.Change, row.Verdict)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("printing the comparison: %w", err)
	}
	for _, warning := range r.Warnings() {
		if _, err := fmt.Fprintf(w, "WARNING: %s\n", warning); err != nil {
			return fmt.Errorf("printing the comparison: %w", err)
		}
	}
	return nil
}

// WriteJSON writes the report's JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	if err := out.Encode(r); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// WriteRequests writes a JSON object a line for each request.
func (r *Report) WriteRequests(w io.Writer) error {
	lines := json.NewEncoder(w)
	for i := range r.Turns {
		for j := range r.Turns[i].samples {
			line := struct {
				Turn int    `json:"turn"`
				Way  string `json:"way"`
				*Sample
			}{i + 1, r.Turns[i].Way, &r.Turns[i].samples[j]}
			if err := lines.Encode(line); err != nil {
				return fmt.Errorf("writing the requests: %w", err)
			}
		}
	}
	return nil
}

// WriteHTML writes the report as one page that needs nothing else.
func (r *Report) WriteHTML(w io.Writer) error {
	type cell struct{ Turn, Way, Requests, Failed, Hits, TTFT50, TTFT90, PerToken, Goodput, Tokens string }
	type share struct {
		Engine string
		Parts  []string
	}
	data := struct {
		*Report
		Rows     []Row
		Warnings []string
		Cells    []cell
		Shares   []share
		Began    string
		Numbers  []int
	}{Report: r, Rows: r.Rows(), Warnings: r.Warnings(), Began: r.Began.UTC().Format(time.RFC3339)}
	for i := range r.Turns {
		f := &r.Turns[i].Figures
		data.Numbers = append(data.Numbers, i+1)
		data.Cells = append(data.Cells, cell{
			fmt.Sprint(i + 1), r.Turns[i].Way, fmt.Sprint(f.Requests), fmt.Sprint(f.Failed), percent(f.HitRatio), seconds(f.TTFT.P50),
			seconds(f.TTFT.P90), seconds(f.PerToken.P50), plain(f.Goodput), plain(f.TokenRate),
		})
		for j, e := range r.Turns[i].Engines {
			if i == 0 {
				data.Shares = append(data.Shares, share{Engine: e.Engine})
			}
			data.Shares[j].Parts = append(data.Shares[j].Parts, percent(ratio(e.PromptTokens, f.PromptTokens)))
		}
	}
	if err := page.Execute(w, &data); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// change compares b with a.
func change(a, b float64) string {
	if a <= 0 {
		return "-"
	}
	return fmt.Sprintf("%+.0f %%", math.Round(100*(b-a)/a)+0) // no -0
}

func percent(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }

func plain(x float64) string {
	if x < 100 {
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

func seconds(x float64) string {
	switch {
	case x < 0.01:
		return fmt.Sprintf("%.1f ms", 1000*x)
	case x < 1:
		return fmt.Sprintf("%.0f ms", 1000*x)
	}
	return fmt.Sprintf("%.2f s", x)
}

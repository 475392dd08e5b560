package report

import (
	_ "embed" // the page
	"fmt"
	"html/template"
	"io"
	"strings"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"percent": percent, "atLeast": atLeast, "seconds": seconds, "grouped": grouped, "series": series,
	"deviation": func(ratio float64) string { return fmt.Sprintf("%.2f %%", 100*ratio) },
}).Parse(pageText))

// pageData is what the page shows.
type pageData struct {
	*Report
	Title      string
	Takeaways  []string
	Tiles      []tile
	Charts     []chart
	Parameters [][2]string
	Failed     []string
	Use        []string
}

// tile is one important number, with the number to compare it with.
type tile struct {
	Name, Value, Note string
}

// chart is a drawing with its title and what its marks mean.
type chart struct {
	Title, Note string
	SVG         template.HTML
}

// WriteHTML writes the report as one page that needs nothing else.
func (r *Report) WriteHTML(w io.Writer) error {
	names := make([]string, len(r.Runs))
	data := pageData{
		Report: r, Takeaways: r.Takeaways(), Tiles: r.tiles(), Parameters: r.parameters(), Failed: r.Wrong(),
		Charts: []chart{
			// The drawings escape all text that goes into them.
			{"Time to first token", "The part of the requests that had their first token within a time. Marked: 50, 90 and 99 %.",
				template.HTML(r.distribution())},
			{"Prompt tokens found in the caches", r.hitsNote(), template.HTML(r.hits())},
			{"Time to first token in the course of the run", "Thick: 90th percentile. Thin: median. Logarithmic.", template.HTML(r.course())},
			{"Requests served by each pod", "Requests differ in length: an even count is not an even load.", template.HTML(r.spread())},
		},
	}
	for i := range r.Runs {
		names[i] = r.Runs[i].Strategy
		data.Use = append(data.Use, r.machineUse(&r.Runs[i].Machine))
	}
	data.Title = "Kvasir demo: " + listed(names)
	if err := page.Execute(w, &data); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// hitsNote says what the marks of the chart of hits mean.
func (r *Report) hitsNote() string {
	if len(r.Runs) > fullBars {
		return "As delivered by the engines. The line is a cache without bounds that all pods share."
	}
	return "Full: confirmed by the pods' events, and delivered by the engines. Pale: speculative, routed there just before."
}

// listed are names in a sentence.
func listed(names []string) string {
	if len(names) < 3 {
		return strings.Join(names, " and ")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// tiles are the last run's numbers beside the first's.
func (r *Report) tiles() []tile {
	if len(r.Runs) == 0 {
		return nil
	}
	base, last := &r.Runs[0], &r.Runs[len(r.Runs)-1]
	against := func(value string) string {
		if len(r.Runs) == 1 {
			return base.Strategy
		}
		return base.Strategy + ": " + value
	}
	failed := 0
	for i := range r.Runs {
		failed += r.Runs[i].Errors
	}
	return []tile{
		{"Prompt tokens from cache", percent(last.DeliveredHitRatio), against(percent(base.DeliveredHitRatio))},
		{"Of what any cache could hold", percent(part(last)), against(percent(part(base)))},
		{"First token, 90th percentile", seconds(last.TTFTSeconds.P90), against(seconds(base.TTFTSeconds.P90))},
		{"First token, median", seconds(last.TTFTSeconds.P50), against(seconds(base.TTFTSeconds.P50))},
		{"Predicted against delivered", fmt.Sprintf("%.2f %%", 100*last.TotalDeviation),
			against(fmt.Sprintf("%.2f %%", 100*base.TotalDeviation))},
		{"Requests", grouped(last.Requests), fmt.Sprintf("each run; %d failed", failed)},
	}
}

// part is what a run found of what a cache without bounds would have held.
func part(r *Run) float64 {
	if r.BestHitRatio <= 0 {
		return 0
	}
	return r.DeliveredHitRatio / r.BestHitRatio
}

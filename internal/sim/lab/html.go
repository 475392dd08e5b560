package lab

import (
	_ "embed" // the page
	"fmt"
	"html/template"
	"io"
	"math"
)

//go:embed page.html
var pageSource string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"percent": percent, "seconds": seconds, "micros": micros,
}).Parse(pageSource))

// chart is a bar for each run, perhaps with marks at what cannot be passed. Lengths are in units of the drawing.
type chart struct {
	Title  string
	Height float64
	Bars   []bar
	Marks  []mark
}

type bar struct {
	Name, Value             string
	Top, Text, Width, After float64
}

type mark struct {
	Name      string
	X, Height float64
}

const (
	barLeft, barRoom = 158.0, 290.0
	barPitch         = 22.0
)

// chartOf the runs by a value; marks are further values, by name.
func (r *Report) chartOf(title string, value func(*Result) float64, show func(float64) string, marks map[string]float64) chart {
	c := chart{Title: title, Height: barPitch * float64(len(r.Results))}
	high := 0.0
	for _, x := range r.Results {
		high = math.Max(high, value(x))
	}
	for _, v := range marks {
		high = math.Max(high, v)
	}
	if high == 0 {
		high = 1
	}
	seeds := r.seeds()
	for i, x := range r.Results {
		name := x.Strategy
		if seeds > 1 {
			name = fmt.Sprintf("%s #%d", name, x.Seed)
		}
		top, width := barPitch*float64(i)+4, barRoom*value(x)/high
		c.Bars = append(c.Bars, bar{Name: name, Value: show(value(x)), Top: top, Text: top + 11, Width: width, After: barLeft + width + 6})
	}
	for name, v := range marks {
		c.Marks = append(c.Marks, mark{Name: name, X: barLeft + barRoom*v/high, Height: c.Height})
	}
	return c
}

// seeds is the number of different seeds of the runs.
func (r *Report) seeds() int {
	seen := map[uint64]bool{}
	for _, x := range r.Results {
		seen[x.Seed] = true
	}
	return len(seen)
}

// WriteHTML writes the report as a page that loads nothing.
func (r *Report) WriteHTML(w io.Writer) error {
	charts := []chart{
		r.chartOf("Mean time to the first token", func(x *Result) float64 { return x.TTFTSeconds.Mean }, seconds, nil),
		r.chartOf("99th percentile of the time to the first token", func(x *Result) float64 { return x.TTFTSeconds.P99 }, seconds, nil),
		r.chartOf("Mean time to the end", func(x *Result) float64 { return x.E2ESeconds.Mean }, seconds, nil),
		r.chartOf("Hit ratio, and its bounds", func(x *Result) float64 { return x.HitRatio }, percent, map[string]float64{
			"one cache of all pods' memory": r.Bounds.PooledLRUHitRatio, "one infinite cache": r.Bounds.InfiniteCacheHitRatio,
		}),
	}
	return page.Execute(w, struct {
		*Report
		Charts []chart
	}{r, charts})
}

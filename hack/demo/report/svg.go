package report

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Size of every chart, in units of its view box.
const (
	chartWidth  = 560.0
	chartHeight = 300.0
)

// canvas is an SVG drawing under construction. All text that goes in is escaped.
type canvas struct {
	b strings.Builder
}

// newCanvas begins a drawing with a label for screen readers.
func newCanvas(label string) *canvas {
	c := &canvas{}
	fmt.Fprintf(&c.b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, chartWidth, chartHeight, html.EscapeString(label))
	return c
}

func (c *canvas) String() string { return c.b.String() + "</svg>" }

// hover is the text that shows over an element.
func hover(text string) string {
	if text == "" {
		return ""
	}
	return "<title>" + html.EscapeString(text) + "</title>"
}

func (c *canvas) text(x, y float64, class, anchor, text string) {
	fmt.Fprintf(&c.b, `<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`, x, y, class, anchor, html.EscapeString(text))
}

// nameWidth is the most that a name of the class "name" takes in the widest of the page's fonts (13 units, semibold): DejaVu Sans
// has 8.2 for each letter of ApproximatePrefix.
func nameWidth(name string) float64 { return 9 * float64(len(name)) }

func (c *canvas) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&c.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`, x1, y1, x2, y2, class)
}

// bar is a rectangle; one without extent is left out.
func (c *canvas) bar(x, y, width, height float64, class, title string) {
	if width <= 0 || height <= 0 {
		return
	}
	fmt.Fprintf(&c.b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="2" class="%s">%s</rect>`, x, y, width, height, class,
		hover(title))
}

func (c *canvas) dot(x, y, radius float64, class, title string) {
	fmt.Fprintf(&c.b, `<circle cx="%.1f" cy="%.1f" r="%g" class="%s">%s</circle>`, x, y, radius, class, hover(title))
}

// point of a path.
type point struct{ x, y float64 }

// path is a line through points; none is drawn through fewer than two.
func (c *canvas) path(points []point, class string) {
	if len(points) < 2 {
		return
	}
	c.b.WriteString(`<path d="`)
	for i, p := range points {
		op := byte('L')
		if i == 0 {
			op = 'M'
		}
		fmt.Fprintf(&c.b, "%c%.1f %.1f", op, p.x, p.y)
	}
	fmt.Fprintf(&c.b, `" class="%s"/>`, class)
}

// scale maps values to places, evenly or by their logarithm.
type scale struct {
	low, high float64 // values
	from, to  float64 // places
	log       bool
}

func (s *scale) at(v float64) float64 {
	low, high := s.low, s.high
	if s.log {
		v, low, high = math.Log(math.Max(v, s.low)), math.Log(low), math.Log(high)
	}
	if high <= low {
		return s.from
	}
	part := math.Min(1, math.Max(0, (v-low)/(high-low)))
	return s.from + part*(s.to-s.from)
}

// logTicks are 1, 2 and 5 times the powers of ten from low to high, both above 0; only the powers where that would be
// more than ten.
func logTicks(low, high float64) []float64 {
	all := ticksOf(low, high, 1, 2, 5)
	if len(all) > 10 {
		return ticksOf(low, high, 1)
	}
	return all
}

func ticksOf(low, high float64, steps ...float64) []float64 {
	var out []float64
	for power := math.Floor(math.Log10(low)); power <= math.Log10(high); power++ {
		for _, step := range steps {
			if v := step * math.Pow(10, power); v >= low*(1-1e-9) && v <= high*(1+1e-9) {
				out = append(out, v)
			}
		}
	}
	return out
}

// linearTicks are up to about n round values from 0 to the first one that high does not exceed.
func linearTicks(high float64, n int) []float64 {
	if high <= 0 {
		high = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(high/float64(n))))
	for _, factor := range []float64{1, 2, 5, 10} {
		if factor*step*float64(n) >= high*(1-1e-9) {
			step *= factor
			break
		}
	}
	var out []float64
	for i := 0; ; i++ {
		v := float64(i) * step
		out = append(out, v)
		if v >= high*(1-1e-9) {
			return out
		}
	}
}

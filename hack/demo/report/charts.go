package report

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/hack/demo/summary"
)

// Margins of the charts' plots.
const (
	plotLeft   = 52.0
	plotRight  = chartWidth - 16
	plotTop    = 14.0
	plotBottom = chartHeight - 42
)

// series is the class of run i; there are as many colours as strategies.
func series(i int) string { return fmt.Sprintf("s%d", i%maxSeries) }

const maxSeries = 8

// frame draws a plot's horizontal grid with its labels and the title below.
func frame(c *canvas, y *scale, ticks []float64, label func(float64) string, below string) {
	for _, v := range ticks {
		at := y.at(v)
		c.line(plotLeft, at, plotRight, at, "grid")
		c.text(plotLeft-8, at+4, "tick", "end", label(v))
	}
	c.text((plotLeft+plotRight)/2, chartHeight-6, "axis", "middle", below)
}

// bounds of all times to the first token, in seconds, both above 0.
func (r *Report) bounds() (low, high float64) {
	low, high = math.Inf(1), 0
	for i := range r.Runs {
		for _, x := range r.Runs[i].samples {
			if x.Err == "" && x.TTFT > 0 {
				low, high = math.Min(low, x.TTFT.Seconds()), math.Max(high, x.TTFT.Seconds())
			}
		}
	}
	if high == 0 {
		return 0.1, 1
	}
	return low, math.Max(high, low*1.1)
}

// distribution is the part of the requests whose first token had arrived after a time, with the 50th, 90th and 99th
// percentiles marked.
func (r *Report) distribution() string {
	low, high := r.bounds()
	c := newCanvas("Distribution of the time to first token by strategy")
	x := scale{low: low, high: high, from: plotLeft, to: plotRight, log: true}
	y := scale{low: 0, high: 1, from: plotBottom, to: plotTop}
	frame(c, &y, []float64{0, 0.25, 0.5, 0.75, 0.9, 1}, func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) },
		"time to first token, logarithmic")
	for _, v := range logTicks(low, high) {
		c.line(x.at(v), plotTop, x.at(v), plotBottom, "grid")
		c.text(x.at(v), plotBottom+16, "tick", "middle", tickSeconds(v))
	}
	const steps = 250
	for i := range r.Runs {
		times := summary.Of(r.Runs[i].samples).TTFT
		if len(times) == 0 {
			continue
		}
		points := []point{{x.at(times[0].Seconds()), y.at(0)}}
		for step := 1; step <= steps; step++ {
			q := float64(step) / steps
			points = append(points, point{x.at(summary.Quantile(times, q).Seconds()), y.at(q)})
		}
		c.path(points, "curve "+series(i))
	}
	for i := range r.Runs {
		t := r.Runs[i].TTFTSeconds
		for _, mark := range []struct {
			q, v float64
		}{{0.5, t.P50}, {0.9, t.P90}, {0.99, t.P99}} {
			if mark.v > 0 {
				c.dot(x.at(mark.v), y.at(mark.q), 4.5, "mark "+series(i),
					fmt.Sprintf("%s: %.0f %% within %s", r.Runs[i].Strategy, 100*mark.q, seconds(mark.v)))
			}
		}
	}
	return c.String()
}

func tickSeconds(v float64) string {
	if v < 1 {
		return fmt.Sprintf("%gms", math.Round(v*1e6)/1e3)
	}
	return fmt.Sprintf("%gs", math.Round(v*1e3)/1e3)
}

// hits are two bars for each run: what was predicted, its confirmed part full and its speculative part pale, and what
// was delivered.
func (r *Report) hits() string {
	if len(r.Runs) > fullBars {
		return r.hitsOfMany()
	}
	c := newCanvas("Part of the prompt tokens predicted and delivered from the caches by strategy")
	high := 0.0
	for i := range r.Runs {
		high = math.Max(high, math.Max(r.Runs[i].PredictedHitRatio, r.Runs[i].DeliveredHitRatio))
	}
	const left, top = 92.0, plotTop
	ticks := linearTicks(100*high*1.12, 5)
	x := scale{low: 0, high: ticks[len(ticks)-1], from: left, to: plotRight}
	for _, v := range ticks {
		c.line(x.at(v), top, x.at(v), plotBottom, "grid")
		c.text(x.at(v), plotBottom+16, "tick", "middle", fmt.Sprintf("%g %%", v))
	}
	c.text((left+plotRight)/2, chartHeight-6, "axis", "middle", "part of all prompt tokens")
	group := (plotBottom - top) / float64(max(1, len(r.Runs)))
	height := math.Min(26, group/3.6)
	for i := range r.Runs {
		run := &r.Runs[i]
		middle := top + group*(float64(i)+0.5)
		c.text(0, middle-height-9, "name", "start", run.Strategy)
		c.text(left-8, middle-height/2+3, "tick", "end", "predicted")
		c.text(left-8, middle+height/2+7, "tick", "end", "delivered")
		confirmed, all, got := x.at(100*run.ConfirmedHitRatio), x.at(100*run.PredictedHitRatio), x.at(100*run.DeliveredHitRatio)
		c.bar(left, middle-height-1, confirmed-left, height, "fill "+series(i),
			fmt.Sprintf("%s, confirmed by the pods: %s", run.Strategy, percent(run.ConfirmedHitRatio)))
		c.bar(confirmed+1, middle-height-1, all-confirmed-1, height, "pale "+series(i),
			fmt.Sprintf("%s, speculative: %s", run.Strategy, percent(run.SpeculativeHitRatio)))
		c.text(all+6, middle-height/2+3, "value", "start", percent(run.PredictedHitRatio))
		c.bar(left, middle+3, got-left, height, "fill "+series(i),
			fmt.Sprintf("%s, delivered by the engines: %s", run.Strategy, percent(run.DeliveredHitRatio)))
		c.text(got+6, middle+height/2+7, "value", "start", percent(run.DeliveredHitRatio))
	}
	return c.String()
}

// fullBars is how many runs there is room for with two bars and a title each.
const fullBars = 3

// hitsOfMany is one bar for each strategy, what the engines delivered, and the best possible as a line.
func (r *Report) hitsOfMany() string {
	c := newCanvas("Part of the prompt tokens delivered from the caches by strategy")
	best := r.Runs[len(r.Runs)-1].BestHitRatio
	high := best
	for i := range r.Runs {
		high = math.Max(high, r.Runs[i].DeliveredHitRatio)
	}
	const top = plotTop
	left := 0.0
	for i := range r.Runs {
		left = math.Max(left, nameWidth(r.Runs[i].Strategy)+12)
	}
	ticks := linearTicks(100*high*1.12, 5)
	x := scale{low: 0, high: ticks[len(ticks)-1], from: left, to: plotRight}
	for _, v := range ticks {
		c.line(x.at(v), top, x.at(v), plotBottom, "grid")
		c.text(x.at(v), plotBottom+16, "tick", "middle", fmt.Sprintf("%g %%", v))
	}
	c.text((left+plotRight)/2, chartHeight-6, "axis", "middle", "part of all prompt tokens")
	group := (plotBottom - top) / float64(len(r.Runs))
	height := math.Min(26, group/1.6)
	for i := range r.Runs {
		run := &r.Runs[i]
		middle := top + group*(float64(i)+0.5)
		c.text(left-8, middle+4, "name", "end", run.Strategy)
		got := x.at(100 * run.DeliveredHitRatio)
		c.bar(left, middle-height/2, got-left, height, "fill "+series(i), fmt.Sprintf("%s: %s", run.Strategy, percent(run.DeliveredHitRatio)))
		c.text(left+8, middle+4, "value", "start", percent(run.DeliveredHitRatio))
	}
	if best > 0 {
		c.line(x.at(100*best), top, x.at(100*best), plotBottom, "base")
		c.text(x.at(100*best), top-4, "tick", "middle", "best possible "+percent(best))
	}
	return c.String()
}

// spread is how many requests each pod served in each run.
func (r *Report) spread() string {
	c := newCanvas("Requests served by each pod by strategy")
	pods, high := r.pods(), 0
	for i := range r.Runs {
		for _, n := range r.Runs[i].RequestsPerPod {
			high = max(high, n)
		}
	}
	ticks := linearTicks(float64(high), 5)
	y := scale{low: 0, high: ticks[len(ticks)-1], from: plotBottom, to: plotTop}
	frame(c, &y, ticks, func(v float64) string { return grouped(int(v)) }, "pod")
	group := (plotRight - plotLeft) / float64(max(1, len(pods)))
	width := math.Min(22, group*0.76/float64(max(1, len(r.Runs)))-2)
	for j, pod := range pods {
		middle := plotLeft + group*(float64(j)+0.5)
		if len(pods) <= 16 || j%(len(pods)/8) == 0 {
			c.text(middle, plotBottom+16, "tick", "middle", pod)
		}
		at := middle - (width+2)*float64(len(r.Runs))/2 + 1
		for i := range r.Runs {
			n := r.Runs[i].RequestsPerPod[pod]
			top := y.at(float64(n))
			c.bar(at, top, width, plotBottom-top, "fill "+series(i), fmt.Sprintf("%s, %s: %s requests", pod, r.Runs[i].Strategy, grouped(n)))
			at += width + 2
		}
	}
	c.line(plotLeft, plotBottom, plotRight, plotBottom, "base")
	return c.String()
}

// buckets is the number of parts of a run in the course.
const buckets = 20

// course is the time to the first token in the course of the runs: median and 90th percentile of the requests sent in
// each twentieth.
func (r *Report) course() string {
	c := newCanvas("Time to first token in the course of the run by strategy")
	span := r.span()
	type curve struct{ p50, p90 [buckets]time.Duration }
	curves := make([]curve, len(r.Runs))
	low, high := math.Inf(1), 0.0
	for i := range r.Runs {
		for b, times := range bucketed(r.Runs[i].samples, span) {
			p50, p90 := summary.Quantile(times, 0.5), summary.Quantile(times, 0.9)
			curves[i].p50[b], curves[i].p90[b] = p50, p90
			if p50 > 0 {
				low, high = math.Min(low, p50.Seconds()), math.Max(high, p90.Seconds())
			}
		}
	}
	if high == 0 {
		low, high = 0.1, 1
	}
	y := scale{low: low * 0.8, high: high * 1.2, from: plotBottom, to: plotTop, log: true}
	frame(c, &y, logTicks(y.low, y.high), tickSeconds, "time of the request, in the engines' time")
	x := scale{low: 0, high: span.Minutes(), from: plotLeft, to: plotRight}
	for _, v := range linearTicks(span.Minutes(), 6) {
		if v <= span.Minutes() {
			c.text(x.at(v), plotBottom+16, "tick", "middle", fmt.Sprintf("%g min", v))
		}
	}
	width := span.Minutes() / buckets
	for i := range curves {
		for _, line := range []struct {
			name, class string
			values      *[buckets]time.Duration
		}{{"median", "thin ", &curves[i].p50}, {"90th percentile", "curve ", &curves[i].p90}} {
			var points []point
			for b, v := range line.values {
				if v > 0 {
					points = append(points, point{x.at((float64(b) + 0.5) * width), y.at(v.Seconds())})
				}
			}
			c.path(points, line.class+series(i))
			for b, v := range line.values {
				if v > 0 {
					c.dot(x.at((float64(b)+0.5)*width), y.at(v.Seconds()), 8, "target",
						fmt.Sprintf("%s, minute %.1f to %.1f: %s %s", r.Runs[i].Strategy, float64(b)*width, float64(b+1)*width, line.name,
							seconds(v.Seconds())))
				}
			}
		}
	}
	c.line(plotLeft, plotBottom, plotRight, plotBottom, "base")
	return c.String()
}

// bucketed are the ascending times of the requests sent in each part of a span.
func bucketed(samples []summary.Sample, span time.Duration) [buckets][]time.Duration {
	var out [buckets][]time.Duration
	for _, x := range samples {
		if x.Err == "" {
			b := min(buckets-1, int(buckets*x.Sent/span))
			out[b] = append(out[b], x.TTFT)
		}
	}
	for b := range out {
		slices.Sort(out[b])
	}
	return out
}

package dashboard

import (
	"slices"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
)

const (
	// historyStep is between two points of a pool's history, historyPoints the most that are kept: an hour. A point has 32 bytes.
	historyStep   = 10 * time.Second
	historyPoints = 360
)

// past is a pool's history, and the counters at its last point.
type past struct {
	namespace, name string
	points          []api.Point // the oldest first
	at              time.Time
	last            totals
}

// totals are the counters whose differences make a point.
type totals struct {
	hits     api.Hits
	ttft     operatorfeed.Histogram
	requests int64
	unserved int64
}

// remember adds points to the histories of pools whose last point is old enough. Pools that have gone are forgotten. r.mu is held.
func (r *Recent) remember(now time.Time, pools []Facts) {
	kept := make(map[string]*past, len(pools))
	for i := range pools {
		f := &pools[i]
		p := r.past[f.name()]
		counters := totals{hits: hits(f.Stats.Hits, poolMark{}.hits), ttft: f.Totals.TTFT, requests: f.Totals.Requests, unserved: f.unserved()}
		switch {
		case p == nil:
			p = &past{namespace: f.Stats.Namespace, name: f.Stats.Pool, at: now, last: counters}
		case now.Sub(p.at) >= historyStep:
			if len(p.points) == historyPoints {
				p.points = slices.Delete(p.points, 0, 1)
			}
			p.points = append(p.points, f.point(&p.last, &counters, now.Sub(p.at)))
			p.at, p.last = now, counters
		}
		kept[f.name()] = p
	}
	r.past = kept
}

// unserved counts requests that failed or were refused.
func (f *Facts) unserved() int64 {
	n := f.Totals.Refused
	for outcome, count := range f.Stats.Outcomes {
		if outcome.String() == "failed" {
			n += count
		}
	}
	return n
}

// point is what was measured between two moments, and what holds at the second one.
func (f *Facts) point(before, now *totals, span time.Duration) api.Point {
	part := func(part, of int64) float32 {
		if of <= 0 || part < 0 {
			return api.Unmeasured
		}
		return float32(float64(part) / float64(of))
	}
	prompt := now.hits.Prompt - before.hits.Prompt
	p := api.Point{
		Delivered:  part(now.hits.Delivered-before.hits.Delivered, prompt),
		Predicted:  part(now.hits.PickedPredicted-before.hits.PickedPredicted, now.hits.PickedPrompt-before.hits.PickedPrompt),
		Divergence: part(now.hits.Deviation-before.hits.Deviation, prompt),
		FirstToken: api.Unmeasured,
		Requests:   float32(float64(max(0, now.requests-before.requests)) / span.Seconds()),
		Queue:      float32(f.Stats.Admission.Waiting),
		Unserved:   float32(max(0, now.unserved-before.unserved)),
	}
	late := now.ttft
	for i := range late {
		late[i] -= before.ttft[i]
	}
	if late.Count() > 0 {
		p.FirstToken = float32(late.Quantile(0.5))
	}
	for i := range f.Stats.Endpoints {
		e := &f.Stats.Endpoints[i]
		p.Queue += float32(e.Load.Waiting)
		if e.Pickable && e.CircuitClosed {
			p.Serving++
		}
	}
	return p
}

// History is what was observed in the last hour.
func (r *Recent) History() api.History {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := api.History{Seconds: int(historyStep / time.Second), Pools: []api.PoolHistory{}}
	for _, p := range r.past {
		out.Pools = append(out.Pools, api.PoolHistory{Namespace: p.namespace, Name: p.name, Points: slices.Clone(p.points)})
	}
	slices.SortFunc(out.Pools, func(a, b api.PoolHistory) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return out
}

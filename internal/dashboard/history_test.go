package dashboard

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// TestTheHistoryIsOfAnHour: each point is of its own ten seconds, and there are never more than an hour's.
func TestTheHistoryIsOfAnHour(t *testing.T) {
	var r Recent
	now := time.Unix(1e9, 0)
	f := Facts{Stats: picker.PoolStats{
		Namespace: "a", Pool: "chat", Outcomes: map[picker.Outcome]int64{},
		Endpoints: []picker.EndpointStats{{Pickable: true, CircuitClosed: true}, {Pickable: true}},
	}}
	step := func(delivered, failed int64) {
		f.Totals.Requests += 30
		f.Stats.Hits.Answers++
		f.Stats.Hits.PromptTokens += 100
		f.Stats.Hits.Delivered += delivered
		f.Stats.Hits.PickedPrompt += 200
		f.Stats.Hits.PickedPredicted += 160
		f.Stats.Hits.Deviation += 80 - delivered
		f.Stats.Outcomes[picker.Failed] += failed
		now = now.Add(historyStep)
		r.Observe(now, []Facts{f})
	}
	r.Observe(now, []Facts{f})
	r.Observe(now.Add(historyStep/2), []Facts{f}) // too early for a point
	step(75, 0)
	step(50, 2)
	want := api.History{Seconds: 10, Pools: []api.PoolHistory{{Namespace: "a", Name: "chat", Points: []api.Point{
		{Delivered: .75, Predicted: .8, Divergence: .05, FirstToken: api.Unmeasured, Requests: 3, Serving: 1},
		{Delivered: .5, Predicted: .8, Divergence: .3, FirstToken: api.Unmeasured, Requests: 3, Serving: 1, Unserved: 2},
	}}}}
	if diff := cmp.Diff(want, r.History()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for range 2 * historyPoints {
		step(60, 0)
	}
	points := r.History().Pools[0].Points
	if len(points) != historyPoints || points[0].Delivered != .6 {
		t.Errorf("%d points from %v, want %d", len(points), points[0], historyPoints)
	}
	r.Observe(now.Add(time.Second), nil)
	if pools := r.History().Pools; len(pools) != 0 {
		t.Errorf("a pool that has gone is remembered: %v", pools)
	}
}

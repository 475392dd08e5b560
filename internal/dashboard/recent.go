package dashboard

import (
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// recentSpan is how far back recent counters reach, about.
const recentSpan = time.Minute

// Recent remembers counters for a minute, to compute their change in that minute, and a point every ten seconds for an hour.
// It is safe for concurrent use.
type Recent struct {
	mu    sync.Mutex
	marks []mark // by time
	past  map[string]*past
}

// mark is what counters were at a time.
type mark struct {
	at    time.Time
	pools map[string]poolMark
}

type poolMark struct {
	hits      picker.Hits
	ttft      operatorfeed.Histogram
	endpoints map[endpoint.ID]picker.Hits
}

// Observe records the counters of all pools at a time. Call it every few seconds.
func (r *Recent) Observe(now time.Time, pools []Facts) {
	m := mark{at: now, pools: map[string]poolMark{}}
	for i := range pools {
		f := &pools[i]
		one := poolMark{hits: f.Stats.Hits, ttft: f.Totals.TTFT, endpoints: map[endpoint.ID]picker.Hits{}}
		for j := range f.Stats.Endpoints {
			one.endpoints[f.Stats.Endpoints[j].ID] = f.Stats.Endpoints[j].Hits
		}
		m.pools[f.name()] = one
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remember(now, pools)
	if len(r.marks) == 0 { // what was counted before the first time is recent
		r.marks = append(r.marks, mark{at: now})
	}
	r.marks = append(r.marks, m)
	drop := 0
	for drop < len(r.marks)-1 && now.Sub(r.marks[drop+1].at) >= recentSpan {
		drop++
	}
	r.marks = append([]mark(nil), r.marks[drop:]...)
}

// before is what a pool's counters were about a minute ago; nothing for one that was not there.
func (r *Recent) before(pool string) poolMark {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.marks) == 0 {
		return poolMark{}
	}
	return r.marks[0].pools[pool]
}

// hits puts counters into the words of the API, less what they were before.
func hits(now, before picker.Hits) api.Hits {
	if now.Answers < before.Answers || now.Picks < before.Picks {
		before = picker.Hits{} // another life of it
	}
	return api.Hits{
		Answers: now.Answers - before.Answers, Prompt: now.PromptTokens - before.PromptTokens, Predicted: now.Predicted - before.Predicted,
		Confirmed: now.Confirmed - before.Confirmed, Delivered: now.Delivered - before.Delivered, Deviation: now.Deviation - before.Deviation,
		Picks: now.Picks - before.Picks, PickedPrompt: now.PickedPrompt - before.PickedPrompt,
		PickedPredicted: now.PickedPredicted - before.PickedPredicted,
		Unreported:      now.Silent + now.Uncached - before.Silent - before.Uncached,
	}
}

package lab

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// Routed measures what routes between pools are worth: one door before a large model with a canary, a small model, and a model whose pool
// is at zero until it is asked for. The rate at which sessions begin rises from nothing to twice its mean.
type Routed struct {
	// Config of the runs, without pools and routes.
	Config Config
	// Patience is the time to the first token within which an answer is good.
	Patience time.Duration
	// Start is how long the pods of the pool at zero take to be ready.
	Start time.Duration
}

// RouteScore is what one way to route has made of the workload; means over the runs.
type RouteScore struct {
	Name string `json:"name"`
	Runs int    `json:"runs"`
	// TTFTMean and TTFTP99 in seconds, of answered requests, and RareTTFTMax the longest of those for the model that is woken.
	TTFTMean    float64 `json:"ttftMean"`
	TTFTP99     float64 `json:"ttftP99"`
	RareTTFTMax float64 `json:"rareTTFTMax"`
	// Good is the part of all requests that had their first token in time, Hits the part of the prompt tokens found in caches.
	Good float64 `json:"good"`
	Hits float64 `json:"hits"`
	// Refused of all requests, and those that each pool has answered.
	Refused  float64            `json:"refused"`
	Requests float64            `json:"requests"`
	ByPool   map[string]float64 `json:"byPool"`
}

// The pools behind the door, and the names that clients use.
const (
	poolLarge, poolNext, poolSmall, poolRare = "large", "next", "small", "rare"
	modelChat, modelSeldom                   = "chat", "seldom"
)

// pools of the experiment, in the order of their pods.
func (r *Routed) pools() []Pool {
	large, _ := enginemodel.LookupProfile("70b-tp4-h100")
	small, _ := enginemodel.LookupProfile("8b-h100")
	return []Pool{
		{Name: poolLarge, Pods: 4, Profile: large}, {Name: poolNext, Pods: 2, Profile: large},
		{Name: poolSmall, Pods: 2, Profile: small}, {Name: poolRare, Pods: 1, Profile: large, Start: r.Start},
	}
}

// way is one way to route.
type way struct {
	name          string
	routed        bool // else clients name the pools
	sticky, falls bool
}

var ways = []way{
	{name: "no route"},
	{name: "no route, fallback", routed: true, sticky: true, falls: true},
	{name: "weights, sticky: None", routed: true},
	{name: "weights, sessions stay", routed: true, sticky: true},
	{name: "weights, sessions stay, fallback", routed: true, sticky: true, falls: true},
}

// routes of a way: chat goes to the large pool and its canary by the number of their pods, seldom to the pool at zero.
func (w *way) routes() []modelroute.Route {
	if !w.routed {
		return nil
	}
	backend := func(pool string, weight int) modelroute.Backend {
		return modelroute.Backend{Pool: model + "/" + pool, Weight: weight}
	}
	rule := func(backends ...modelroute.Backend) []modelroute.Rule {
		r := modelroute.Rule{Backends: backends, Sticky: w.sticky}
		if w.falls {
			r.Fallbacks = []modelroute.Backend{backend(poolSmall, 0)}
			r.On, r.Within = modelroute.Of(modelroute.Full, modelroute.Cold, modelroute.Down), 10*time.Second
		}
		return []modelroute.Rule{r}
	}
	chat := rule(backend(poolLarge, 2), backend(poolNext, 1))
	if strings.HasPrefix(w.name, ways[0].name) {
		chat = rule(backend(poolLarge, 1))
	}
	return []modelroute.Route{
		{Namespace: model, Name: modelChat, Models: []string{modelChat}, Rules: chat},
		{Namespace: model, Name: modelSeldom, Models: []string{modelSeldom}, Rules: rule(backend(poolRare, 1))},
	}
}

// swelling is a workload whose sessions begin at a rate that rises evenly from nothing to twice its mean; each keeps its own pace. Every
// twentieth session asks for the model that is woken.
func swelling(w *Workload, routed bool) *Workload {
	out := *w
	out.Requests = slices.Clone(w.Requests)
	last := w.Requests[len(w.Requests)-1].At.Seconds()
	begins := map[int]time.Duration{}
	for i := range out.Requests {
		q := &out.Requests[i]
		if _, known := begins[q.Session]; !known {
			at := q.At.Seconds()
			begins[q.Session] = time.Duration((math.Sqrt(at*last) - at) * float64(time.Second))
		}
		q.At += begins[q.Session]
		rare := q.Session%20 == 7
		switch {
		case rare && routed:
			q.Model = modelSeldom
		case rare:
			q.Model = poolRare
		case routed:
			q.Model = modelChat
		default:
			q.Model = poolLarge
		}
		if rare {
			q.Tenant = poolRare
		}
	}
	slices.SortStableFunc(out.Requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return &out
}

// Run plays each way for each seed.
func (r *Routed) Run(ctx context.Context, seeds []uint64, show func(done, all int)) ([]RouteScore, error) {
	scores := make([]RouteScore, len(ways))
	for n, seed := range seeds {
		drawn, err := r.Config.Workload.Drawn(seed)
		if err != nil {
			return nil, err
		}
		for i := range ways {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if show != nil {
				show(n*len(ways)+i, len(seeds)*len(ways))
			}
			c := r.Config
			c.Seed, c.Pools, c.Routes, c.Workload = seed, r.pools(), ways[i].routes(), swelling(drawn, ways[i].routed)
			c.Admission = picker.AdmissionSpec{
				Queue: true, WaitBudget: 250 * time.Millisecond,
				Limits: admission.Limits{Requests: 1024, Bytes: 1 << 40, TTL: 5 * time.Second, Hold: 5 * time.Minute},
			}
			result, err := Run(c)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", ways[i].name, err)
			}
			r.add(&scores[i], &ways[i], c.Pools, result, len(seeds))
		}
	}
	return scores, nil
}

// add takes one of several runs into the means.
func (r *Routed) add(s *RouteScore, w *way, pools []Pool, result *Result, runs int) {
	part := 1 / float64(runs)
	s.Name, s.Runs = w.name, runs
	if s.ByPool == nil {
		s.ByPool = map[string]float64{}
	}
	all := result.Requests + result.Shed
	good := 0
	var rare []float64
	for _, one := range result.served {
		after := one.first - one.arrived
		if after <= r.Patience {
			good++
		}
		if one.tenant == poolRare {
			rare = append(rare, after.Seconds())
		}
	}
	s.TTFTMean += part * result.TTFTSeconds.Mean
	s.TTFTP99 += part * result.TTFTSeconds.P99
	s.RareTTFTMax += part * slices.Max(append(rare, 0))
	s.Good += part * float64(good) / float64(max(all, 1))
	s.Hits += part * result.HitRatio
	s.Refused += part * float64(result.Shed)
	s.Requests += part * float64(all)
	pod := 0
	for i := range pools {
		for range pools[i].Pods {
			s.ByPool[pools[i].Name] += part * float64(result.RequestsPerPod[pod])
			pod++
		}
	}
}

// WriteRoutes prints the ways.
func WriteRoutes(w io.Writer, list []RouteScore) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\trequests\trefused\tfirst token\tp99\tin time\thit\tseldom, slowest\tlarge\tnext\tsmall\trare\t")
	for i := range list {
		s := &list[i]
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.2f s\t%.2f s\t%.1f %%\t%.1f %%\t%.2f s\t%.0f\t%.0f\t%.0f\t%.0f\t\n", s.Name, s.Requests, s.Refused, s.TTFTMean, s.TTFTP99,
			100*s.Good, 100*s.Hits, s.RareTTFTMax, s.ByPool[poolLarge], s.ByPool[poolNext], s.ByPool[poolSmall], s.ByPool[poolRare])
	}
	return t.Flush()
}

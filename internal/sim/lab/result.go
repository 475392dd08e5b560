package lab

import (
	"math"
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// Result is the result of a run.
type Result struct {
	Strategy string `json:"strategy"`
	// Requests that were sent and answered; Shed were turned away.
	Requests int `json:"requests"`
	Shed     int `json:"shed"`
	// HitRatio is the part of the prompt tokens that engines found in their caches, PredictedHitRatio what the picker
	// expected of the pods it chose.
	HitRatio          float64 `json:"hitRatio"`
	PredictedHitRatio float64 `json:"predictedHitRatio"`
	TTFTSeconds       Times   `json:"ttftSeconds"`
	E2ESeconds        Times   `json:"e2eSeconds"`
	// Imbalance is the mean over time of the most requests in flight at a pod over the mean of all pods.
	Imbalance float64 `json:"imbalance"`
	// DecisionSeconds is the time that decisions took, measured, on one core of this machine.
	DecisionSeconds Times  `json:"decisionSeconds"`
	Seed            uint64 `json:"seed"`
	// Dropped requests were not sent.
	Dropped Dropped `json:"dropped"`
	// RequestsPerPod in the order of the pods.
	RequestsPerPod []int `json:"requestsPerPod"`
	// VirtualSeconds is how long the run took in virtual time, WallSeconds in real time.
	VirtualSeconds float64 `json:"virtualSeconds"`
	WallSeconds    float64 `json:"wallSeconds"`

	// EngineTTFTSeconds are times to the first token from when the picker has sent the request on: TTFTSeconds less
	// what it waited for a full fleet.
	EngineTTFTSeconds Times `json:"engineTTFTSeconds"`
	// ComputedTokens are the prompt tokens that engines computed, by tenant.
	ComputedTokens map[string]int `json:"computedTokens"`

	// GapSeconds are the times between the tokens of an answer, if they were measured, and HandedOver the requests that one pod has
	// prefilled and another one answered.
	GapSeconds Times `json:"gapSeconds,omitzero"`
	HandedOver int   `json:"handedOver,omitempty"`

	// AdapterLoads is how often pods brought an adapter in.
	AdapterLoads int `json:"adapterLoads,omitempty"`
	// Shadows compare other strategies with the applied one, summed over the pickers.
	Shadows []picker.ShadowStats `json:"shadows,omitempty"`

	ttft   []float64 // ascending
	served []served  // in the order of their first tokens
}

// Times sums times up, in seconds.
type Times struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
}

// timesOf sorts and sums up.
func timesOf(seconds []float64) Times {
	if len(seconds) == 0 {
		return Times{}
	}
	slices.Sort(seconds)
	sum := 0.0
	for _, x := range seconds {
		sum += x
	}
	return Times{sum / float64(len(seconds)), quantile(seconds, 0.5), quantile(seconds, 0.9), quantile(seconds, 0.99)}
}

// quantile is the smallest of ascending values that a part q of them does not exceed; 0 without any.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, min(len(sorted)-1, int(math.Ceil(q*float64(len(sorted))))-1))]
}

// recorder takes notes during a run.
type recorder struct {
	ttft, e2e, decisions []float64
	shedN                int
	prompt, cached       int // tokens
	predicted            int
	perPod               []int
	inFlight             []int
	total                int
	// area is the integral of max/mean over the time in which there was something in flight.
	area, busy float64
	last       time.Duration
	pods       map[string]int
	wall       time.Time
	engine     []float64      // times from the engine on
	tenants    map[string]int // prompt tokens computed
	served     []served
	gaps       []float64
	handedOver int
}

func newRecorder(requests, pods int) *recorder {
	r := &recorder{perPod: make([]int, pods), inFlight: make([]int, pods), pods: map[string]int{}, wall: time.Now(), tenants: map[string]int{}}
	r.ttft, r.e2e, r.decisions = make([]float64, 0, requests), make([]float64, 0, requests), make([]float64, 0, requests)
	for i := range pods {
		r.pods[podName(i)] = i
	}
	return r
}

// pass takes the time since the last change of what is in flight into account.
func (r *recorder) pass(now time.Duration) {
	if r.total > 0 {
		dt := (now - r.last).Seconds()
		r.area += dt * float64(slices.Max(r.inFlight)*len(r.inFlight)) / float64(r.total)
		r.busy += dt
	}
	r.last = now
}

func (r *recorder) picked(d time.Duration) { r.decisions = append(r.decisions, d.Seconds()) }

func (r *recorder) shed() { r.shedN++ }

func (r *recorder) sent(now time.Duration, pod, predicted int) {
	r.pass(now)
	r.perPod[pod]++
	r.inFlight[pod]++
	r.total++
	r.predicted += predicted
}

func (r *recorder) firstToken(after, atEngine time.Duration, q *enginemodel.Request, tenant string) {
	r.ttft = append(r.ttft, after.Seconds())
	r.engine = append(r.engine, atEngine.Seconds())
	r.tenants[tenant] += q.PromptTokens() - q.CachedTokens
	r.prompt += q.PromptTokens()
	r.cached += q.CachedTokens
}

func (r *recorder) ended(now, after time.Duration, pod int) {
	r.left(now, pod)
	r.e2e = append(r.e2e, after.Seconds())
}

// left takes note that a request is with a pod no more.
func (r *recorder) left(now time.Duration, pod int) {
	r.pass(now)
	r.inFlight[pod]--
	r.total--
}

func (r *recorder) result(s *sim) *Result {
	out := &Result{
		Strategy: s.Strategy.Name, Requests: len(r.e2e), Shed: r.shedN,
		TTFTSeconds: timesOf(r.ttft), E2ESeconds: timesOf(r.e2e), DecisionSeconds: timesOf(r.decisions),
		Seed: s.Seed, Dropped: s.Workload.Dropped, RequestsPerPod: r.perPod,
		VirtualSeconds: s.now.Seconds(), WallSeconds: time.Since(r.wall).Seconds(), ttft: r.ttft,
		GapSeconds: timesOf(r.gaps), HandedOver: r.handedOver, EngineTTFTSeconds: timesOf(r.engine), ComputedTokens: r.tenants, served: r.served,
	}
	for _, p := range s.pods {
		out.AdapterLoads += p.adapters.loads
	}
	for _, p := range s.pickers {
		for i, shadow := range p.Stats()[0].Shadows {
			if i == len(out.Shadows) {
				out.Shadows = append(out.Shadows, picker.ShadowStats{Name: shadow.Name, Strategy: shadow.Strategy})
			}
			sum := &out.Shadows[i]
			sum.Compared += shadow.Compared
			sum.Agreed += shadow.Agreed
			sum.SavedSeconds += shadow.SavedSeconds
			sum.LostSeconds += shadow.LostSeconds
		}
	}
	if r.prompt > 0 {
		out.HitRatio = float64(r.cached) / float64(r.prompt)
		out.PredictedHitRatio = float64(r.predicted) / float64(r.prompt)
	}
	if r.busy > 0 {
		out.Imbalance = r.area / r.busy
	}
	return out
}

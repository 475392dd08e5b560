// Package report formats the results of the demo's runs: as a table, as JSON, and as a page with charts. It is pure.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/kvasir-dev/kvasir/hack/demo/summary"
)

// Report is the result of a demo; its JSON is what report.json holds. Times are the engines' model time where not said
// otherwise.
type Report struct {
	Runs   []Run  `json:"runs"`
	Config Config `json:"config"`
}

// Run is one strategy's result.
type Run struct {
	Strategy string `json:"strategy"`
	Requests int    `json:"requests"`
	Errors   int    `json:"errors"`
	// The ratios are parts of the prompt tokens, 0 to 1. Predicted is the sum of confirmed and speculative.
	PredictedHitRatio float64 `json:"predictedHitRatio"`
	DeliveredHitRatio float64 `json:"deliveredHitRatio"`
	// BestHitRatio is what a cache without bounds that all pods share would have held.
	BestHitRatio   float64        `json:"bestHitRatio"`
	TTFTSeconds    Quantiles      `json:"ttftSeconds"`
	RequestsPerPod map[string]int `json:"requestsPerPod"`

	// ConfirmedHitRatio is what pods had announced, SpeculativeHitRatio what was assumed because a request with the
	// same prefix had just been sent there.
	ConfirmedHitRatio   float64 `json:"confirmedHitRatio"`
	SpeculativeHitRatio float64 `json:"speculativeHitRatio"`
	// TotalDeviation is |predicted - delivered| as a part of the delivered hits; RequestDeviation the sum of the requests'
	// |predicted - delivered| as a part of the prompt tokens; ExactRatio the part of the requests whose prediction was
	// exactly right.
	TotalDeviation   float64 `json:"totalDeviation"`
	RequestDeviation float64 `json:"requestDeviation"`
	ExactRatio       float64 `json:"exactPredictionRatio"`
	// Miscounted requests have a prompt of another length for the engine than for the picker; Blind ones were routed
	// without token ids.
	Miscounted   int `json:"miscountedRequests"`
	Blind        int `json:"blindRequests"`
	PromptTokens int `json:"promptTokens"`
	AnswerTokens int `json:"answerTokens"`
	// PrefillLoad is the time that the prefills would take one by one, as a part of the pods' time up to the last arrival:
	// how near the fleet is to its limit. Decoding is not included.
	PrefillLoad float64 `json:"prefillLoad"`
	// Workloads are the same figures for each workload alone.
	Workloads []Workload `json:"workloads"`
	Machine   Machine    `json:"machine"`
	// Wrong are the sentences of the checks that failed.
	Wrong []string `json:"failedChecks"`

	samples []summary.Sample
}

// Quantiles of a time, in seconds.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// Workload is the part of a run that one workload is.
type Workload struct {
	Name              string    `json:"name"`
	Requests          int       `json:"requests"`
	PromptTokens      int       `json:"promptTokens"`
	PredictedHitRatio float64   `json:"predictedHitRatio"`
	DeliveredHitRatio float64   `json:"deliveredHitRatio"`
	BestHitRatio      float64   `json:"bestHitRatio"`
	TTFTSeconds       Quantiles `json:"ttftSeconds"`
}

// Machine is what a run did to the machine, in wall time.
type Machine struct {
	WallSeconds float64 `json:"wallSeconds"`
	// MeanCPU and MaxCPU (of a second) are the busy part of all processors, of all processes, 0 to 1; negative where
	// it cannot be measured.
	MeanCPU float64 `json:"meanCpu"`
	MaxCPU  float64 `json:"maxCpu"`
	// Processor time of the pods, the picker and the load generator, in seconds.
	PodsCPUSeconds   float64 `json:"podsCpuSeconds"`
	PickerCPUSeconds float64 `json:"pickerCpuSeconds"`
	ClientCPUSeconds float64 `json:"clientCpuSeconds"`
	// MaxLateSeconds is the longest delay of a request by the load generator.
	MaxLateSeconds float64 `json:"maxLateSeconds"`
}

// BusyCPU is the mean processor use above which a run measures the machine as much as the routing.
const BusyCPU = 0.7

// lateSeconds is the delay of a request above which the load is another one.
const lateSeconds = 1

// Config is what was run.
type Config struct {
	Pods        int    `json:"pods"`
	Profile     string `json:"profile"`
	BlockTokens int    `json:"blockTokens"`
	// KVTokensPerPod is the size of each pod's cache.
	KVTokensPerPod int     `json:"kvTokensPerPod"`
	SpeedUp        float64 `json:"speedUp"`
	StreamInterval int     `json:"streamInterval"`
	// TraceRate is how much faster than recorded the trace is replayed, in model time.
	TraceRate     float64 `json:"traceRate"`
	TraceRequests int     `json:"traceRequests"`
	// TraceSeconds is how long the trace's arrivals take, in model time.
	TraceSeconds float64 `json:"traceSeconds"`
	TraceSource  string  `json:"traceSource"`
	TraceLicence string  `json:"traceLicence"`
	TraceCut     string  `json:"traceCut"`
	ChatSessions int     `json:"chatSessions"`
	ChatRequests int     `json:"chatRequests"`
	// SystemWords is the length of the chats' common system prompt.
	SystemWords int    `json:"chatSystemWords"`
	CPUs        int    `json:"cpus"`
	Platform    string `json:"platform"`
	GoVersion   string `json:"goVersion"`
}

// Prefill is how long a pod takes to prefill a prompt of so many tokens with some of them cached.
type Prefill func(tokens, cached int) time.Duration

// NewRun summarises and checks a run. pods are the names of all pods there were.
func NewRun(strategy string, pods []string, samples []summary.Sample, prefill Prefill, m Machine) Run {
	s := summary.Of(samples)
	m.MaxLateSeconds = s.MaxLate.Seconds()
	r := Run{
		Strategy: strategy, Requests: s.Requests, Errors: s.Errors,
		PredictedHitRatio: s.PredictedRatio(), DeliveredHitRatio: s.DeliveredRatio(), BestHitRatio: s.BestRatio(),
		ConfirmedHitRatio: s.ConfirmedRatio(), SpeculativeHitRatio: s.SpeculativeRatio(),
		TTFTSeconds: quantiles(s), RequestsPerPod: s.PerPod,
		TotalDeviation: s.TotalDeviation(), RequestDeviation: s.RequestDeviation(),
		Miscounted: s.Miscounted, Blind: s.Blind, PromptTokens: s.Prompt, AnswerTokens: s.Answer,
		PrefillLoad: prefillLoad(samples, prefill, len(pods)),
		Machine:     m, Wrong: s.Check(), samples: samples,
	}
	if good := s.Requests - s.Errors; good > 0 {
		r.ExactRatio = float64(s.Exact) / float64(good)
	}
	for _, pod := range pods {
		r.RequestsPerPod[pod] += 0
	}
	if r.Wrong == nil {
		r.Wrong = []string{}
	}
	for _, name := range []string{summary.Trace, summary.Chat} {
		part := summary.Of(only(samples, name))
		r.Workloads = append(r.Workloads, Workload{
			Name: name, Requests: part.Requests, PromptTokens: part.Prompt,
			PredictedHitRatio: part.PredictedRatio(), DeliveredHitRatio: part.DeliveredRatio(),
			BestHitRatio: part.BestRatio(), TTFTSeconds: quantiles(part),
		})
	}
	return r
}

func prefillLoad(samples []summary.Sample, prefill Prefill, pods int) float64 {
	var work, span time.Duration
	for i := range samples {
		if x := &samples[i]; x.Err == "" {
			work += prefill(x.Prompt, x.Delivered)
			span = max(span, x.Sent)
		}
	}
	if span == 0 || pods == 0 {
		return 0
	}
	return work.Seconds() / (span.Seconds() * float64(pods))
}

func quantiles(s *summary.Summary) Quantiles {
	return Quantiles{P50: s.Quantile(0.5).Seconds(), P90: s.Quantile(0.9).Seconds(), P99: s.Quantile(0.99).Seconds()}
}

func only(samples []summary.Sample, workload string) []summary.Sample {
	var out []summary.Sample
	for _, x := range samples {
		if x.Workload == workload {
			out = append(out, x)
		}
	}
	return out
}

// Wrong are the failed checks of all runs, with their strategies.
func (r *Report) Wrong() []string {
	var out []string
	for i := range r.Runs {
		for _, sentence := range r.Runs[i].Wrong {
			out = append(out, r.Runs[i].Strategy+": "+sentence)
		}
	}
	return out
}

// Warnings are what makes the times of the report worth less.
func (r *Report) Warnings() []string {
	var busy, late []string
	for i := range r.Runs {
		name, m := r.Runs[i].Strategy, &r.Runs[i].Machine
		if m.MeanCPU > BusyCPU {
			busy = append(busy, fmt.Sprintf("%s %.0f %% (%.0f %% by the demo itself)", name, 100*m.MeanCPU, 100*r.ownUse(m)))
		}
		if m.MaxLateSeconds > lateSeconds {
			late = append(late, fmt.Sprintf("%s %.1f s", name, m.MaxLateSeconds))
		}
	}
	var all []string
	if len(busy) > 0 {
		all = append(all, "The machine was too busy, in the mean with "+listed(busy)+". Times measure the machine as well; "+
			"run the demo on an idle machine, or with a smaller --speed-up.")
	}
	if len(late) > 0 {
		all = append(all, "Requests were sent late, at most with "+listed(late)+". The load was not the one that was planned.")
	}
	return all
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

// WriteRequests writes a JSON object a line for each request of each run.
func (r *Report) WriteRequests(w io.Writer) error {
	lines := json.NewEncoder(w)
	for i := range r.Runs {
		for j := range r.Runs[i].samples {
			line := struct {
				Strategy string `json:"strategy"`
				*summary.Sample
			}{r.Runs[i].Strategy, &r.Runs[i].samples[j]}
			if err := lines.Encode(line); err != nil {
				return fmt.Errorf("writing the requests: %w", err)
			}
		}
	}
	return nil
}

// span is the time of the last sample of all runs, at least a second.
func (r *Report) span() time.Duration {
	span := time.Second
	for i := range r.Runs {
		for _, x := range r.Runs[i].samples {
			span = max(span, x.Sent)
		}
	}
	return span
}

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Requests observes requests as they go by. It is a request.Observer and safe for concurrent use.
type Requests struct {
	refused, refusedGateways *prometheus.CounterVec
	pick, sizes, answers     *prometheus.HistogramVec
	prompts, outputs         *prometheus.HistogramVec
	firstToken, perToken     *prometheus.HistogramVec
	duration                 *prometheus.HistogramVec

	known known
}

// NewRequests makes an observer that has seen nothing; the reasons for refusals, by the proxy and to gateways, are shown
// from the start.
func NewRequests(reasons, gatewayReasons []string) *Requests {
	ofModel := []string{"namespace", "pool", "model"}
	r := &Requests{
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kvasir_proxy_refused_total",
			Help: "Requests to the proxy that were answered without a pick, by reason.",
		}, []string{"reason"}),
		refusedGateways: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kvasir_extproc_refused_total",
			Help: "Requests of gateways that were refused, by reason.",
		}, []string{"reason"}),
		pick: histogram("kvasir_pick_duration_seconds",
			"Time from a request's body to the choice of its endpoint, tokenizing included.", ofPool,
			1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 1),
		prompts: histogram("kvasir_request_prompt_tokens",
			"Prompt tokens of each request for which an endpoint was picked, estimated from the size of its text where the tokens are not known.",
			ofModel, tokenBuckets...),
		outputs: histogram("kvasir_request_output_tokens",
			"Tokens generated for each request: the engine's count, or about as many as arrived where the answer has no count. "+
				"Requests without output are left out.", ofModel, tokenBuckets...),
		firstToken: histogram("kvasir_time_to_first_token_seconds",
			"Time from a request to the first generated token of its answer, as the picker sees it; streamed answers only.", ofModel,
			0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300),
		perToken: histogram("kvasir_inter_token_latency_seconds",
			"Mean time between the tokens of an answer, from its first token to its end; one observation for each streamed answer of several tokens.",
			ofModel, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5),
		duration: histogram("kvasir_request_duration_seconds",
			"End-to-end latency: time from a request to the end of its answer, by how it ended.",
			[]string{"namespace", "pool", "model", "outcome"}, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300, 600, 1800),
	}
	r.sizes = histogram("kvasir_request_size_bytes", "Size of the body of each request for which an endpoint was picked.", ofPool, sizeBuckets...)
	r.answers = histogram("kvasir_response_size_bytes",
		"Bytes of an answer's body that had passed through the picker when the request ended; requests of gateways that show no answers are left out.", ofPool,
		sizeBuckets...)
	for _, reason := range reasons {
		r.refused.WithLabelValues(reason)
	}
	for _, reason := range gatewayReasons {
		r.refusedGateways.WithLabelValues(reason)
	}
	return r
}

var (
	// sizeBuckets are in bytes: 256 to 256 MiB, each four times the one before.
	sizeBuckets = prometheus.ExponentialBuckets(256, 4, 11)
	// tokenBuckets go from 1 to 1,048,576 tokens, each four times the one before.
	tokenBuckets = prometheus.ExponentialBuckets(1, 4, 11)
)

// Gateways observes the requests of gateways.
func (r *Requests) Gateways() Gateways { return Gateways{r} }

// Gateways counts refusals apart.
type Gateways struct{ *Requests }

// Refused counts a request of a gateway that got no decision.
func (g Gateways) Refused(reason string) { g.refusedGateways.WithLabelValues(reason).Inc() }

// histogram has classic buckets for scrapers without native histograms, and native ones.
func histogram(name, help string, labels []string, buckets ...float64) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}, labels)
}

// Refused counts a request that got no decision.
func (r *Requests) Refused(reason string) { r.refused.WithLabelValues(reason).Inc() }

// Picked observes the request, and how long the pick has taken.
func (r *Requests) Picked(d *picker.Decision) {
	s := r.of(d)
	s.pick.Observe(d.Duration.Seconds())
	s.sizes.Observe(float64(d.Bytes))
	s.prompts.Observe(float64(d.PromptTokens))
}

// FirstToken observes the time to the first token.
func (r *Requests) FirstToken(d *picker.Decision, after time.Duration) {
	r.of(d).firstToken.Observe(after.Seconds())
}

// Ended observes how long the request has taken, and what was generated for it.
func (r *Requests) Ended(d *picker.Decision, outcome picker.Outcome, after time.Duration) {
	s := r.of(d)
	if outcome == picker.Completed {
		s.completed.Observe(after.Seconds())
	} else {
		r.duration.WithLabelValues(s.namespace, s.pool, s.model, outcome.String()).Observe(after.Seconds())
	}
	if outcome == picker.Unreported {
		return
	}
	s.answers.Observe(float64(d.AnswerBytes()))
	output := d.Output()
	if output.Tokens > 0 {
		s.outputs.Observe(float64(output.Tokens))
	}
	if output.PerToken > 0 {
		s.perToken.Observe(output.PerToken.Seconds())
	}
}

// Describe is for prometheus.Collector.
func (r *Requests) Describe(out chan<- *prometheus.Desc) {
	for _, c := range r.all() {
		c.Describe(out)
	}
}

// Collect is for prometheus.Collector.
func (r *Requests) Collect(out chan<- prometheus.Metric) {
	for _, c := range r.all() {
		c.Collect(out)
	}
}

func (r *Requests) all() []prometheus.Collector {
	return []prometheus.Collector{r.refused, r.refusedGateways, r.pick, r.firstToken, r.perToken, r.duration, r.sizes, r.answers, r.prompts,
		r.outputs}
}

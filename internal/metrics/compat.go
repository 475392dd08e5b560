package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// maxCompatModels bounds the values of model labels; further models are counted as otherModel.
const maxCompatModels = 1000

// Compat shows requests and pools under the names that dashboards of inference gateways use (Gateway API Inference
// Extension, v1.5.0). It is a prometheus.Collector, and safe for concurrent use.
type Compat struct {
	pools func() []picker.PoolStats

	requests, errors      *prometheus.CounterVec
	running               *prometheus.GaugeVec
	duration, perToken    *prometheus.HistogramVec
	input, output, cached *prometheus.HistogramVec
	sizes, answers        *prometheus.HistogramVec
	waited                *prometheus.HistogramVec
	pick                  prometheus.Histogram
	kv, queue             *prometheus.Desc
	podQueue              *prometheus.Desc
	ready, average        *prometheus.Desc
	waiting, waitingBytes *prometheus.Desc

	mu     sync.Mutex
	models map[string]bool // guarded by mu
}

// NewCompat makes a collector over the pools.
func NewCompat(pools func() []picker.PoolStats) *Compat {
	models := []string{"model_name", "target_model_name"}
	c := &Compat{
		pools: pools, models: map[string]bool{},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "inference_objective_request_total", Help: "Requests that were routed.",
		}, models),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "inference_objective_request_error_total", Help: "Requests that were routed and did not complete, by how they ended.",
		}, append(models, "error_code")),
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "inference_objective_running_requests", Help: "Requests of the model that are under way.",
		}, models[:1]),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "inference_objective_request_duration_seconds", Help: "Time from a request to the end of its answer.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 120, 180, 240,
				300, 360, 480, 600, 900, 1200, 1800, 2700, 3600},
		}, models),
		input: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "inference_objective_input_tokens", Help: "Prompt tokens of a request, estimated where they are not known.",
			Buckets: []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32778, 65536, 131072, 262144, 524288, 1048576},
		}, models),
	}
	of := func(name, help string, buckets ...float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, models)
	}
	c.output = of("inference_objective_output_tokens", "Tokens of an answer; answers that do not report their tokens are left out.", prometheus.ExponentialBuckets(1, 2, 14)...)
	c.cached = of("inference_objective_prompt_cached_tokens", "Prompt tokens that the engine found in its cache, of answers that tell.",
		append([]float64{1}, prometheus.ExponentialBuckets(8, 2, 18)...)...)
	c.perToken = of("inference_objective_normalized_time_per_output_token_seconds",
		"Time from a request to the end of its answer, divided by the answer's tokens; answers that do not report their tokens are left out.",
		0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
	c.sizes = of("inference_objective_request_sizes", "Size of a request's body in bytes.", prometheus.ExponentialBuckets(64, 2, 25)...)
	c.answers = of("inference_objective_response_sizes", "Size of an answer's body in bytes.",
		append([]float64{1}, prometheus.ExponentialBuckets(8, 2, 18)...)...)
	c.pick = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "inference_extension_scheduler_e2e_duration_seconds", Help: "Time from a request's body to the choice of its endpoint, without waiting for room.",
		Buckets: []float64{0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1},
	})
	c.waited = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "inference_extension_flow_control_request_queue_duration_seconds", Help: "Time that a request has waited for room in its pool.",
		Buckets: []float64{0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300},
	}, []string{"inference_pool", "outcome"})
	c.waiting = prometheus.NewDesc("inference_extension_flow_control_queue_size", "Requests that wait for room in the pool.",
		[]string{"inference_pool"}, nil)
	c.waitingBytes = prometheus.NewDesc("inference_extension_flow_control_queue_bytes", "Bytes of the bodies of requests that wait for room in the pool.", []string{"inference_pool"},
		nil)
	pool := []string{"name"}
	c.kv = prometheus.NewDesc("inference_pool_average_kv_cache_utilization",
		"Average share of KV blocks in use over the pool's endpoints, 0 to 1.", pool, nil)
	c.queue = prometheus.NewDesc("inference_pool_average_queue_size", "Average of the engines' waiting queues.", pool, nil)
	c.podQueue = prometheus.NewDesc("inference_pool_per_pod_queue_size", "The engine's waiting queue.", []string{"name", "model_server_pod"},
		nil)
	c.ready = prometheus.NewDesc("inference_pool_ready_pods", "Endpoints that take requests.", pool, nil)
	c.average = prometheus.NewDesc("inference_pool_average_running_requests", "Average of the requests in flight over the pool's endpoints.",
		pool, nil)
	return c
}

func (c *Compat) vectors() []prometheus.Collector {
	return []prometheus.Collector{c.requests, c.errors, c.running, c.duration, c.perToken, c.input, c.output, c.cached, c.sizes, c.answers,
		c.waited, c.pick}
}

// Describe is for prometheus.Collector.
func (c *Compat) Describe(out chan<- *prometheus.Desc) {
	for _, v := range c.vectors() {
		v.Describe(out)
	}
	for _, d := range []*prometheus.Desc{c.kv, c.queue, c.podQueue, c.ready, c.average, c.waiting, c.waitingBytes} {
		out <- d
	}
}

// Collect is for prometheus.Collector.
func (c *Compat) Collect(out chan<- prometheus.Metric) {
	for _, v := range c.vectors() {
		v.Collect(out)
	}
	seen := map[string]bool{}
	for _, p := range c.pools() {
		if name := p.Pool; seen[name] { // one of another namespace
			continue
		}
		seen[p.Pool] = true
		c.collectPool(&p, out)
	}
}

func (c *Compat) collectPool(p *picker.PoolStats, out chan<- prometheus.Metric) {
	var kv, waiting, inFlight, ready float64
	pods := map[string]float64{}
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		if !e.Pickable {
			continue
		}
		ready++
		kv += e.Load.KVUsage
		waiting += float64(e.Load.Waiting)
		inFlight += float64(e.Load.InFlight)
		pods[e.Pod] += float64(e.Load.Waiting)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	n := max(1, ready)
	gauge(c.kv, kv/n, p.Pool)
	gauge(c.queue, waiting/n, p.Pool)
	gauge(c.average, inFlight/n, p.Pool)
	gauge(c.ready, ready, p.Pool)
	gauge(c.waiting, float64(p.Admission.Waiting), p.Pool)
	gauge(c.waitingBytes, float64(p.Admission.WaitingBytes), p.Pool)
	for pod, v := range pods {
		gauge(c.podQueue, v, p.Pool, pod)
	}
}

// model is the label of a model: what a request without one, or one too many, is counted as, is otherModel.
func (c *Compat) model(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if name == "" || !c.models[name] && len(c.models) >= maxCompatModels {
		return otherModel
	}
	c.models[name] = true
	return name
}

// Watch passes on to next what it observes.
func (c *Compat) Watch(next request.Observer) request.Observer {
	return compatObserver{Observer: next, compat: c}
}

type compatObserver struct {
	request.Observer
	compat *Compat
}

// Picked implements request.Observer.
func (o compatObserver) Picked(d *picker.Decision) {
	o.Observer.Picked(d)
	model := o.compat.model(d.Model)
	o.compat.requests.WithLabelValues(model, model).Inc()
	o.compat.running.WithLabelValues(model).Inc()
	o.compat.input.WithLabelValues(model, model).Observe(float64(d.PromptTokens))
	o.compat.sizes.WithLabelValues(model, model).Observe(float64(d.Bytes))
	o.compat.pick.Observe((d.Duration - d.Waited).Seconds())
	o.compat.waited.WithLabelValues(d.Pool, "Dispatched").Observe(d.Waited.Seconds())
}

// Ended implements request.Observer.
func (o compatObserver) Ended(d *picker.Decision, outcome picker.Outcome, after time.Duration) {
	o.Observer.Ended(d, outcome, after)
	model := o.compat.model(d.Model)
	o.compat.running.WithLabelValues(model).Dec()
	o.compat.duration.WithLabelValues(model, model).Observe(after.Seconds())
	if outcome != picker.Unreported {
		o.compat.answers.WithLabelValues(model, model).Observe(float64(d.AnswerBytes()))
	}
	told := d.Reported()
	if told.Cached >= 0 {
		o.compat.cached.WithLabelValues(model, model).Observe(float64(told.Cached))
	}
	if told.Generated > 0 {
		o.compat.output.WithLabelValues(model, model).Observe(float64(told.Generated))
		o.compat.perToken.WithLabelValues(model, model).Observe(after.Seconds() / float64(told.Generated))
	}
	if outcome != picker.Completed && outcome != picker.Unreported {
		o.compat.errors.WithLabelValues(model, model, outcome.String()).Inc()
	}
}

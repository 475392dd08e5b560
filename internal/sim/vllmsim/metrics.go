package vllmsim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// Buckets of the engine's latency histograms, in seconds.
var (
	firstTokenBuckets = []float64{
		0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
	}
	requestBuckets = []float64{
		0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
	}
)

// metrics holds what /metrics shows. All times are the model's, so that they do not depend on the speed-up. Gauges are
// those of the last step, as in the engine.
type metrics struct {
	model  string
	rank   int
	config Config
	// transfers are the counters of the connector.
	transfers *transfers

	mu         sync.Mutex
	stats      enginemodel.Stats // guarded by mu
	firstToken histogram         // guarded by mu
	queue      histogram         // guarded by mu
	prefill    histogram         // guarded by mu
	request    histogram         // guarded by mu
	ended      map[string]uint64 // guarded by mu, by finish reason
	cached     uint64            // guarded by mu
	rejected   uint64            // guarded by mu, requests refused by the bound of the queue
	sleepLevel int               // guarded by mu, 0 while awake
	lateness   time.Duration     // guarded by mu, sum over timed steps
	timed      uint64            // guarded by mu, steps
}

func newMetrics(c Config) *metrics {
	return &metrics{
		model: c.ServedModelNames[0], rank: c.DataParallelRank, config: c,
		firstToken: newHistogram(firstTokenBuckets), queue: newHistogram(requestBuckets),
		prefill: newHistogram(requestBuckets), request: newHistogram(requestBuckets),
		ended: map[string]uint64{finishStop: 0, finishLength: 0, finishAbort: 0},
	}
}

func (m *metrics) step(s enginemodel.Stats) {
	m.mu.Lock()
	m.stats = s
	m.mu.Unlock()
}

// late counts how much later than in the model a step ended, in wall time: the machine's share in latencies.
func (m *metrics) late(d time.Duration) {
	m.mu.Lock()
	m.lateness += d
	m.timed++
	m.mu.Unlock()
}

// reject counts a request that was refused by the bound of the queue.
func (m *metrics) reject() {
	m.mu.Lock()
	m.rejected++
	m.mu.Unlock()
}

// sleep notes the level of sleep; -1 is a sleep of level 0, in which no state holds.
func (m *metrics) sleep(level int) {
	m.mu.Lock()
	m.sleepLevel = level
	m.mu.Unlock()
}

func (m *metrics) last() enginemodel.Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}

func (m *metrics) first(r *enginemodel.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.firstToken.observe((r.FirstToken - r.Arrived).Seconds())
	m.queue.observe((r.Started - r.Arrived).Seconds())
	m.prefill.observe((r.FirstToken - r.Started).Seconds())
	m.cached += uint64(r.CachedTokens)
}

func (m *metrics) finished(r *enginemodel.Request, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended[reason]++
	m.request.observe((r.Finished - r.Arrived).Seconds())
}

// histogram counts observations per bucket, not cumulated.
type histogram struct {
	bounds []float64
	counts []uint64 // one more than bounds
	sum    float64
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *histogram) observe(v float64) {
	i := 0
	for i < len(h.bounds) && v > h.bounds[i] {
		i++
	}
	h.counts[i]++
	h.sum += v
}

// text is the exposition in Prometheus' text format.
func (m *metrics) text() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := &metricsText{labels: []string{fmt.Sprintf(`engine="%d"`, m.rank), "model_name=" + labelValue(m.model)}}
	s, release := &m.stats, m.config.Release
	w.gauge("vllm:num_requests_running", "Requests in execution batches.", float64(s.Running))
	w.gauge("vllm:num_requests_waiting", "Requests waiting to be processed.", float64(s.Waiting))
	if release.minor(20) {
		w.family("vllm:num_requests_waiting_by_reason", "gauge", "Requests waiting, by what they wait for.")
		w.sample("vllm:num_requests_waiting_by_reason", `reason="capacity"`, float64(s.Waiting))
		w.sample("vllm:num_requests_waiting_by_reason", `reason="deferred"`, 0)
	}
	if release >= sinceSleepState {
		w.family("vllm:engine_sleep_state", "gauge", "State of sleep; 1 is the one that holds.")
		for i, state := range []string{"awake", "weights_offloaded", "discard_all"} {
			w.sample("vllm:engine_sleep_state", `sleep_state="`+state+`"`, float64(one(i == m.sleepLevel)))
		}
	}
	usageName := "vllm:kv_cache_usage_perc"
	if release < sinceKVUsage {
		usageName = "vllm:gpu_cache_usage_perc"
	}
	w.gauge(usageName, "Share of KV cache blocks in use, 1 is all.", m.usage())
	cache := "vllm:"
	if release < sinceKVUsage {
		cache = "vllm:gpu_"
	}
	w.counter(cache+"prefix_cache_queries", "Tokens looked up in the prefix cache.", s.PrefixQueries)
	w.counter(cache+"prefix_cache_hits", "Tokens found in the prefix cache.", s.PrefixHits)
	w.counter("vllm:num_preemptions", "Preemptions.", s.Preemptions)
	w.counter("vllm:prompt_tokens", "Prompt tokens processed.", s.PromptTokens)
	if release.minor(17) {
		w.counter("vllm:prompt_tokens_cached", "Prompt tokens taken from the cache.", m.cached)
		w.family("vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens, by where their KV came from.")
		w.sample("vllm:prompt_tokens_by_source_total", `source="local_compute"`, float64(s.PromptTokens-min(m.cached, s.PromptTokens)))
		w.sample("vllm:prompt_tokens_by_source_total", `source="local_cache_hit"`, float64(m.cached))
		w.sample("vllm:prompt_tokens_by_source_total", `source="external_kv_transfer"`, 0)
	}
	w.counter("vllm:generation_tokens", "Tokens generated.", s.GenerationTokens)
	w.family("vllm:request_success_total", "counter", "Requests by reason of their end.")
	for _, reason := range release.finishReasons() {
		w.sample("vllm:request_success_total", `finished_reason="`+reason+`"`, float64(m.ended[reason]))
	}
	m.rejections(w)
	w.histogram("vllm:time_to_first_token_seconds", "Time to the first token.", &m.firstToken)
	w.histogram("vllm:e2e_request_latency_seconds", "Time to the end of requests.", &m.request)
	w.histogram("vllm:request_queue_time_seconds", "Time in the waiting queue.", &m.queue)
	w.histogram("vllm:request_prefill_time_seconds", "Time from the first schedule to the first token.", &m.prefill)
	w.counter("vllmsim:steps", "Steps that were timed.", m.timed)
	w.family("vllmsim:step_lateness_seconds_total", "counter", "Wall time that steps ended after their schedule, summed.")
	w.sample("vllmsim:step_lateness_seconds_total", "", m.lateness.Seconds())
	m.transfers.write(w)
	m.cacheConfig(w)
	return w.b.String()
}

// load is the value of the header endpoint-load-metrics.
func (m *metrics) load() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return "TEXT named_metrics.num_requests_waiting=" + number64(float64(m.stats.Waiting)) +
		", named_metrics.kv_cache_usage_perc=" + number64(m.usage())
}

// usage is the share of blocks in use; m.mu is held.
func (m *metrics) usage() float64 {
	if m.stats.NumBlocks == 0 {
		return 0
	}
	return float64(m.stats.UsedBlocks) / float64(m.stats.NumBlocks)
}

// rejections counts what the bounds of the queue have refused, in releases that have them. The engine counts that in
// front of its ranks: the family has no engine label.
func (m *metrics) rejections(w *metricsText) {
	if m.config.Release < sinceRejections {
		return
	}
	labels := w.labels
	w.labels = []string{"model_name=" + labelValue(m.model)}
	w.family("vllm:admission_rejections_total", "counter", "Requests refused by the bounds of the queue.")
	w.sample("vllm:admission_rejections_total", `reason="max_num_queued_reqs"`, float64(m.rejected))
	w.sample("vllm:admission_rejections_total", `reason="max_num_queued_tokens"`, 0)
	w.labels = labels
}

func (m *metrics) cacheConfig(w *metricsText) {
	w.family("vllm:cache_config_info", "gauge", "Configuration of the KV cache.")
	size := ""
	if m.config.Release >= sinceCacheSize {
		size = fmt.Sprintf(`kv_cache_size_tokens="%d",`, m.config.NumBlocks*m.config.BlockSize)
	}
	w.labels = nil // this family has no model_name
	w.sample("vllm:cache_config_info", fmt.Sprintf(
		`block_size="%d",cache_dtype="auto",enable_prefix_caching="%s",engine="%d",gpu_memory_utilization="0.9",%snum_gpu_blocks="%d",prefix_caching_hash_algo="sha256"`,
		m.config.BlockSize, pythonBool(!m.config.NoPrefixCaching), m.rank, size, m.config.NumBlocks), 1)
}

func pythonBool(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

// metricsText collects families.
type metricsText struct {
	b      strings.Builder
	labels []string
}

func (w *metricsText) family(name, kind, help string) {
	fmt.Fprintf(&w.b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// sample writes a sample whose labels are in order of their names, as the engine's are; extra is one label or none.
func (w *metricsText) sample(name, extra string, v float64) {
	labels := w.labels
	if extra != "" {
		labels = append(slices.Clone(labels), extra)
		slices.Sort(labels)
	}
	w.b.WriteString(name + "{" + strings.Join(labels, ",") + "} " + number64(v) + "\n")
}

func (w *metricsText) gauge(name, help string, v float64) {
	w.family(name, "gauge", help)
	w.sample(name, "", v)
}

func (w *metricsText) counter(name, help string, v uint64) {
	w.family(name+"_total", "counter", help)
	w.sample(name+"_total", "", float64(v))
}

func (w *metricsText) histogram(name, help string, h *histogram) {
	w.family(name, "histogram", help)
	var n uint64
	for i, c := range h.counts {
		n += c
		bound := "+Inf"
		if i < len(h.bounds) {
			bound = number64(h.bounds[i])
		}
		w.sample(name+"_bucket", `le="`+bound+`"`, float64(n))
	}
	w.sample(name+"_count", "", float64(n))
	w.sample(name+"_sum", "", h.sum)
}

// number64 is written as Python does: with a fraction or an exponent.
func number64(v float64) string {
	s := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

func labelValue(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

package metrics

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/scrape"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/overload"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokencheck"
)

// Sources are where the Collector reads. Any can be nil.
type Sources struct {
	// Pools is (*picker.Picker).Stats.
	Pools func() []picker.PoolStats
	// Routes is (*picker.Picker).Routes.
	Routes func() []picker.RouteStats
	// Hooks is (*picker.Picker).HookStats.
	Hooks func() []picker.HookStats
	// Responses is (*picker.Picker).ResponseStats.
	Responses func() []picker.ResponseStats
	// Events are the event streams of all pools.
	Events func() []Stream
	// Reports returns what reporters report about the endpoints of all pools.
	Reports func() []Report
	// RefusedReports is (*rpc.Server).Refused.
	RefusedReports func() rpc.Refused
	// Strangers is (*events.Reception).Strangers.
	Strangers func() [events.NumStrangers]uint64
	// Tokens is (*tokencheck.Manager).All.
	Tokens func() []tokencheck.Status
	// Scrapes is (*scrape.Scraper).Stats.
	Scrapes func() []scrape.Stats
	// Peers is what is exchanged with other pickers; nil where nothing is.
	Peers func() *Peers
	// Usage are the records of use, and Decisions those of the decision log; nil where there is none.
	Usage, Decisions func() *Records
	// UsageExports are the records of use for a collector; nil where there is none.
	UsageExports func() *Exports
	// EventRoom is what all event streams together draw on.
	EventRoom *budget.Room
	// Memory is (*budget.Budget).Stats.
	Memory func() budget.Stats
	// Overload is (*overload.Manager).State.
	Overload func() overload.State
	// TLS is that of the proxy's clients; nil without.
	TLS func() TLS
}

// Collector emits what the sources report at the moment of a scrape.
type Collector struct{ sources Sources }

// NewCollector makes a collector of sources.
func NewCollector(sources Sources) *Collector { return &Collector{sources: sources} }

// series is a metric that is read from an S.
type series[S any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*S) float64
}

func counter[S any](name, help string, labels []string, value func(*S) float64) series[S] {
	return series[S]{prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue, value}
}

func gauge[S any](name, help string, labels []string, value func(*S) float64) series[S] {
	return series[S]{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue, value}
}

var (
	ofPool     = []string{"namespace", "pool"}
	ofEndpoint = []string{"namespace", "pool", "endpoint"}
	ofAddress  = []string{"address"}
	ofTenant   = []string{"namespace", "pool", "tenant"}
	ofGateway  = []string{"namespace", "pool", "gateway"}
	ofShadow   = []string{"namespace", "pool", "shadow"}
)

var (
	requests = prometheus.NewDesc("kvasir_requests_total",
		"Requests for which an endpoint was picked and that have ended, by outcome.", []string{"namespace", "pool", "outcome"}, nil)
	tokenized = prometheus.NewDesc("kvasir_tokenized_requests_total",
		"Requests for which an endpoint was picked, by where their block keys came from: token ids in the request, ids computed in the picker, an engine, chunks of text; a request with none was routed by load.",
		[]string{"namespace", "pool", "source"}, nil)
	handoffs = prometheus.NewDesc("kvasir_handoffs_total",
		"Hand-offs of requests from an endpoint that prefills to one that decodes, by outcome.", []string{"namespace", "pool", "outcome"}, nil)
	plans = prometheus.NewDesc("kvasir_plans_total",
		"Requests in pools with roles, by the plan: handoff, or the reason why one endpoint serves the request.", []string{"namespace", "pool", "plan"}, nil)
	transferBase = prometheus.NewDesc("kvasir_transfer_base_seconds",
		"Learned time of a hand-off beside the prefill and the transfer of tokens, in pools with roles.", []string{"namespace", "pool"}, nil)
	transferToken = prometheus.NewDesc("kvasir_transfer_token_seconds",
		"Learned time of a hand-off for each token that the endpoint which decodes lacks, in pools with roles.", []string{"namespace", "pool"}, nil)
	inexact = prometheus.NewDesc("kvasir_inexact_requests_total",
		"Requests for which an endpoint was picked without exact tokens, by reason.", []string{"namespace", "pool", "reason"}, nil)
	poolInfo = prometheus.NewDesc("kvasir_pool_info", "1; the labels are the name of the pool's model and the strategy in force.",
		[]string{"namespace", "pool", "model", "strategy"}, nil)
)

var poolSeries = []series[picker.PoolStats]{
	counter("kvasir_refused_total", "Requests refused because the pool had no endpoint for the request.", ofPool,
		func(s *picker.PoolStats) float64 { return float64(s.Refused) }),
	counter("kvasir_retries_total", "Attempts at a further endpoint after an endpoint had failed a request.", ofPool,
		func(s *picker.PoolStats) float64 { return float64(s.Retries) }),
	counter("kvasir_retries_over_budget_total", "Requests that were not sent to a further endpoint because the retry budget was used up: retries are at most a fifth of the requests.", ofPool,
		func(s *picker.PoolStats) float64 { return float64(s.Unretried) }),
	gauge("kvasir_predictions_trusted", "0 while the matches of some endpoint and kind of request are ignored, because the engine does not find what it announced and did not remove.",
		ofPool, func(s *picker.PoolStats) float64 { return truth(!s.Trust.Lost) }),
	counter("kvasir_predictions_distrusted_total", "Times that the matches of an endpoint and kind of request began to be ignored.", ofPool,
		func(s *picker.PoolStats) float64 { return float64(s.Trust.Losses) }),
	counter("kvasir_distrusted_picks_total", "Picks that ignored matches of some endpoint, because it did not find what it had announced for such requests.", ofPool,
		func(s *picker.PoolStats) float64 { return float64(s.Trust.Ignored) }),
	gauge("kvasir_judged_announced_tokens", "Prompt tokens that endpoints had announced and not removed, over the last answers (at most 64 for each endpoint and kind of request) by which predictions are judged.", ofPool,
		func(s *picker.PoolStats) float64 { return float64(s.Trust.Announced) }),
	gauge("kvasir_judged_found_tokens", "Prompt tokens found by engines in their caches, of the announced tokens by which predictions are judged (kvasir_judged_announced_tokens).", ofPool,
		func(s *picker.PoolStats) float64 { return float64(s.Trust.Found) }),
	gauge("kvasir_index_blocks", "Distinct KV blocks that the picker's index has of the pool's endpoints.", ofPool,
		func(s *picker.PoolStats) float64 { return float64(s.Blocks) }),
	gauge("kvasir_index_speculative_blocks", "KV blocks that an endpoint is assumed to hold because a request with that prefix was just sent to the endpoint.",
		ofPool, func(s *picker.PoolStats) float64 { return float64(s.Speculative) }),
	gauge("kvasir_index_speculative_bytes", "Approximate memory in the index of KV blocks that endpoints are assumed to hold because a request was just sent there.",
		ofPool, func(s *picker.PoolStats) float64 { return float64(s.Speculation.Bytes) }),
	counter("kvasir_speculation_over_budget_total", "Prompts whose blocks were not assumed to be held after the pick, because speculative blocks had used up their part of the index's memory.",
		ofPool, func(s *picker.PoolStats) float64 { return float64(s.Speculation.Refused) }),
	gauge("kvasir_speculating_requests", "Requests under way whose KV blocks the chosen endpoint is assumed to hold.", ofPool,
		func(s *picker.PoolStats) float64 { return float64(s.Speculating) }),
	counter("kvasir_tokens_reused_total", "Prompts whose token ids an engine had made a few minutes before, so that no engine was asked.", ofPool,
		func(s *picker.PoolStats) float64 { return float64(s.TokensReused) }),
	counter("kvasir_tokens_checked_answers_total", "Answers and event streams that were compared with the tokens that the picker had made or asked for, and agreed.", ofPool,
		func(s *picker.PoolStats) float64 { return float64(s.Checks.Fit) }),
	counter("kvasir_tokens_misfitting_answers_total", "Answers and event streams that were compared with the tokens that the picker had made or asked for, and did not agree.", ofPool,
		func(s *picker.PoolStats) float64 { return float64(s.Checks.Misfit) }),
}

var endpointSeries = []series[picker.EndpointStats]{
	counter("kvasir_picks_total", "Requests for which the picker's first choice was the endpoint.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return float64(s.Picks) }),
	counter("kvasir_endpoint_failures_total", "Attempts at the endpoint that failed: not reached, too late, server error, aborted.",
		ofEndpoint, func(s *picker.EndpointStats) float64 { return float64(s.Failures) }),
	counter("kvasir_endpoint_refusals_total", "Attempts that the endpoint refused because a limit of its engine's queue was reached.",
		ofEndpoint, func(s *picker.EndpointStats) float64 { return float64(s.Full) }),
	counter("kvasir_engine_admission_rejections_total", "Requests that the endpoint's engine has refused by a limit of its queue, as it reports, other clients' included.",
		ofEndpoint, func(s *picker.EndpointStats) float64 { return s.Load.Rejections }),
	counter("kvasir_compared_answers_total", "Answers that report how much of the prompt the engine had cached; the counters of prompt and hit tokens are over such answers.",
		ofEndpoint, func(s *picker.EndpointStats) float64 { return float64(s.Hits.Answers) }),
	counter("kvasir_prompt_tokens_total", "Prompt tokens of the answers that report how much of the prompt was cached.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return float64(s.Hits.PromptTokens) }),
	counter("kvasir_predicted_hit_tokens_total", "Prompt tokens predicted at the pick to be in the endpoint's cache, of answers that report how much of the prompt was cached.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return float64(s.Hits.Predicted) }),
	counter("kvasir_confirmed_hit_tokens_total", "Prompt tokens predicted to be cached, in blocks that the endpoint itself had announced, of answers that report how much of the prompt was cached.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return float64(s.Hits.Confirmed) }),
	counter("kvasir_delivered_hit_tokens_total", "Prompt tokens that the engine took from its cache, of answers that report it.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return float64(s.Hits.Delivered) }),
	counter("kvasir_hit_deviation_tokens_total", "Sum of the differences, either way, between predicted and delivered cached prompt tokens of each answer that reports how much of the prompt was cached.",
		ofEndpoint, func(s *picker.EndpointStats) float64 { return float64(s.Hits.Deviation) }),
	gauge("kvasir_index_held_blocks", "KV blocks that the endpoint holds, as it has announced.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return float64(s.Held) }),
	gauge("kvasir_endpoint_pickable", "1 if the endpoint is ready and not draining.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return truth(s.Pickable) }),
	gauge("kvasir_endpoint_asleep", "1 while the engine says that it sleeps or is paused: no requests are sent there.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return truth(s.Asleep) }),
	gauge("kvasir_endpoint_doubted", "1 while what the index has of the endpoint may not be what it holds: its confirmed blocks count half.",
		ofEndpoint, func(s *picker.EndpointStats) float64 { return truth(s.Doubted) }),
	gauge("kvasir_endpoint_circuit_closed", "0 while the endpoint is kept out for its failures.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return truth(s.CircuitClosed) }),
	gauge("kvasir_endpoint_stalled", "1 while the endpoint has accepted requests and shows no progress: no requests are sent there.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return truth(s.Stalled) }),
	gauge("kvasir_endpoint_inflight_requests", "Requests sent to the endpoint whose answers have not ended.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return float64(s.Load.InFlight - s.Load.Peers.InFlight) }),
	gauge("kvasir_endpoint_decoding_requests", "Requests of this picker at the endpoint whose prefill has ended.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return float64(s.Load.Decoding - s.Load.Peers.Decoding) }),
	gauge("kvasir_endpoint_pending_tokens", "Uncached prompt tokens that the endpoint has still to prefill.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return s.Load.PendingTokens - s.Load.Peers.PendingTokens }),
	gauge("kvasir_endpoint_peer_inflight_requests", "Requests that other pickers have sent to the endpoint and whose answers have not ended, as the other pickers report.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return float64(s.Load.Peers.InFlight) }),
	gauge("kvasir_endpoint_peer_decoding_requests", "Requests of other pickers at the endpoint whose prefill has ended.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return float64(s.Load.Peers.Decoding) }),
	gauge("kvasir_endpoint_peer_pending_tokens", "Uncached prompt tokens of other pickers' requests that the endpoint has still to prefill.",
		ofEndpoint,
		func(s *picker.EndpointStats) float64 { return s.Load.Peers.PendingTokens }),
	gauge("kvasir_endpoint_prefill_rate", "Prefill rate of the endpoint in tokens per second, learned from answers; 0 until one is learned.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return s.Load.Rate }),
	gauge("kvasir_endpoint_prefill_overhead_seconds", "Fixed part of the time to a first token at the endpoint, learned from answers.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return s.Load.Overhead }),
	gauge("kvasir_endpoint_kv_usage_ratio", "Share of the engine's KV blocks in use by requests, as it reports; 0 without a fresh report.",
		ofEndpoint, func(s *picker.EndpointStats) float64 { return s.Load.KVUsage }),
	gauge("kvasir_endpoint_kv_capacity_tokens", "The engine's KV cache in tokens, as it reports; 0 when it is not known.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return float64(s.Load.KVTokens) }),
	gauge("kvasir_endpoint_waiting_requests", "Requests in the engine's own waiting queue, as it reports; 0 without a fresh report.", ofEndpoint,
		func(s *picker.EndpointStats) float64 { return float64(s.Load.Waiting) }),
}

var scrapeSeries = []series[scrape.Stats]{
	counter("kvasir_scrapes_total", "Questions to an engine for its metrics.", ofAddress,
		func(s *scrape.Stats) float64 { return float64(s.Scrapes) }),
	counter("kvasir_scrape_failures_total", "Questions to an engine for its metrics without a usable answer.", ofAddress,
		func(s *scrape.Stats) float64 { return float64(s.Failures) }),
	counter("kvasir_scrape_model_failures_total", "Questions to an engine for its list of models without a usable answer.", ofAddress,
		func(s *scrape.Stats) float64 { return float64(s.ModelFailures) }),
	counter("kvasir_scrape_panics_total", "Panics of the picker while it read an engine's answer to a question for metrics or models.", ofAddress,
		func(s *scrape.Stats) float64 { return float64(s.Panics) }),
	gauge("kvasir_scrape_last_success_timestamp_seconds", "Time of the engine's last usable answer to a question for metrics; 0 when none came.",
		ofAddress,
		func(s *scrape.Stats) float64 { return timestamp(s.LastSuccess) }),
	gauge("kvasir_scrape_interval_seconds", "Present wait between two questions to the engine for its metrics.", ofAddress,
		func(s *scrape.Stats) float64 { return s.Interval.Seconds() }),
}

// Describe is for prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		requests, tokenized, handoffs, plans, transferBase, transferToken, inexact, tokensState, tokensUnproven, poolInfo, state, resyncs,
		unindexed, strangers, eventsHeld, eventsLimit, divergent, reportState, indexResyncs, refusedReports, unadmitted, tenantRefused,
		assumptions, decisionRecords, usageRecords, usageExports, routeRequests, routeFallbacks, hookSteps,
		routeRefused, mirrorsSent, mirrorsDropped, mirrorsEnded,
		cacheRequests, cacheAnswers, cacheRemoved, cacheBytes, cacheLimit, cacheEntries,
		cacheVectors, cacheEmbeddings, cacheModels, cacheSimilarity, cacheStore,
	} {
		out <- d
	}
	for _, d := range slices.Concat(memoryDescs, overloadDescs) {
		out <- d
	}
	describe(out, poolSeries)
	describe(out, endpointSeries)
	describe(out, eventSeries)
	describe(out, scrapeSeries)
	describe(out, tokensSeries)
	describe(out, reportSeries)
	describe(out, admissionSeries)
	describe(out, tenantSeries)
	describe(out, gatewaySeries)
	describe(out, shadowSeries)
	describe(out, peerSeries)
	describe(out, tlsSeries)
}

func describe[S any](out chan<- *prometheus.Desc, all []series[S]) {
	for i := range all {
		out <- all[i].desc
	}
}

// Collect is for prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	if c.sources.Pools != nil {
		collectPools(out, c.sources.Pools())
	}
	if c.sources.Routes != nil {
		collectRoutes(out, c.sources.Routes())
	}
	if c.sources.Hooks != nil {
		collectHooks(out, c.sources.Hooks())
	}
	if c.sources.Responses != nil {
		collectResponses(out, c.sources.Responses())
	}
	if c.sources.Events != nil {
		collectEvents(out, c.sources.Events())
	}
	if c.sources.Reports != nil {
		collectReports(out, c.sources.Reports())
	}
	if c.sources.RefusedReports != nil {
		collectRefused(out, c.sources.RefusedReports())
	}
	if c.sources.Strangers != nil {
		for why, n := range c.sources.Strangers() {
			out <- prometheus.MustNewConstMetric(strangers, prometheus.CounterValue, float64(n), events.Stranger(why).String())
		}
	}
	if r := c.sources.EventRoom; r != nil {
		out <- prometheus.MustNewConstMetric(eventsHeld, prometheus.GaugeValue, float64(r.Held()))
		out <- prometheus.MustNewConstMetric(eventsLimit, prometheus.GaugeValue, float64(r.Limit()))
	}
	if c.sources.Tokens != nil {
		collectTokens(out, c.sources.Tokens())
	}
	if c.sources.Scrapes != nil {
		names := labels{}
		for _, s := range c.sources.Scrapes() {
			collect(out, scrapeSeries, &s, names.unique(s.Address, ""))
		}
	}
	if c.sources.Peers != nil {
		if p := c.sources.Peers(); p != nil {
			collectPeers(out, p)
		}
	}
	if c.sources.Memory != nil {
		s := c.sources.Memory()
		collectMemory(out, &s)
	}
	if c.sources.Overload != nil {
		s := c.sources.Overload()
		collectOverload(out, &s)
	}
	if c.sources.TLS != nil {
		s := c.sources.TLS()
		collect(out, tlsSeries, &s)
	}
	collectRecords(out, usageRecords, c.sources.Usage)
	collectExports(out, c.sources.UsageExports)
	collectRecords(out, decisionRecords, c.sources.Decisions)
}

func collect[S any](out chan<- prometheus.Metric, all []series[S], s *S, labels ...string) {
	for i := range all {
		out <- prometheus.MustNewConstMetric(all[i].desc, all[i].kind, all[i].value(s), labels...)
	}
}

func collectPools(out chan<- prometheus.Metric, all []picker.PoolStats) {
	for i := range all {
		s := &all[i]
		namespace, pool := valid(s.Namespace), valid(s.Pool)
		for outcome, n := range s.Outcomes {
			out <- prometheus.MustNewConstMetric(requests, prometheus.CounterValue, float64(n), namespace, pool, outcome.String())
		}
		for source, n := range s.Tokens {
			out <- prometheus.MustNewConstMetric(tokenized, prometheus.CounterValue, float64(n), namespace, pool, source.String())
		}
		for outcome, n := range s.Handoffs {
			out <- prometheus.MustNewConstMetric(handoffs, prometheus.CounterValue, float64(n), namespace, pool, outcome.String())
		}
		for plan, n := range s.Plans {
			out <- prometheus.MustNewConstMetric(plans, prometheus.CounterValue, float64(n), namespace, pool, plan.String())
		}
		if s.Plans != nil {
			out <- prometheus.MustNewConstMetric(transferBase, prometheus.GaugeValue, s.TransferSeconds, namespace, pool)
			out <- prometheus.MustNewConstMetric(transferToken, prometheus.GaugeValue, s.TransferTokenSeconds, namespace, pool)
		}
		for reason, n := range s.Inexact {
			out <- prometheus.MustNewConstMetric(inexact, prometheus.CounterValue, float64(n), namespace, pool, reason)
		}
		out <- prometheus.MustNewConstMetric(poolInfo, prometheus.GaugeValue, 1, namespace, pool, valid(s.Model), s.Strategy)
		collect(out, poolSeries, s, namespace, pool)
		collectAdmission(out, s, namespace, pool)
		endpoints := labels{}
		for j := range s.Endpoints {
			ep := &s.Endpoints[j]
			collect(out, endpointSeries, ep, namespace, pool, endpoints.unique(endpointLabel(ep.Pod, ep.ID.Rank), ep.ID.String()))
		}
	}
}

func endpointLabel(pod string, rank int) string { return pod + "/" + strconv.Itoa(rank) }

// labels are the values used so far, to distinguish equal names: a pod that replaces another while that one still drains,
// engines that are asked with different keys. A duplicate series would fail the entire scrape.
type labels map[string]int

// unique gives name, or otherwise when that is taken, or name with a number when both are.
func (l labels) unique(name, otherwise string) string {
	name, otherwise = valid(name), valid(otherwise)
	for _, candidate := range []string{name, otherwise} {
		if candidate != "" && l[candidate] == 0 {
			l[candidate]++
			return candidate
		}
	}
	for n := 2; ; n++ {
		if candidate := name + "#" + strconv.Itoa(n); l[candidate] == 0 {
			l[candidate]++
			return candidate
		}
	}
}

// valid makes a label value of a name: Prometheus takes UTF-8 only.
func valid(name string) string { return strings.ToValidUTF8(name, "?") }

// endpointLabels are the labels given so far to the endpoints of each pool, by its namespace and name.
type endpointLabels map[[2]string]labels

// of gives the labels of an endpoint: namespace, pool and endpoint.
func (l endpointLabels) of(namespace, pool string, ep *endpoint.Endpoint) (string, string, string) {
	key := [2]string{valid(namespace), valid(pool)}
	if l[key] == nil {
		l[key] = labels{}
	}
	return key[0], key[1], l[key].unique(endpointLabel(ep.Pod, ep.ID.Rank), ep.ID.String())
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func timestamp(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}

package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/rpc"
)

// Report is the state of an endpoint as its reporter sends it.
type Report struct {
	// Namespace and Pool name the pool.
	Namespace, Pool string
	Endpoint        endpoint.Endpoint
	cachesync.Status
}

const divergentHelp = "Lower bound of the blocks that differ between the index and the endpoint's reporter. Absent while equality cannot be shown."

var (
	divergent   = prometheus.NewDesc("kvasir_index_divergent_blocks", divergentHelp, ofEndpoint, nil)
	reportState = prometheus.NewDesc("kvasir_report_state",
		"1 for what the endpoint's reporter says of its own knowledge of the engine; unconnected without a reporter.",
		[]string{"namespace", "pool", "endpoint", "state"}, nil)
	refusedReports = prometheus.NewDesc("kvasir_report_refused_streams_total",
		"Streams of reporters that were not taken, by reason.", []string{"reason"}, nil)
	indexResyncs = prometheus.NewDesc("kvasir_index_resyncs_total",
		"Times that a reporter sent all blocks of an endpoint, or differences found by a comparison, beside its changes, by reason.", []string{"namespace", "pool", "endpoint", "reason"}, nil)
)

var reportSeries = []series[cachesync.Status]{
	gauge("kvasir_report_told_blocks", "KV blocks of the endpoint, as its reporter says.", ofEndpoint,
		func(s *cachesync.Status) float64 { return float64(s.Reported) }),
	gauge("kvasir_report_borrowed", "1 while the endpoint's blocks in the index were copied from another picker, and the endpoint's reporter has not continued from there.", ofEndpoint,
		func(s *cachesync.Status) float64 { return truth(s.Borrowed) }),
	gauge("kvasir_report_unheld_blocks", "KV blocks that the endpoint's reporter has announced and that the index has no room for.", ofEndpoint,
		func(s *cachesync.Status) float64 { return float64(s.Reported - min(s.Held, s.Reported)) }),
	gauge("kvasir_report_orphan_blocks", "Blocks that the engine holds and whose chain the reporter does not know from its beginning.",
		ofEndpoint,
		func(s *cachesync.Status) float64 { return float64(s.Orphans) }),
	gauge("kvasir_report_unindexable_blocks", "Blocks announced since the engine started that have no key.", ofEndpoint,
		func(s *cachesync.Status) float64 { return float64(s.Unindexable) }),
	gauge("kvasir_report_refused_blocks", "Blocks announced since the engine started that the reporter had no room for.", ofEndpoint,
		func(s *cachesync.Status) float64 { return float64(s.Refused) }),
	gauge("kvasir_report_last_message_timestamp_seconds", "When the endpoint's reporter said something last; 0 if it never did.", ofEndpoint,
		func(s *cachesync.Status) float64 { return timestamp(s.LastMessage) }),
	gauge("kvasir_report_last_proof_timestamp_seconds", "When index and reporter were shown to be equal last; 0 if they never were.",
		ofEndpoint,
		func(s *cachesync.Status) float64 { return timestamp(s.LastProof) }),
	counter("kvasir_report_messages_total", "Messages received from the endpoint's reporter.", ofEndpoint,
		func(s *cachesync.Status) float64 { return float64(s.Messages) }),
	counter("kvasir_report_stored_blocks_total", "KV blocks that entered a tier of the endpoint's cache, as its reporter says.", ofEndpoint,
		func(s *cachesync.Status) float64 { return float64(s.Stored) }),
	counter("kvasir_report_removed_blocks_total", "KV blocks that left a tier of the endpoint's cache, as its reporter says.", ofEndpoint,
		func(s *cachesync.Status) float64 { return float64(s.Removed) }),
	counter("kvasir_report_cleared_total", "Times that an endpoint dropped all blocks, as its reporter says.", ofEndpoint,
		func(s *cachesync.Status) float64 { return float64(s.Cleared) }),
	counter("kvasir_report_duplicates_total", "Messages of a reporter that came again and were passed over.", ofEndpoint,
		func(s *cachesync.Status) float64 { return float64(s.Duplicates) }),
	counter("kvasir_report_digests_total", "Digests of a reporter that were compared with the index.", ofEndpoint,
		func(s *cachesync.Status) float64 { return float64(s.Digests) }),
	counter("kvasir_report_repaired_blocks_total", "Blocks that differed in the index and were repaired.", ofEndpoint,
		func(s *cachesync.Status) float64 { return float64(s.RepairedBlocks) }),
}

func collectReports(out chan<- prometheus.Metric, all []Report) {
	endpoints := endpointLabels{}
	for i := range all {
		r := &all[i]
		namespace, pool, ep := endpoints.of(r.Namespace, r.Pool, &r.Endpoint)
		if r.Proven || r.Divergent > 0 {
			out <- prometheus.MustNewConstMetric(divergent, prometheus.GaugeValue, float64(r.Divergent), namespace, pool, ep)
		}
		out <- prometheus.MustNewConstMetric(reportState, prometheus.GaugeValue, 1, namespace, pool, ep, reportStateName(&r.Status))
		for reason := range cachesync.Reason(cachesync.NumReasons) {
			n := float64(r.Resyncs[reason])
			out <- prometheus.MustNewConstMetric(indexResyncs, prometheus.CounterValue, n, namespace, pool, ep, reason.String())
		}
		collect(out, reportSeries, &r.Status, namespace, pool, ep)
	}
}

func collectRefused(out chan<- prometheus.Metric, r rpc.Refused) {
	for reason, n := range map[string]uint64{
		"unauthenticated": r.Unauthenticated, "not_their_own": r.NotTheirOwn, "unknown_pod": r.UnknownPod, "malformed": r.Malformed,
		"panic": r.Panicked,
	} {
		out <- prometheus.MustNewConstMetric(refusedReports, prometheus.CounterValue, float64(n), reason)
	}
}

func reportStateName(s *cachesync.Status) string {
	if !s.Connected {
		return "Unconnected"
	}
	name := strings.ToLower(strings.TrimPrefix(s.State.String(), "STATE_"))
	return strings.ToUpper(name[:1]) + name[1:]
}

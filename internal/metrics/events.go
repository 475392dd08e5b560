package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvasir-dev/kvasir/internal/events"
)

// Stream is an endpoint's event stream.
type Stream struct {
	// Namespace and Pool name the pool.
	Namespace, Pool string
	events.Status
}

var (
	state = prometheus.NewDesc("kvasir_events_state", "1 for the state that the endpoint's event stream is in.",
		[]string{"namespace", "pool", "endpoint", "state"}, nil)
	resyncs = prometheus.NewDesc("kvasir_events_resyncs_total", "Replays of everything that an endpoint has to tell, by reason.",
		[]string{"namespace", "pool", "endpoint", "reason"}, nil)
	unindexed = prometheus.NewDesc("kvasir_events_unindexed_blocks_total", "Blocks announced that cannot be indexed, by reason.",
		[]string{"namespace", "pool", "endpoint", "reason"}, nil)
	strangers = prometheus.NewDesc("kvasir_events_strangers_total",
		"Event publishers that have connected to the picker and were turned away, by reason.", []string{"reason"}, nil)
	eventsHeld = prometheus.NewDesc("kvasir_events_memory_bytes",
		"Bytes that the picker holds of what engines have sent: on event streams, questions for tokens and the answers, "+
			"metrics and lists of models. Not counted are the index, the first 256 KiB of each stream and of the answers of each engine, "+
			"and the first MiB of the metrics of each engine.", nil, nil)
	eventsLimit = prometheus.NewDesc("kvasir_events_memory_limit_bytes",
		"Limit on the bytes of kvasir_events_memory_bytes. One stream, or the answers of one engine, can hold half of it.", nil, nil)
)

// total counts what a field of events.Stats counts.
func total(name, help string, field func(*events.Stats) *atomic.Uint64) series[events.Stats] {
	return counter(name, help, ofEndpoint, func(s *events.Stats) float64 { return float64(field(s).Load()) })
}

// level shows what a field of events.Stats says now.
func level(name, help string, field func(*events.Stats) *atomic.Int64) series[events.Stats] {
	return gauge(name, help, ofEndpoint, func(s *events.Stats) float64 { return float64(field(s).Load()) })
}

var eventSeries = []series[events.Stats]{
	total("kvasir_events_batches_total", "Event batches of the endpoint that were applied to the index.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Batches }),
	total("kvasir_events_total", "Events in the batches applied.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Events }),
	total("kvasir_events_stored_blocks_total", "Blocks that events have stored, copies included.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Stored }),
	total("kvasir_events_removed_blocks_total", "Blocks that events have removed, copies included.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Removed }),
	total("kvasir_events_removed_unknown_blocks_total", "Blocks that events have removed and that were not known.",
		func(s *events.Stats) *atomic.Uint64 { return &s.RemovedUnknown }),
	total("kvasir_events_cleared_total", "Events that cleared all blocks.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Cleared }),
	total("kvasir_events_connects_total", "Connections made to the endpoint's publisher.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Connections }),
	total("kvasir_events_connection_failures_total", "Failures to make or keep a connection to the endpoint's publisher.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Failures }),
	total("kvasir_events_gaps_total", "Gaps in the sequence numbers of the endpoint's event batches.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Gaps }),
	total("kvasir_events_missing_batches_total", "Event batches in gaps that were never filled.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Missing }),
	total("kvasir_events_tail_loss_batches_total", "Event batches found missing by asking a quiet endpoint.",
		func(s *events.Stats) *atomic.Uint64 { return &s.TailLosses }),
	total("kvasir_events_resumes_total", "Connections made again to an engine that showed to be in the same life.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Resumes }),
	total("kvasir_events_duplicate_batches_total", "Event batches that came again and were passed over.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Duplicates }),
	total("kvasir_events_replays_total", "Replays of missed event batches that the picker asked the endpoint for.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Replays }),
	total("kvasir_events_replay_failures_total", "Replays of missed event batches that failed.",
		func(s *events.Stats) *atomic.Uint64 { return &s.ReplayFailures }),
	total("kvasir_events_overflows_total", "Overflows of the queue of event batches.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Overflows }),
	total("kvasir_events_malformed_total", "Messages that have no sequence number, or one that lies too far ahead to follow.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Malformed }),
	total("kvasir_events_decode_errors_total", "Event batches that could not be read.",
		func(s *events.Stats) *atomic.Uint64 { return &s.DecodeErrors }),
	total("kvasir_events_unknown_layouts_total", "Event batches that could not be read, or not all of it, because their layout is not known.",
		func(s *events.Stats) *atomic.Uint64 { return &s.UnknownLayouts }),
	total("kvasir_events_panics_total", "Panics of the picker while it read or applied what the endpoint has sent.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Panics }),
	total("kvasir_events_skipped_total", "Events and fields in readable batches that were passed over.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Skipped }),
	total("kvasir_events_struck_copies_total", "Copies of blocks that were announced and cannot exist, because the engine has fewer blocks.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Struck }),
	total("kvasir_events_impossible_total",
		"Times that the blocks of the endpoint were forgotten because it had announced more than twice as many as it has.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Impossible }),
	total("kvasir_events_superseded_blocks_total", "Blocks of LoRA adapters that were loaded again with other weights.",
		func(s *events.Stats) *atomic.Uint64 { return &s.Superseded }),
	total("kvasir_events_orphans_dropped_total", "KV blocks announced by the endpoint that were dropped because their parent block did not come.",
		func(s *events.Stats) *atomic.Uint64 { return &s.OrphansDropped }),
	level("kvasir_events_orphan_blocks", "KV blocks announced by the endpoint whose parent block is not known yet.",
		func(s *events.Stats) *atomic.Int64 { return &s.Orphans }),
	level("kvasir_events_queued_bytes", "Bytes of the endpoint's event batches that wait to be applied.",
		func(s *events.Stats) *atomic.Int64 { return &s.QueuedBytes }),
	gauge("kvasir_events_lag_seconds", "Age of the last event batch when it was applied, by the engine's clock.", ofEndpoint,
		func(s *events.Stats) float64 { return s.Lag().Seconds() }),
}

// unindexedReasons name the counters of blocks that cannot be indexed.
var unindexedReasons = []struct {
	reason string
	field  func(*events.Stats) *atomic.Uint64
}{
	{"partial", func(s *events.Stats) *atomic.Uint64 { return &s.Partial }},
	{"unkeyed", func(s *events.Stats) *atomic.Uint64 { return &s.Unkeyed }},
	{"unknown_medium", func(s *events.Stats) *atomic.Uint64 { return &s.UnknownMedium }},
	{"misaligned", func(s *events.Stats) *atomic.Uint64 { return &s.Misaligned }},
	{"block_size", func(s *events.Stats) *atomic.Uint64 { return &s.BlockSizeUnsupported }},
	{"limit", func(s *events.Stats) *atomic.Uint64 { return &s.Refused }},
}

func collectEvents(out chan<- prometheus.Metric, streams []Stream) {
	endpoints := endpointLabels{}
	for i := range streams {
		s := &streams[i]
		namespace, pool, ep := endpoints.of(s.Namespace, s.Pool, &s.Endpoint)
		out <- prometheus.MustNewConstMetric(state, prometheus.GaugeValue, 1, namespace, pool, ep, s.State.String())
		for r := range events.Reason(events.NumReasons) {
			n := float64(s.Stats.Resyncs[r].Load())
			out <- prometheus.MustNewConstMetric(resyncs, prometheus.CounterValue, n, namespace, pool, ep, r.String())
		}
		for _, u := range unindexedReasons {
			out <- prometheus.MustNewConstMetric(unindexed, prometheus.CounterValue, float64(u.field(s.Stats).Load()), namespace, pool, ep, u.reason)
		}
		collect(out, eventSeries, s.Stats, namespace, pool, ep)
	}
}

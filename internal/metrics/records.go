package metrics

import "github.com/prometheus/client_golang/prometheus"

// Records are how many records a log has written and dropped.
type Records struct{ Written, Dropped int64 }

// Exports are how many records a collector has taken, and how many are lost.
type Exports struct{ Sent, Lost int64 }

var (
	decisionRecords = prometheus.NewDesc("kvasir_decision_log_records_total",
		"Records for the decision log: written, or dropped because it could not keep up or its disk failed; absent without a log.",
		[]string{"result"}, nil)
	usageRecords = prometheus.NewDesc("kvasir_usage_records_total",
		"Records of what requests have used: written, or dropped because the log could not keep up or its disk failed; absent without a log.",
		[]string{"result"}, nil)
	usageExports = prometheus.NewDesc("kvasir_usage_exports_total",
		"Records of what requests have used: sent to the collector, or lost because it was away, slow or has refused; absent without a collector.",
		[]string{"result"}, nil)
)

func collectRecords(out chan<- prometheus.Metric, desc *prometheus.Desc, stats func() *Records) {
	if stats == nil {
		return
	}
	if r := stats(); r != nil {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(r.Written), "written")
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(r.Dropped), "dropped")
	}
}

func collectExports(out chan<- prometheus.Metric, stats func() *Exports) {
	if stats == nil {
		return
	}
	if e := stats(); e != nil {
		out <- prometheus.MustNewConstMetric(usageExports, prometheus.CounterValue, float64(e.Sent), "sent")
		out <- prometheus.MustNewConstMetric(usageExports, prometheus.CounterValue, float64(e.Lost), "lost")
	}
}

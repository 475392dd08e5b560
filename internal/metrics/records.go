package metrics

import "github.com/prometheus/client_golang/prometheus"

// Records are how many records a log has written and dropped.
type Records struct{ Written, Dropped int64 }

var (
	decisionRecords = prometheus.NewDesc("kvasir_decision_log_records_total",
		"Records for the decision log: written, or dropped because it could not keep up or its disk failed; absent without a log.",
		[]string{"result"}, nil)
	usageRecords = prometheus.NewDesc("kvasir_usage_records_total",
		"Records of what requests have used: written, or dropped because the log could not keep up or its disk failed; absent without a log.",
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

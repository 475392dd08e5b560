package metrics

import "github.com/prometheus/client_golang/prometheus"

// Decisions are the records that the decision log has written and dropped.
type Decisions struct{ Written, Dropped int64 }

var decisionRecords = prometheus.NewDesc("kvasir_decision_log_records_total",
	"Records for the decision log: written, or dropped because it could not keep up or its disk failed; absent without a log.",
	[]string{"result"}, nil)

func collectDecisions(out chan<- prometheus.Metric, d *Decisions) {
	out <- prometheus.MustNewConstMetric(decisionRecords, prometheus.CounterValue, float64(d.Written), "written")
	out <- prometheus.MustNewConstMetric(decisionRecords, prometheus.CounterValue, float64(d.Dropped), "dropped")
}

package metrics

import "github.com/prometheus/client_golang/prometheus"

// UsageSink is a place to which records of use go, and how many it has written and dropped.
type UsageSink struct {
	// Name is file or collector.
	Name             string
	Written, Dropped int64
}

var usageRecords = prometheus.NewDesc("kvasir_usage_records_total",
	"Records of what requests have used, by the sink: written, or dropped because it could not keep up or failed.",
	[]string{"sink", "result"}, nil)

func collectUsage(out chan<- prometheus.Metric, sinks []UsageSink) {
	for _, s := range sinks {
		out <- prometheus.MustNewConstMetric(usageRecords, prometheus.CounterValue, float64(s.Written), s.Name, "written")
		out <- prometheus.MustNewConstMetric(usageRecords, prometheus.CounterValue, float64(s.Dropped), s.Name, "dropped")
	}
}

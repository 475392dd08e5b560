package autoscaling

import (
	"github.com/prometheus/client_golang/prometheus"
)

// What HPAs and dashboards read: one series for each pool or role that scales, of what the loop has seen last. The label role is empty
// for a pool without roles.
var (
	poolLabels  = []string{"namespace", "pool", "role"}
	recommended = prometheus.NewDesc("kvasir_pool_recommended_replicas", "Pods that the pool needs, by its autoscaling.", poolLabels, nil)
	waiting     = prometheus.NewDesc("kvasir_pool_waiting_requests", "Requests that wait, at the pickers and in the engines' queues.",
		poolLabels, nil)
	load = prometheus.NewDesc("kvasir_pool_load_replicas", "Work that comes, as a number of pods that it would keep busy.", poolLabels,
		nil)
	hitRatio = prometheus.NewDesc("kvasir_pool_hit_ratio", "Part of the prompt tokens of the last ten minutes that were cached.",
		poolLabels, nil)
	ttftP99 = prometheus.NewDesc("kvasir_pool_time_to_first_token_p99_seconds",
		"99th percentile of the times to the first token in the last two minutes.", poolLabels, nil)
)

// Describe implements prometheus.Collector.
func (l *Loop) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{recommended, waiting, load, hitRatio, ttftP99} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (l *Loop) Collect(to chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, p := range l.pools {
		gauge := func(d *prometheus.Desc, v float64) {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, name.Namespace, name.Name, string(name.role))
		}
		gauge(recommended, float64(p.decision.Size))
		if p.sample == nil {
			continue
		}
		gauge(waiting, p.sample.Waiting)
		gauge(load, p.sample.Load)
		if p.sample.HitRatio >= 0 {
			gauge(hitRatio, p.sample.HitRatio)
		}
		if p.sample.TTFTP99 > 0 {
			gauge(ttftP99, p.sample.TTFTP99.Seconds())
		}
	}
}

// Package metrics shows the picker to Prometheus.
//
// Counters and gauges are read from where they are kept, at the moment of a scrape (Collector); distributions are observed
// as requests pass (Requests). All names begin with kvasir_ and use base units. The labels are bounded by the
// configuration: a pool's name, an endpoint (pod/rank), and the words of fixed lists. No client input becomes a label.
//
// The table in docs/metrics.md lists all metrics; a test keeps it up to date.
package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// scrapesAtOnce bounds how many questions for metrics are answered at the same time; further ones get 503.
const scrapesAtOnce = 4

// NewRegistry makes a registry of the given collectors, the Go runtime and the process.
func NewRegistry(all ...prometheus.Collector) (*prometheus.Registry, error) {
	registry := prometheus.NewRegistry()
	all = append(all, BuildInfo(), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, c := range all {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return registry, nil
}

// Handler serves /metrics.
func Handler(registry *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		Registry: registry, EnableOpenMetrics: true, MaxRequestsInFlight: scrapesAtOnce,
	})
}

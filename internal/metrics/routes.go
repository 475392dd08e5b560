package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

var (
	routeRequests = prometheus.NewDesc("kvasir_route_requests_total",
		"Requests for which an endpoint was picked in the pool by the ModelRoute.", []string{"namespace", "route", "pool"}, nil)
	routeFallbacks = prometheus.NewDesc("kvasir_route_fallbacks_total",
		"Requests that left the pool for a fallback of the ModelRoute, by reason.", []string{"namespace", "route", "pool", "reason"}, nil)
)

// collectRoutes emits the metrics of routes. A route's pools are of its namespace.
func collectRoutes(out chan<- prometheus.Metric, routes []picker.RouteStats) {
	for i := range routes {
		r := &routes[i]
		for pool, n := range r.Requests {
			out <- prometheus.MustNewConstMetric(routeRequests, prometheus.CounterValue, float64(n), r.Namespace, r.Name, pool[len(r.Namespace)+1:])
		}
		for pool, causes := range r.Fallbacks {
			for cause, n := range causes {
				out <- prometheus.MustNewConstMetric(routeFallbacks, prometheus.CounterValue, float64(n),
					r.Namespace, r.Name, pool[len(r.Namespace)+1:], modelroute.Cause(cause).String())
			}
		}
	}
}

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
	routeRefused = prometheus.NewDesc("kvasir_route_refused_total",
		"Requests refused by the limits of the ModelRoute, by reason.", []string{"namespace", "route", "reason"}, nil)
	mirrorsSent = prometheus.NewDesc("kvasir_route_mirrors_sent_total",
		"Copies of requests that were sent to the pool as a mirror of the ModelRoute.", []string{"namespace", "route", "pool"}, nil)
	mirrorsDropped = prometheus.NewDesc("kvasir_route_mirrors_dropped_total",
		"Copies of requests that were not sent to the mirror, by reason.", []string{"namespace", "route", "pool", "reason"}, nil)
	mirrorsEnded = prometheus.NewDesc("kvasir_route_mirrors_ended_total",
		"Copies of requests that were sent to the mirror and have ended, by outcome.", []string{"namespace", "route", "pool", "outcome"}, nil)
)

// collectRoutes emits the metrics of routes. A route's pools are of its namespace.
func collectRoutes(out chan<- prometheus.Metric, routes []picker.RouteStats) {
	for i := range routes {
		r := &routes[i]
		for pool, n := range r.Requests {
			out <- prometheus.MustNewConstMetric(routeRequests, prometheus.CounterValue, float64(n), r.Namespace, r.Name, pool[len(r.Namespace)+1:])
		}
		for i, reason := range picker.RouteRefusals {
			if r.Limited {
				out <- prometheus.MustNewConstMetric(routeRefused, prometheus.CounterValue, float64(r.Refused[i]), r.Namespace, r.Name, reason)
			}
		}
		for pool, m := range r.Mirrors {
			collectMirror(out, m, r.Namespace, r.Name, pool[len(r.Namespace)+1:])
		}
		for pool, causes := range r.Fallbacks {
			for cause, n := range causes {
				out <- prometheus.MustNewConstMetric(routeFallbacks, prometheus.CounterValue, float64(n),
					r.Namespace, r.Name, pool[len(r.Namespace)+1:], modelroute.Cause(cause).String())
			}
		}
	}
}

// collectMirror emits the metrics of one mirror.
func collectMirror(out chan<- prometheus.Metric, m picker.MirrorStats, labels ...string) {
	count := func(desc *prometheus.Desc, n int64, more ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), append(labels[:len(labels):len(labels)], more...)...)
	}
	count(mirrorsSent, m.Sent)
	for why, n := range m.Dropped {
		count(mirrorsDropped, n, picker.Drop(why).String())
	}
	for i, outcome := range picker.MirrorOutcomes {
		count(mirrorsEnded, m.Ended[i], outcome)
	}
}

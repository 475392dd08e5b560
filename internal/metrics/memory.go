package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

var (
	memoryHeld = prometheus.NewDesc("kvasir_client_memory_bytes",
		"Bytes of requests and answers that the picker holds in memory for clients, by part.", []string{"part"}, nil)
	memoryLimit = prometheus.NewDesc("kvasir_client_memory_limit_bytes",
		"Limit on the bytes that the picker holds in memory for all clients together.", nil, nil)
	memoryOwners = prometheus.NewDesc("kvasir_client_memory_owners",
		"Tenants, or addresses of clients without a tenant, for which the picker holds bytes in memory.", nil, nil)
	memoryMost = prometheus.NewDesc("kvasir_client_memory_largest_owner_bytes",
		"Bytes that the picker holds for the tenant or client address for which it holds most.", nil, nil)
	memoryRefused = prometheus.NewDesc("kvasir_client_memory_refused_total",
		"Times that there was no room for a client's bytes, or not in its share, by part.", []string{"part"}, nil)
	memoryShed = prometheus.NewDesc("kvasir_client_memory_shed_total",
		"Requests that were aborted because they came slowly while there was no room, by part.", []string{"part"}, nil)
)

var memoryDescs = []*prometheus.Desc{memoryHeld, memoryLimit, memoryOwners, memoryMost, memoryRefused, memoryShed}

func collectMemory(out chan<- prometheus.Metric, s *budget.Stats) {
	out <- prometheus.MustNewConstMetric(memoryLimit, prometheus.GaugeValue, float64(s.Limit))
	out <- prometheus.MustNewConstMetric(memoryOwners, prometheus.GaugeValue, float64(s.Owners))
	out <- prometheus.MustNewConstMetric(memoryMost, prometheus.GaugeValue, float64(s.Most))
	for i := range budget.NumParts {
		part := budget.Part(i).String()
		out <- prometheus.MustNewConstMetric(memoryHeld, prometheus.GaugeValue, float64(s.Parts[i]), part)
		out <- prometheus.MustNewConstMetric(memoryRefused, prometheus.CounterValue, float64(s.Refused[i]), part)
		out <- prometheus.MustNewConstMetric(memoryShed, prometheus.CounterValue, float64(s.Shed[i]), part)
	}
}

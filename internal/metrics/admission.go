package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

var unadmitted = prometheus.NewDesc("kvasir_admission_refused_total",
	"Requests that waited for a full pool, or should have, and did not go through, by reason.", []string{"pool", "reason"}, nil)

var tenantRefused = prometheus.NewDesc("kvasir_tenant_refused_total",
	"Requests of the tenant that were refused, by reason.", []string{"pool", "tenant", "reason"}, nil)

var admissionSeries = []series[picker.AdmissionStats]{
	gauge("kvasir_admission_waiting_requests", "Requests that wait in the picker because the pool is full.", ofPool,
		func(s *picker.AdmissionStats) float64 { return float64(s.Waiting) }),
	gauge("kvasir_admission_waiting_bytes", "Bytes of their bodies.", ofPool,
		func(s *picker.AdmissionStats) float64 { return float64(s.WaitingBytes) }),
	gauge("kvasir_admission_waiting_tokens", "Uncached prompt tokens that they will cost.", ofPool,
		func(s *picker.AdmissionStats) float64 { return s.WaitingTokens }),
	counter("kvasir_admission_waited_total", "Requests that went through after they had waited.", ofPool,
		func(s *picker.AdmissionStats) float64 { return float64(s.Waited) }),
	counter("kvasir_admission_waited_seconds_total", "How long these have waited.", ofPool,
		func(s *picker.AdmissionStats) float64 { return s.WaitedTime.Seconds() }),
}

var tenantSeries = []series[picker.TenantStats]{
	counter("kvasir_tenant_requests_total", "Requests of the tenant that were within its limits.", ofTenant,
		func(s *picker.TenantStats) float64 { return float64(s.Requests) }),
	counter("kvasir_tenant_tokens_total", "Tokens of the tenant's prompts and answers.", ofTenant,
		func(s *picker.TenantStats) float64 { return float64(s.Tokens) }),
}

var shadowSeries = []series[picker.ShadowStats]{
	counter("kvasir_shadow_compared_total", "Requests for which the shadow strategy was scored, too.", ofShadow,
		func(s *picker.ShadowStats) float64 { return float64(s.Compared) }),
	counter("kvasir_shadow_agreed_total", "Those for which it would have chosen the same endpoint.", ofShadow,
		func(s *picker.ShadowStats) float64 { return float64(s.Agreed) }),
	counter("kvasir_shadow_saved_seconds_total", "How much sooner first tokens were predicted to come where its choices differ: the regret of the strategy in force.", ofShadow,
		func(s *picker.ShadowStats) float64 { return s.SavedSeconds }),
	counter("kvasir_shadow_lost_seconds_total", "How much later first tokens were predicted to come where its choices differ.", ofShadow,
		func(s *picker.ShadowStats) float64 { return s.LostSeconds }),
}

var gatewaySeries = []series[picker.GatewayStats]{
	counter("kvasir_gateway_served_total", "Answers for which the gateway reported the endpoint that served them, or that it knew none.", ofGateway,
		func(s *picker.GatewayStats) float64 { return float64(s.Told) }),
	counter("kvasir_gateway_retried_total", "Those that another endpoint served because the picked one was dead.",
		ofGateway,
		func(s *picker.GatewayStats) float64 { return float64(s.Retried) }),
	counter("kvasir_gateway_unfollowed_picks_total", "Those that an endpoint served which the pick had not named, while the picked one took connections, or for which the gateway knew none.", ofGateway,
		func(s *picker.GatewayStats) float64 { return float64(s.Unfollowed) }),
	counter("kvasir_gateway_streams_total", "Streamed answers with several events that the gateway has shown.", ofGateway,
		func(s *picker.GatewayStats) float64 { return float64(s.Streams) }),
	counter("kvasir_gateway_buffered_streams_total", "Those that the gateway held back until they were complete.", ofGateway,
		func(s *picker.GatewayStats) float64 { return float64(s.Buffered) }),
}

// collectAdmission emits the metrics of a pool's queue, its tenants, and the shadows of its strategy.
func collectAdmission(out chan<- prometheus.Metric, s *picker.PoolStats, pool string) {
	collect(out, admissionSeries, &s.Admission, pool)
	for reason, n := range map[string]int64{
		"shed": s.Admission.Shed, "late": s.Admission.Late, "unserved": s.Admission.Unserved, "client_gone": s.Admission.Gone,
	} {
		out <- prometheus.MustNewConstMetric(unadmitted, prometheus.CounterValue, float64(n), pool, reason)
	}
	for _, shadow := range s.Shadows {
		collect(out, shadowSeries, &shadow, pool, shadow.Name)
	}
	for i := range s.Gateways {
		collect(out, gatewaySeries, &s.Gateways[i], pool, s.Gateways[i].Gateway)
	}
	for name, t := range s.Tenants {
		label := strings.ToValidUTF8(name, "?")
		collect(out, tenantSeries, &t, pool, label)
		for i, reason := range picker.TenantRefusals {
			out <- prometheus.MustNewConstMetric(tenantRefused, prometheus.CounterValue, float64(t.Refused[i]), pool, label, reason)
		}
	}
}

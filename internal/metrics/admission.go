package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

var unadmitted = prometheus.NewDesc("kvasir_admission_refused_total",
	"Requests that waited in the picker for a full pool, or found its queue full, and were not sent to an endpoint, by reason.", []string{"namespace", "pool", "reason"}, nil)

var tenantRefused = prometheus.NewDesc("kvasir_tenant_refused_total",
	"Requests of the tenant that were refused, by reason.", []string{"namespace", "pool", "tenant", "reason"}, nil)

var admissionSeries = []series[picker.AdmissionStats]{
	gauge("kvasir_admission_waiting_requests", "Requests that wait in the picker because the pool is full.", ofPool,
		func(s *picker.AdmissionStats) float64 { return float64(s.Waiting) }),
	gauge("kvasir_admission_waiting_bytes", "Bytes of the bodies of requests that wait in the picker because the pool is full.", ofPool,
		func(s *picker.AdmissionStats) float64 { return float64(s.WaitingBytes) }),
	gauge("kvasir_admission_waiting_tokens", "Uncached prompt tokens of the requests that wait in the picker because the pool is full.", ofPool,
		func(s *picker.AdmissionStats) float64 { return s.WaitingTokens }),
	counter("kvasir_admission_waited_total", "Requests that were sent to an endpoint after they had waited in the picker for a full pool.", ofPool,
		func(s *picker.AdmissionStats) float64 { return float64(s.Waited) }),
	counter("kvasir_admission_waited_seconds_total", "Time that requests spent waiting in the picker for a full pool before they were sent.", ofPool,
		func(s *picker.AdmissionStats) float64 { return s.WaitedTime.Seconds() }),
}

var tenantSeries = []series[picker.TenantStats]{
	counter("kvasir_tenant_requests_total", "Requests of the tenant that were within its limits.", ofTenant,
		func(s *picker.TenantStats) float64 { return float64(s.Requests) }),
	counter("kvasir_tenant_tokens_total", "Tokens of the tenant's prompts and answers.", ofTenant,
		func(s *picker.TenantStats) float64 { return float64(s.Tokens) }),
}

var shadowSeries = []series[picker.ShadowStats]{
	counter("kvasir_shadow_compared_total", "Requests for which the shadow strategy was computed beside the pool's own strategy.", ofShadow,
		func(s *picker.ShadowStats) float64 { return float64(s.Compared) }),
	counter("kvasir_shadow_agreed_total", "Requests for which the shadow strategy would have chosen the same endpoint as the pool's own strategy.", ofShadow,
		func(s *picker.ShadowStats) float64 { return float64(s.Agreed) }),
	counter("kvasir_shadow_saved_seconds_total", "Time by which first tokens were predicted to come sooner by the shadow strategy's choices: the regret of the strategy in force.", ofShadow,
		func(s *picker.ShadowStats) float64 { return s.SavedSeconds }),
	counter("kvasir_shadow_lost_seconds_total", "Time by which first tokens were predicted to come later by the shadow strategy's choices.", ofShadow,
		func(s *picker.ShadowStats) float64 { return s.LostSeconds }),
}

var gatewaySeries = []series[picker.GatewayStats]{
	counter("kvasir_gateway_served_total", "Answers for which the gateway reported the endpoint that served the request, or reported none.", ofGateway,
		func(s *picker.GatewayStats) float64 { return float64(s.Reported) }),
	counter("kvasir_gateway_retried_total", "Answers behind the gateway that another endpoint served because the picked one had failed.",
		ofGateway,
		func(s *picker.GatewayStats) float64 { return float64(s.Retried) }),
	counter("kvasir_gateway_unfollowed_picks_total", "Answers behind the gateway that another endpoint served than the picked one, which took connections and was not asked, or for which the gateway knew none; and answers whose tokens the picked endpoint has not generated.", ofGateway,
		func(s *picker.GatewayStats) float64 { return float64(s.Unfollowed) }),
	counter("kvasir_gateway_streams_total", "Streamed answers with several events that the gateway has shown.", ofGateway,
		func(s *picker.GatewayStats) float64 { return float64(s.Streams) }),
	counter("kvasir_gateway_buffered_streams_total", "Streamed answers with several events that the gateway held back until complete.", ofGateway,
		func(s *picker.GatewayStats) float64 { return float64(s.Buffered) }),
}

// collectAdmission emits the metrics of a pool's queue, its tenants, and the shadows of its strategy.
func collectAdmission(out chan<- prometheus.Metric, s *picker.PoolStats, namespace, pool string) {
	collect(out, admissionSeries, &s.Admission, namespace, pool)
	for reason, n := range map[string]int64{
		"shed": s.Admission.Shed, "late": s.Admission.Late, "unserved": s.Admission.Unserved, "client_gone": s.Admission.Gone,
	} {
		out <- prometheus.MustNewConstMetric(unadmitted, prometheus.CounterValue, float64(n), namespace, pool, reason)
	}
	for _, shadow := range s.Shadows {
		collect(out, shadowSeries, &shadow, namespace, pool, shadow.Name)
	}
	for i := range s.Gateways {
		collect(out, gatewaySeries, &s.Gateways[i], namespace, pool, s.Gateways[i].Gateway)
	}
	for name, t := range s.Tenants {
		label := valid(name)
		collect(out, tenantSeries, &t, namespace, pool, label)
		for i, reason := range picker.TenantRefusals {
			out <- prometheus.MustNewConstMetric(tenantRefused, prometheus.CounterValue, float64(t.Refused[i]), namespace, pool, label, reason)
		}
	}
}

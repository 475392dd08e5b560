package metrics

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// TestRefusalsOfTenantsAreToldByReason: each of the reasons that there are, from the first scrape on.
func TestRefusalsOfTenantsAreToldByReason(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewCollector(Sources{Pools: func() []picker.PoolStats {
		return []picker.PoolStats{{Namespace: "a", Pool: "chat", Tenants: map[string]picker.TenantStats{"acme": {Refused: [...]int64{0, 1, 2, 3, 4, 5}}}}}
	}}))
	want := "# HELP kvasir_tenant_refused_total Requests of the tenant that were refused, by reason.\n# TYPE kvasir_tenant_refused_total counter\n"
	for i, reason := range []string{"invalid_api_key", "model_not_allowed", "cache_salt_unsupported", "requests_per_minute", "tokens_per_minute", "max_concurrent"} {
		want += fmt.Sprintf("kvasir_tenant_refused_total{namespace=\"a\",pool=\"chat\",reason=%q,tenant=\"acme\"} %d\n", reason, i)
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "kvasir_tenant_refused_total"); err != nil {
		t.Error(err)
	}
}

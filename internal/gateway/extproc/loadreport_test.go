package extproc

import (
	"io"
	"net/http"
	"testing"

	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// TestLoadReportsDoNotReachClientsBehindAGateway: a client that asks engines for load reports gets none, and the engine is not
// asked.
func TestLoadReportsDoNotReachClientsBehindAGateway(t *testing.T) {
	asked := make(chan string, 1)
	h := newHouse(t, Options{}, ServeOptions{}, spec(engine(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Endpoint-Load-Metrics-Format")
		w.Header().Set("Endpoint-Load-Metrics", "TEXT named_metrics.kv_cache_usage_perc=0.5")
		_, _ = io.WriteString(w, "{}")
	})))
	g := h.envoy(envoytest.Options{Seed: 3})
	answer := g.post("/v1/completions", `{"model":"m","prompt":"x"}`, "Content-Type", "application/json", "Endpoint-Load-Metrics-Format", "text")
	if got := await(t, asked); got != "" {
		t.Errorf("the engine is asked for a report as %q", got)
	}
	if got := answer.Header.Get("Endpoint-Load-Metrics"); got != "" {
		t.Errorf("the client gets %s", got)
	}
	h.idle()
}

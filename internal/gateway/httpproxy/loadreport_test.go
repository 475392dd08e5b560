package httpproxy

import (
	"io"
	"net/http"
	"testing"
)

// TestLoadReportsDoNotReachClients: a client that asks engines for load reports gets none, and the engine is not asked.
func TestLoadReportsDoNotReachClients(t *testing.T) {
	asked := make(chan string, 1)
	s := spec(engine(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Endpoint-Load-Metrics-Format")
		w.Header().Set("Endpoint-Load-Metrics", "TEXT named_metrics.kv_cache_usage_perc=0.5")
		w.Header().Set("Endpoint-Load-Metrics-Bin", "AAAA")
		_, _ = io.WriteString(w, "{}")
	}))
	h := newHouse(t, Options{}, s)
	for _, path := range []string{"/v1/completions", "/v1/rerank", "/v1/other"} {
		answer := h.post(path, `{"model":"m","prompt":"x"}`, "Endpoint-Load-Metrics-Format", "text")
		if got := await(t, "the request", asked); got != "" {
			t.Errorf("%s: the engine is asked for a report as %q", path, got)
		}
		for _, name := range []string{"Endpoint-Load-Metrics", "Endpoint-Load-Metrics-Bin"} {
			if got := answer.Header.Get(name); got != "" {
				t.Errorf("%s: the client gets %s: %s", path, name, got)
			}
		}
	}
	h.idle()
}

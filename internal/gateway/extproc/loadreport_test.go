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

// TestInvocationsAreForTheModelOfTheBodyBehindAGateway: vLLM takes their model from a header, and without it serves the base model.
func TestInvocationsAreForTheModelOfTheBodyBehindAGateway(t *testing.T) {
	named := make(chan string, 1)
	h := newHouse(t, Options{}, ServeOptions{}, spec(engine(t, func(w http.ResponseWriter, r *http.Request) {
		named <- r.Header.Get("X-Amzn-Sagemaker-Adapter-Identifier")
		_, _ = io.WriteString(w, "{}")
	})))
	g := h.envoy(envoytest.Options{Seed: 3})
	for body, want := range map[string]string{`{"model":"an/adapter","prompt":"x"}`: "an/adapter", `{"prompt":"x"}`: ""} {
		answer := g.post("/invocations", body, "Content-Type", "application/json", "X-Amzn-Sagemaker-Adapter-Identifier", "another")
		if answer.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %d", body, answer.StatusCode)
		}
		if got := await(t, named); got != want {
			t.Errorf("%s: the engine gets the model %q", body, got)
		}
	}
	h.idle()
}

package metrics

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

func TestDashboardsOfInferenceGatewaysFindTheirNames(t *testing.T) {
	pools := []picker.PoolStats{{Namespace: "a", Pool: "chat", Endpoints: []picker.EndpointStats{
		endpointStats("uid-0", "pod-0", 0), endpointStats("uid-0", "pod-0", 1), endpointStats("uid-1", "pod-1", 0), {Pod: "gone"},
	}}, {Namespace: "b", Pool: "chat"}}
	c := NewCompat(func() []picker.PoolStats { return pools })
	seen := NewRequests(nil, nil)
	o := c.Watch(seen)
	for _, outcome := range []picker.Outcome{picker.Completed, picker.Failed} {
		d := &picker.Decision{Pool: "chat", Model: "m", PromptTokens: 100}
		o.Picked(d)
		o.Ended(d, outcome, 2*time.Second)
	}
	o.Picked(&picker.Decision{Pool: "chat", Model: "m"})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	want := `
# HELP inference_objective_request_error_total Requests that were routed and did not complete, by how they ended.
# TYPE inference_objective_request_error_total counter
inference_objective_request_error_total{error_code="failed",model_name="m",target_model_name="m"} 1
# HELP inference_objective_request_total Requests that were routed.
# TYPE inference_objective_request_total counter
inference_objective_request_total{model_name="m",target_model_name="m"} 3
# HELP inference_objective_running_requests Requests of the model that are under way.
# TYPE inference_objective_running_requests gauge
inference_objective_running_requests{model_name="m"} 1
# HELP inference_pool_average_kv_cache_utilization Average share of KV blocks in use over the pool's endpoints, 0 to 1.
# TYPE inference_pool_average_kv_cache_utilization gauge
inference_pool_average_kv_cache_utilization{name="chat"} 0.5
# HELP inference_pool_average_queue_size Average of the engines' waiting queues.
# TYPE inference_pool_average_queue_size gauge
inference_pool_average_queue_size{name="chat"} 3
# HELP inference_pool_per_pod_queue_size The engine's waiting queue.
# TYPE inference_pool_per_pod_queue_size gauge
inference_pool_per_pod_queue_size{model_server_pod="pod-0",name="chat"} 6
inference_pool_per_pod_queue_size{model_server_pod="pod-1",name="chat"} 3
# HELP inference_pool_ready_pods Endpoints that take requests.
# TYPE inference_pool_ready_pods gauge
inference_pool_ready_pods{name="chat"} 3
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "inference_objective_request_error_total", "inference_objective_request_total",
		"inference_objective_running_requests", "inference_pool_average_kv_cache_utilization", "inference_pool_average_queue_size",
		"inference_pool_per_pod_queue_size", "inference_pool_ready_pods"); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !strings.Contains(string(text), "`"+f.GetName()+"`") {
			t.Errorf("docs/metrics.md does not have %s", f.GetName())
		}
	}
}

// What a real request is counted as: its sizes, and what the engine has said of its tokens.
func TestSizesAndTokensOfARequest(t *testing.T) {
	p := onePool(t, nil)
	seen, c := NewRequests(nil, nil), NewCompat(p.Stats)
	o := c.Watch(seen)
	request := []byte(`{"model":"m","prompt":[1,2,3]}`)
	text := `{"choices":[],"usage":{"prompt_tokens":300,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":100}}}`
	for _, tells := range []bool{true, false} {
		d, err := p.Pick(t.Context(), &picker.Request{Body: request})
		if err != nil {
			t.Fatal(err)
		}
		o.Picked(d)
		var answer picker.Answer
		answer.Start(d, 200, "application/json", "")
		if tells {
			answer.Write([]byte(text[:40]))
			answer.Write([]byte(text[40:]))
		}
		outcome, _ := answer.Close()
		d.End(outcome)
		o.Ended(d, outcome, 10*time.Second)
	}
	sums := map[string][2]float64{} // count and sum
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c, seen)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if h := f.GetMetric()[0].GetHistogram(); h != nil {
			sums[f.GetName()] = [2]float64{float64(h.GetSampleCount()), h.GetSampleSum()}
		}
	}
	for name, want := range map[string][2]float64{
		"kvasir_request_size_bytes":                                       {2, 2 * float64(len(request))},
		"kvasir_response_size_bytes":                                      {2, float64(len(text))},
		"inference_objective_request_sizes":                               {2, 2 * float64(len(request))},
		"inference_objective_response_sizes":                              {2, float64(len(text))},
		"inference_objective_output_tokens":                               {1, 5},
		"inference_objective_prompt_cached_tokens":                        {1, 100},
		"inference_objective_normalized_time_per_output_token_seconds":    {1, 2},
		"inference_extension_flow_control_request_queue_duration_seconds": {2, 0},
	} {
		if sums[name] != want {
			t.Errorf("%s: count and sum %v, want %v", name, sums[name], want)
		}
	}
}

func TestModelLabelsOfGatewaysAreBounded(t *testing.T) {
	c := NewCompat(func() []picker.PoolStats { return nil })
	o := c.Watch(NewRequests(nil, nil))
	for i := range 3 * maxCompatModels {
		d := &picker.Decision{Model: fmt.Sprint("model-", i)}
		o.Picked(d)
		o.Ended(d, picker.Completed, time.Second)
	}
	if n := testutil.CollectAndCount(c.requests); n != maxCompatModels+1 {
		t.Errorf("%d series, want %d", n, maxCompatModels+1)
	}
	if got := testutil.ToFloat64(c.requests.WithLabelValues(otherModel, otherModel)); got != 2*maxCompatModels {
		t.Errorf("%v requests of other models", got)
	}
}

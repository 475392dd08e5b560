package httpproxy

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/hooks"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// TestStepsHoldInTheProxy: the engine of the other pool gets the request with the model that a step has set, and nothing else changed; a
// refusal has the status and the message of the rule, and reaches no engine.
func TestStepsHoldInTheProxy(t *testing.T) {
	got := make(chan string, 1)
	small := engine(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- string(body)
		_, _ = io.WriteString(w, `{"model":"small","choices":[{"finish_reason":"stop"}]}`)
	})
	large := engine(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"model":"large","choices":[{"finish_reason":"stop"}]}`)
	})
	specs := []picker.Spec{named("large", large), named("small", small)}
	specs[0].Policy.Hooks = hooks.Spec{Headers: []string{"x-plan"}, BodyFields: []string{"n"}, Steps: []hooks.Step{
		{Name: "one", When: "has(body.n) && body.n > 1", Refuse: hooks.Refusal{Status: 429, Message: "One at a time."}, CostLimit: 100},
		{Name: "free", When: `headers["x-plan"] == "free"`, Model: "small", CostLimit: 100},
	}}
	h := newHouse(t, Options{}, specs...)

	answer := h.post("/v1/completions", `{"n": 1, "model": "large" , "prompt":"x"}`, "X-Plan", "free")
	if text := read(t, answer); answer.StatusCode != http.StatusOK || !strings.Contains(text, `"small"`) {
		t.Errorf("%d %s", answer.StatusCode, text)
	}
	if body := <-got; body != `{"n": 1, "model": "small" , "prompt":"x"}` {
		t.Errorf("the engine gets %s", body)
	}
	if want := "default/large one=skipped free=applied"; answer.Header.Get("X-Kvasir-Hooks") != want {
		t.Errorf("explained as %q, want %q", answer.Header.Get("X-Kvasir-Hooks"), want)
	}
	answer = h.post("/v1/completions", `{"model":"large","prompt":"x"}`)
	if text := read(t, answer); answer.StatusCode != http.StatusOK || !strings.Contains(text, `"large"`) {
		t.Errorf("without a plan: %d %s", answer.StatusCode, text)
	}
	answer = h.post("/v1/completions", `{"model":"large","prompt":"x","n":2}`, "X-Plan", "free")
	text := read(t, answer)
	if answer.StatusCode != http.StatusTooManyRequests || !strings.Contains(text, "One at a time.") || !strings.Contains(text, picker.CodeHook) {
		t.Errorf("refused: %d %s", answer.StatusCode, text)
	}
}

package extproc

import (
	"io"
	"net/http"
	"strings"
	"testing"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"github.com/kvasir-dev/kvasir/internal/hooks"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// TestStepsHoldBehindAGateway: as in the proxy. If the gateway does not show the body, steps that only read headers are taken, and one
// that sets the model or reads the body refuses the request.
func TestStepsHoldBehindAGateway(t *testing.T) {
	for mode, tc := range map[string]struct {
		options envoytest.Options
		shown   bool
	}{
		"full duplex": {envoytest.Options{Seed: 3}, true},
		"buffered":    {envoytest.Options{Request: envoytest.WithMode(filter.ProcessingMode_BUFFERED), MessageTimeout: patience}, true},
		"not shown":   {envoytest.Options{Request: envoytest.WithMode(filter.ProcessingMode_NONE), MessageTimeout: patience}, false},
	} {
		t.Run(mode, func(t *testing.T) {
			got := make(chan string, 1)
			specs := []picker.Spec{
				named("large", engine(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, `{"model":"large"}`) })),
				named("small", engine(t, func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					got <- string(body)
					_, _ = io.WriteString(w, `{"model":"small"}`)
				})),
			}
			specs[0].Policy.Hooks = hooks.Spec{Headers: []string{"x-plan"}, BodyFields: []string{"n"}, Steps: []hooks.Step{
				{Name: "none", When: `headers["x-plan"] == "none"`, Refuse: hooks.Refusal{Status: 422, Message: "No plan."}, CostLimit: 100},
				{Name: "free", When: `headers["x-plan"] == "free" && !has(body.n)`, Model: "small", CostLimit: 100},
			}}
			g := newHouse(t, Options{}, ServeOptions{}, specs...).envoy(tc.options)

			answer := g.post("/v1/completions", `{"model":"large","prompt":"x"}`, "X-Plan", "none")
			if text := read(t, answer); answer.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(text, "No plan.") {
				t.Errorf("refused: %d %s", answer.StatusCode, text)
			}
			answer = g.post("/v1/completions", `{"model":"large","prompt":"x"}`)
			if text := read(t, answer); answer.StatusCode != http.StatusOK || !strings.Contains(text, "large") {
				t.Errorf("without a plan: %d %s", answer.StatusCode, text)
			}
			answer = g.post("/v1/completions", `{"model":"large","prompt":"x"}`, "X-Plan", "free")
			text := read(t, answer)
			if !tc.shown {
				if answer.StatusCode != http.StatusForbidden || !strings.Contains(text, picker.CodeHookFailed) {
					t.Errorf("a body that is not shown: %d %s", answer.StatusCode, text)
				}
				return
			}
			if answer.StatusCode != http.StatusOK || !strings.Contains(text, "small") {
				t.Fatalf("to the other pool: %d %s", answer.StatusCode, text)
			}
			if body := await(t, got); body != `{"model":"small","prompt":"x"}` {
				t.Errorf("the engine gets %s", body)
			}
		})
	}
}

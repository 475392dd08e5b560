package dashboard

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// TestRoutesAreShownWithoutWhatRequestsMustHave: names of headers, and no value of one and no tenant.
func TestRoutesAreShownWithoutWhatRequestsMustHave(t *testing.T) {
	left := map[string][modelroute.NumCauses]int64{"llm/a": {modelroute.Full: 3, modelroute.Down: 1}, "llm/b": {}}
	got := Routes([]picker.RouteStats{
		{Namespace: "llm", Name: "z", Route: &modelroute.Route{Models: []string{"z"}}},
		{Namespace: "llm", Name: "chat", Requests: map[string]int64{"llm/a": 5, "llm/b": 0}, Fallbacks: left, Route: &modelroute.Route{
			Models: []string{"chat"}, Rules: []modelroute.Rule{{
				Matches:  []modelroute.Match{{Tenant: "acme", Headers: []modelroute.Header{{Name: "x-key", Value: "hunter2"}, {Name: "x-b", Value: "1"}}}, {Tenant: "acme"}},
				Sticky:   true,
				Backends: []modelroute.Backend{{Pool: "llm/a", Weight: 2}}, Fallbacks: []modelroute.Backend{{Pool: "llm/b", Model: "n"}},
			}},
		}},
	})
	want := []api.Route{
		{Namespace: "llm", Name: "chat", Models: []string{"chat"}, Rules: []api.RouteRule{{
			When: []string{"a tenant and header x-key, x-b", "a tenant"}, Sticky: true,
			Backends: []api.RouteBackend{{Pool: "llm/a", Weight: 2}}, Fallbacks: []api.RouteBackend{{Pool: "llm/b", Model: "n"}},
		}}, Requests: map[string]int64{"llm/a": 5, "llm/b": 0}, Left: map[string]map[string]int64{"llm/a": {"full": 3, "down": 1}}},
		{Namespace: "llm", Name: "z", Models: []string{"z"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "hunter2") || strings.Contains(string(text), "acme") {
		t.Errorf("it shows a value: %s", text)
	}
}

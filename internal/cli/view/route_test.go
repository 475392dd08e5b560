package view

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
)

// canary is a route with a rule for a header, weights and a fallback.
func canary() *v1alpha1.ModelRoute {
	r := &v1alpha1.ModelRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "talk"}}
	r.Spec.Models = []v1alpha1.ModelName{"talk", "talk-latest"}
	r.Spec.Rules = []v1alpha1.ModelRouteRule{
		{Matches: []v1alpha1.ModelRouteMatch{{Headers: []v1alpha1.ModelRouteHeader{{Name: "X-Canary", Value: "secret"}}}},
			Backends: []v1alpha1.ModelRouteBackend{{Pool: "next", ModelName: "next-1"}}},
		{Backends: []v1alpha1.ModelRouteBackend{{Pool: "chat", Weight: ptr.To[int32](95)}, {Pool: "next", Weight: ptr.To[int32](5)}},
			Fallback: []v1alpha1.ModelRouteFallback{{Pool: "small"}}},
	}
	r.Status.Conditions = []metav1.Condition{
		{Type: "Accepted", Status: "True", Reason: "Accepted"},
		{Type: "ResolvedRefs", Status: "False", Reason: "ReferenceNotFound", Message: "spec.rules[1].fallback[0].pool: InferencePool llm/small does not exist"},
	}
	return r
}

// counted is what a picker has counted of the route.
func counted(n int64) *api.Live {
	return &api.Live{Routes: []api.Route{
		{Namespace: "llm", Name: "talk", Models: []string{"talk"}, Requests: map[string]int64{"llm/chat": 9 * n, "llm/next": n},
			Left: map[string]map[string]int64{"llm/chat": {"full": n, "down": 2 * n}}, Rules: []api.RouteRule{{Backends: []api.RouteBackend{{Pool: "llm/chat", Weight: 1}}}}},
		{Namespace: "other", Name: "talk", Requests: map[string]int64{"other/chat": 1}},
	}}
}

// TestRoutesAreShown with their conditions, and what all pickers have counted.
func TestRoutesAreShown(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	s := &Source{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(canary()).Build()}
	all, err := s.routes(t.Context(), "llm", map[string]*api.Live{"llm/a": counted(1), "llm/b": counted(10)})
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	shown := &Statuses{Routes: all}
	shown.Pools = []*Pool{{Namespace: "llm", Name: "chat", Status: "Serving"}}
	printed(t, "routes", shown, shown.Lines)
	if text := strings.Join(shown.Lines(&console.Console{}), "\n"); strings.Contains(text, "secret") {
		t.Errorf("it shows the value of a header:\n%s", text)
	}
	for pools, want := range map[string]bool{"": true, "next": true, "small": true, "other": false} {
		var names []string
		if pools != "" {
			names = []string{pools}
		}
		if all[0].names(names) != want {
			t.Errorf("the route names %q: %v", pools, !want)
		}
	}
	waiting := canary()
	waiting.Status.Conditions = nil
	if r := OfRoute(waiting); len(r.Problems) != 1 || r.Problems[0].Reason != "Waiting" {
		t.Errorf("without a status: %+v", r.Problems)
	}
}

// TestRoutesOfPickersAlone: without a cluster there are no conditions.
func TestRoutesOfPickersAlone(t *testing.T) {
	one, two := counted(1), counted(2)
	all := RoutesOfPickers([]PickerReport{{Live: one}, {Live: two}})
	if len(all) != 2 || all[0].Requests["llm/chat"] != 27 || all[0].Left["llm/chat"]["down"] != 6 || all[0].Accepted != "" {
		t.Errorf("%+v", all[0])
	}
	if one.Routes[0].Requests["llm/chat"] != 9 {
		t.Errorf("what a picker reports was changed: %+v", one.Routes[0])
	}
	if got := all[0].lines(&console.Console{}); !slices.Contains(got, "  requests: chat 27 (left: 6 down, 3 full), next 3") {
		t.Errorf("%q", got)
	}
}

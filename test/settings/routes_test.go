package settings

import (
	"testing"

	"k8s.io/utils/dump"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
)

// TestEveryFieldOfARouteHasAnEffect on the routes that pickers get.
func TestEveryFieldOfARouteHasAnEffect(t *testing.T) {
	t.Parallel()
	defaults, err := defaultPolicy()
	if err != nil {
		t.Fatal(err)
	}
	routed := func(spec map[string]any) (string, error) {
		o, err := admit(t, v1alpha1.KindModelRoute, spec)
		if err != nil {
			return "", err
		}
		r, err := crdadmission.Route(o)
		if err != nil {
			return "", err
		}
		translator, err := config.NewTranslator(config.Settings{}, defaults)
		if err != nil {
			t.Fatal(err)
		}
		state := translator.Translate(config.Objects{Routes: []*v1alpha1.ModelRoute{r}})
		return dump.ForHash(state.RouteSpecs), nil
	}
	spec := map[string]any{
		"models": []any{"m"},
		"rules": []any{map[string]any{
			"matches": []any{map[string]any{
				"tenant": "t", "headers": []any{map[string]any{"name": "n", "value": "v"}},
			}},
			"backends":                   []any{map[string]any{"pool": "a", "weight": 2, "modelName": "a"}},
			"fallback":                   []any{map[string]any{"pool": "b", "modelName": "b"}},
			"fallbackOn":                 []any{"Full"},
			"fallbackWithinMilliseconds": 5,
			"sticky":                     "Session",
			"mirrors":                    []any{map[string]any{"pool": "c", "modelName": "c", "percent": 5}},
		}},
		"timeouts": map[string]any{"requestSeconds": 5},
		"limits":   map[string]any{"requestsPerMinute": 5, "maxConcurrent": 5},
	}
	before, err := routed(spec)
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, f := range fields(t) {
		if f.kind != v1alpha1.KindModelRoute {
			continue
		}
		checked++
		holder, name := f.at(spec), last(f.path)
		if holder == nil || holder[name] == nil {
			t.Errorf("the route of this test does not set %s", f)
			continue
		}
		present, has := holder[name], false
		for _, value := range candidates(t, name, f.schema, present) {
			holder[name] = value
			if after, err := routed(spec); err == nil && after != before {
				has = true
			}
		}
		if holder[name] = present; !has {
			t.Errorf("%s has no effect on the routes of pickers", f)
		}
	}
	if checked == 0 {
		t.Error("no field was checked")
	}
}

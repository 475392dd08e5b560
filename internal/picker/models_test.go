package picker

import (
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
)

// A misspelled model would otherwise look fine: the pool is ready, and all requests get the engine's 404.
func TestAnEngineOfAnotherModelIsLoggedOnce(t *testing.T) {
	var logs []string
	p := New(Options{Now: newClock().Now, Log: funcr.New(func(_, args string) { logs = append(logs, args) }, funcr.Options{})})
	spec := testSpec(t, 1)
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	id := spec.Endpoints[0].ID
	adapter := ListedModel{Name: "lora", Parent: spec.Model}
	for _, right := range [][]ListedModel{nil, {{Name: spec.Model}}, {{Name: "other"}, {Name: spec.Model}, adapter}} {
		if p.ObserveModels(id, right); len(logs) > 0 {
			t.Fatalf("%v: logs %q", right, logs)
		}
		if want := (Listing{Endpoints: min(1, len(right))}); !cmp.Equal(want, p.Stats()[0].Listing) {
			t.Errorf("%v: %+v", right, p.Stats()[0].Listing)
		}
	}
	for range 3 {
		p.ObserveModels(id, []ListedModel{{Name: "Qwen/Qwen3"}, {Name: spec.Aliases[0]}}) // requests for the name get 404 all the same
	}
	want := Listing{Endpoints: 1, Lacking: 1, Pod: spec.Endpoints[0].Pod, Served: []string{"Qwen/Qwen3", spec.Aliases[0]}}
	if diff := cmp.Diff(want, p.Stats()[0].Listing); diff != "" {
		t.Error(diff)
	}
	if len(logs) != 1 || !strings.Contains(logs[0], `"served"=["Qwen/Qwen3" "`+spec.Aliases[0]+`"]`) {
		t.Errorf("logs %q", logs)
	}
}

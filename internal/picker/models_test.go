package picker

import (
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
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
	for _, right := range [][]ListedModel{nil, {{Name: spec.Model}}, {{Name: "other"}, {Name: spec.Aliases[0]}, adapter}} {
		if p.ObserveModels(id, right); len(logs) > 0 {
			t.Fatalf("%v: logs %q", right, logs)
		}
	}
	for range 3 {
		p.ObserveModels(id, []ListedModel{{Name: "Qwen/Qwen3"}, {Name: "qwen"}})
	}
	if len(logs) != 1 || !strings.Contains(logs[0], `"served"=["Qwen/Qwen3" "qwen"]`) {
		t.Errorf("logs %q", logs)
	}
}

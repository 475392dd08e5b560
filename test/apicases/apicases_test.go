package apicases_test

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
	"github.com/kvasir-dev/kvasir/test/apicases"
)

// outcome is what became of a case.
type outcome struct {
	kind string
	// given is the object as it was written, got as it was admitted; got is nil where it was refused.
	given, got map[string]any
	// change reports that there was an object before.
	change bool
	// refusal is the message.
	refusal string
}

func outcomes(t *testing.T) []outcome {
	t.Helper()
	a, err := crdadmission.New()
	if err != nil {
		t.Fatal(err)
	}
	var all []outcome
	for about, group := range apicases.Groups() {
		for label, tc := range group.Cases {
			before, after := group.Texts(tc)
			o := outcome{kind: group.Kind, change: before != nil}
			if err := yaml.Unmarshal(after, &o.given); err != nil {
				t.Fatalf("%s: %s: %v", about, label, err)
			}
			var old *unstructured.Unstructured
			if before != nil {
				if old, err = a.Admit(t.Context(), before, nil); err != nil {
					t.Fatalf("%s: %s: the object before: %v", about, label, err)
				}
			}
			if got, err := a.Admit(t.Context(), after, old); err != nil {
				o.refusal = err.Error()
			} else {
				o.got = got.Object
			}
			all = append(all, o)
		}
	}
	return all
}

func TestEveryRuleIsTestedBothWays(t *testing.T) {
	all := outcomes(t)
	rules, _ := schemaFacts(t)
	for _, r := range rules {
		kept, broken := false, false
		for _, o := range all {
			if o.kind != r.kind {
				continue
			}
			broken = broken || strings.Contains(o.refusal, r.message) && len(r.path.values(o.given)) > 0
			kept = kept || o.got != nil && len(r.path.values(o.got)) > 0 && (o.change || !r.transition)
		}
		if !kept {
			t.Errorf("no case keeps the rule %s", r)
		}
		if !broken {
			t.Errorf("no case breaks the rule %s", r)
		}
	}
	t.Logf("%d rules, %d cases", len(rules), len(all))
}

func TestEveryDefaultIsTested(t *testing.T) {
	all := outcomes(t)
	_, presets := schemaFacts(t)
	for _, p := range presets {
		seen := false
		for _, o := range all {
			if o.kind != p.kind || o.got == nil || len(p.path.values(o.given)) > 0 {
				continue
			}
			for _, value := range p.path.values(o.got) {
				seen = true
				if !within(p.value, value) {
					t.Errorf("%s: a field that was left out is %v, its default is %v", p, value, p.value)
				}
			}
		}
		if !seen {
			t.Errorf("no case leaves %s to its default", p)
		}
	}
	t.Logf("%d defaults", len(presets))
}

// within reports whether a value has all that a default has. An object can have more: defaults of its own fields.
func within(preset, value any) bool {
	fields, ok := preset.(map[string]any)
	if !ok {
		return reflect.DeepEqual(normal(preset), normal(value))
	}
	given, ok := value.(map[string]any)
	if !ok {
		return false
	}
	for name, field := range fields {
		if !within(field, given[name]) {
			return false
		}
	}
	return true
}

// normal makes integers of one type.
func normal(v any) any {
	if n, ok := v.(float64); ok && n == float64(int64(n)) {
		return int64(n)
	}
	return v
}

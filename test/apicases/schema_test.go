package apicases_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/kvasir-dev/kvasir/config/crd"
)

// rule is one x-kubernetes-validations of a schema.
type rule struct {
	kind    string
	path    path
	message string
	// transition reports that the rule compares with the object before.
	transition bool
}

func (r rule) String() string { return r.kind + r.path.String() + ": " + r.message }

// preset is one default of a schema.
type preset struct {
	kind  string
	path  path
	value any
}

func (p preset) String() string { return p.kind + p.path.String() }

// path of a field: property names, and [] for the items of a list.
type path []string

func (p path) String() string {
	return strings.ReplaceAll("."+strings.Join(p, "."), ".[]", "[]")
}

// values at a path in an object. There are several below lists, and none where the field is absent.
func (p path) values(object any) []any {
	if len(p) == 0 {
		return []any{object}
	}
	var all []any
	switch o := object.(type) {
	case map[string]any:
		if v, ok := o[p[0]]; ok {
			all = p[1:].values(v)
		}
	case []any:
		for _, item := range o {
			all = append(all, p[1:].values(item)...)
		}
	}
	return all
}

// schemaFacts are all rules of the definitions, and all defaults of specs. Templates of pods are left out: they are
// Kubernetes' own.
func schemaFacts(t *testing.T) (rules []rule, presets []preset) {
	t.Helper()
	defs, err := crd.Definitions()
	if err != nil {
		t.Fatal(err)
	}
	for _, def := range defs {
		kind := def.Spec.Names.Kind
		var walk func(at path, s *apiextensionsv1.JSONSchemaProps)
		walk = func(at path, s *apiextensionsv1.JSONSchemaProps) {
			for _, v := range s.XValidations {
				rules = append(rules, rule{kind: kind, path: slices.Clone(at), message: v.Message, transition: strings.Contains(v.Rule, "oldSelf")})
			}
			if s.Default != nil {
				var value any
				if err := json.Unmarshal(s.Default.Raw, &value); err != nil {
					t.Fatal(err)
				}
				presets = append(presets, preset{kind: kind, path: slices.Clone(at), value: value})
			}
			for name, p := range s.Properties {
				below := append(slices.Clone(at), name)
				if !slices.Contains([]string{".spec.template", ".spec.picker.pod", ".status"}, below.String()) {
					walk(below, &p)
				}
			}
			if s.Items != nil {
				walk(append(slices.Clone(at), "[]"), s.Items.Schema)
			}
		}
		walk(nil, def.Spec.Versions[0].Schema.OpenAPIV3Schema)
	}
	return rules, presets
}

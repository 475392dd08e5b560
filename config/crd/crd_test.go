package crd

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// annotationLimit is the most that kubectl apply can keep of an object in an annotation, in bytes.
const annotationLimit = 262144

func definitions(t *testing.T) []*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	defs, err := Definitions()
	if err != nil {
		t.Fatal(err)
	}
	if len(defs) != 4 {
		t.Fatalf("there are %d definitions, want 4", len(defs))
	}
	return defs
}

func root(def *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.JSONSchemaProps {
	return def.Spec.Versions[0].Schema.OpenAPIV3Schema
}

// at returns the schema of the field at a path of property names.
func at(t *testing.T, s *apiextensionsv1.JSONSchemaProps, path ...string) *apiextensionsv1.JSONSchemaProps {
	t.Helper()
	for i, name := range path {
		next, ok := s.Properties[name]
		if !ok {
			t.Fatalf("there is no field %s", strings.Join(path[:i+1], "."))
		}
		s = &next
	}
	return s
}

func TestKubectlApplyCanAnnotateEachDefinition(t *testing.T) {
	for _, def := range definitions(t) {
		raw, err := json.Marshal(def)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes", def.Name, len(raw))
		if len(raw) >= annotationLimit {
			t.Errorf("%s has %d bytes in JSON, the limit is %d", def.Name, len(raw), annotationLimit)
		}
	}
}

func TestLabelsOfPodTemplatesAreKept(t *testing.T) {
	pool := root(definitions(t)[0])
	meta := at(t, pool, "spec", "template", "metadata")
	for _, name := range []string{"labels", "annotations", "name", "namespace", "finalizers"} {
		if _, ok := meta.Properties[name]; !ok {
			t.Errorf("spec.template.metadata has no %s, so it would be pruned", name)
		}
	}
	at(t, pool, "spec", "template", "spec", "containers")
}

// foreign are fields whose schemas belong to Kubernetes or Gateway API, with the limits of those.
var foreign = []string{
	".metadata", ".spec.template", ".spec.picker.pod.tolerations", ".spec.picker.pod.affinity", ".spec.picker.resources",
	".spec.resources", ".spec.pod.tolerations", ".spec.pod.affinity",
	".spec.engine.events.reporter.resources", ".spec.engine.networkPolicy.from[].podSelector",
	".spec.engine.networkPolicy.from[].namespaceSelector", ".spec.placement.islands[].tolerations",
	".spec.placement.islands[].engine.resources", ".spec.roles[].engine.resources", ".spec.gateway.parentRefs", ".spec.model.tokenizer.volume.image",
	".spec.pod.tolerations", ".spec.pod.affinity", ".spec.resources", ".status.conditions", ".status.ancestors",
}

// own calls visit for each schema that is ours, with its path: a dot before a field, [] for items and values.
func own(path string, s *apiextensionsv1.JSONSchemaProps, visit func(path string, s *apiextensionsv1.JSONSchemaProps)) {
	if slices.Contains(foreign, path) {
		return
	}
	visit(path, s)
	for name, p := range s.Properties {
		own(path+"."+name, &p, visit)
	}
	if s.Items != nil && s.Items.Schema != nil {
		own(path+"[]", s.Items.Schema, visit)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		own(path+"[]", s.AdditionalProperties.Schema, visit)
	}
}

func TestEveryFieldHasALimit(t *testing.T) {
	for _, def := range definitions(t) {
		own("", root(def), func(path string, s *apiextensionsv1.JSONSchemaProps) {
			switch {
			case path == ".apiVersion" || path == ".kind":
			case s.XIntOrString:
				// The text is bounded; a Quantity is by its rule.
				if s.MaxLength == nil && len(s.XValidations) == 0 {
					t.Errorf("%s%s: an integer or string has neither maxLength nor a rule", def.Spec.Names.Kind, path)
				}
			case s.Type == "string" && len(s.Enum) == 0 && s.Format == "" && s.MaxLength == nil:
				t.Errorf("%s%s: a string has no maxLength", def.Spec.Names.Kind, path)
			case s.Type == "array" && s.MaxItems == nil:
				t.Errorf("%s%s: a list has no maxItems", def.Spec.Names.Kind, path)
			case s.Type == "array" && s.XListType == nil:
				t.Errorf("%s%s: a list has no list type", def.Spec.Names.Kind, path)
			case s.AdditionalProperties != nil && s.MaxProperties == nil:
				t.Errorf("%s%s: a map has no maxProperties", def.Spec.Names.Kind, path)
			case s.Type == "integer" && s.Minimum == nil:
				t.Errorf("%s%s: a number has no minimum", def.Spec.Names.Kind, path)
			case s.Type == "integer" && s.Maximum == nil && !strings.HasPrefix(path, ".status."):
				t.Errorf("%s%s: a number has no maximum", def.Spec.Names.Kind, path)
			case s.Type == "boolean":
				t.Errorf("%s%s: a boolean cannot grow; use an enum", def.Spec.Names.Kind, path)
			}
		})
	}
}

// Checking them would need steps that internal/config/crdadmission does not take.
func TestThereAreNoEmbeddedResources(t *testing.T) {
	files, err := filepath.Glob("bases/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are %d files, error %v", len(files), err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, extension := range []string{"x-kubernetes-embedded-resource", "x-kubernetes-preserve-unknown-fields"} {
			if strings.Contains(string(raw), extension) {
				t.Errorf("%s has %s", file, extension)
			}
		}
	}
}

func TestEveryFieldIsDescribed(t *testing.T) {
	for _, def := range definitions(t) {
		own("", root(def), func(path string, s *apiextensionsv1.JSONSchemaProps) {
			below := func(parent string) bool {
				return strings.HasPrefix(path, parent+".") || strings.HasPrefix(path, parent+"[")
			}
			name := path[strings.LastIndexByte(path, '.')+1:]
			switch {
			case path == "" || path == ".apiVersion" || path == ".kind" || strings.HasSuffix(path, "[]"):
			case below(".spec.picker.pod"), below(".spec.pod"): // stripped
			case path == ".status" && def.Spec.Names.Kind == "RoutingPolicy":
			case !strings.HasPrefix(s.Description, name+" ") && !strings.HasPrefix(s.Description, name+":") && !strings.HasPrefix(s.Description, name+","):
				t.Errorf("%s%s: the description %q does not begin with the name", def.Spec.Names.Kind, path, s.Description)
			}
		})
	}
}

// Where an object has a default, it repeats one of the defaults inside it, so that the default passes the schema on its
// own. The two must agree.
func TestTheDefaultOfAnObjectAgreesWithTheDefaultsInIt(t *testing.T) {
	checked := 0
	for _, def := range definitions(t) {
		own("", root(def), func(path string, s *apiextensionsv1.JSONSchemaProps) {
			if s.Type != "object" || s.Default == nil {
				return
			}
			var value map[string]any
			if err := json.Unmarshal(s.Default.Raw, &value); err != nil {
				t.Fatal(err)
			}
			for name, got := range value {
				checked++
				p := s.Properties[name]
				if path == ".spec.strategy" && name == "type" {
					continue // required where strategy is set
				}
				if p.Default == nil {
					t.Errorf("%s%s: the default sets %s, which has none", def.Spec.Names.Kind, path, name)
					continue
				}
				var want any
				if err := json.Unmarshal(p.Default.Raw, &want); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s%s: the default of the object and of %s differ (-field +object):\n%s", def.Spec.Names.Kind, path, name, diff)
				}
			}
		})
	}
	if checked < 20 {
		t.Errorf("only %d defaults were compared", checked)
	}
}

func TestEachDefinitionIsInTheKustomization(t *testing.T) {
	raw, err := os.ReadFile("kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var k struct {
		Resources []string `json:"resources"`
	}
	if err := yaml.Unmarshal(raw, &k); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("bases/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(files, k.Resources); diff != "" {
		t.Errorf("the files and the kustomization differ (-files +kustomization):\n%s", diff)
	}
}

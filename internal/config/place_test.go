package config

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestProblemsNameTheirLine: each mistake is one line with its place, what was probably meant, and nothing said twice.
func TestProblemsNameTheirLine(t *testing.T) {
	pool := func(rest string) string {
		return "apiVersion: kvasir.dev/v1alpha1\nkind: InferencePool\nmetadata: {name: m}\nspec:\n  model: {name: m}\n  selector: {matchLabels: {app: m}}\n" + rest
	}
	const line = 7 // the first that a case adds
	for name, tc := range map[string]struct{ file, text, want string }{
		"an unknown field":           {"a.yaml", pool("  selecter: {}\n"), fmt.Sprintf(`a.yaml:%d:3: InferencePool default/m: spec.selecter: unknown field, did you mean "selector"?`, line)},
		"an unknown field, far off":  {"a.yaml", pool("  gpu: 1\n"), fmt.Sprintf(`a.yaml:%d:3: InferencePool default/m: spec.gpu: unknown field`, line)},
		"a field of a field":         {"a.yaml", pool("  engine:\n    event: {}\n"), fmt.Sprintf(`a.yaml:%d:5: InferencePool default/m: spec.engine.event: unknown field, did you mean "events"?`, line+1)},
		"a value in another case":    {"a.yaml", pool("  engine: {type: vllm}\n"), fmt.Sprintf(`a.yaml:%d:12: InferencePool default/m: spec.engine.type: Unsupported value: "vllm", did you mean "VLLM"? Supported values: "VLLM", "SGLang" (the rules cannot be checked before this is mended)`, line)},
		"a text for a number":        {"a.yaml", pool("  replicas: 'three'\n"), fmt.Sprintf(`a.yaml:%d:3: InferencePool default/m: spec.replicas: must be of type integer, not string (the rules cannot be checked before this is mended)`, line)},
		"a tab":                      {"a.yaml", pool("\treplicas: 1\n"), fmt.Sprintf(`a.yaml:%d: reading YAML: found character that cannot start any token (the line is indented with a tab; YAML takes spaces only)`, line)},
		"a key twice":                {"a.yaml", pool("spec: {}\n"), fmt.Sprintf(`a.yaml:%d: InferencePool default/m: reading YAML: key "spec" already set in map`, line)},
		"a kind with a typo":         {"a.yaml", "\n\napiVersion: kvasir.dev/v1alpha1\nkind: InferencPool\nmetadata: {name: m}\n", `a.yaml:3:1: InferencPool default/m: kind "InferencPool" of "kvasir.dev/v1alpha1" is not read here, did you mean "InferencePool"?`},
		"a name":                     {"a.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: A_b}\n", `a.yaml:3:12: Secret default/A_b: metadata.name: Invalid value: "A_b": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com')`},
		"a value of a slice":         {"a.yaml", "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s}\nports:\n- {port: x}\n", `a.yaml:5:1: EndpointSlice default/s: ports.port: must be of type int32, not string`},
		"JSON that ends":             {"a.json", "{\"a\":\n", `a.json:2:1: reading JSON: unexpected EOF`},
		"JSON with a comma":          {"a.json", "{\n  \"a\": 1,\n}\n", `a.json:3:1: reading JSON: invalid character '}' looking for beginning of object key string`},
		"the second object of JSON":  {"a.json", "{\"apiVersion\":\"v1\",\"kind\":\"Secret\",\"metadata\":{\"name\":\"s\"}}\n  {\"apiVersion\":\"v1\",\"kind\":\"Secret\",\"metadata\":{\"name\":\"B\"}}", `a.json:2:50: Secret default/B: metadata.name: Invalid value: "B": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com')`},
		"bytes that are not a text":  {"a.yaml", "a: 1\n\x80", `a.yaml:1: reading YAML: invalid leading UTF-8 octet`},
		"a document behind another":  {"a.yaml", smallPolicy + "---\n# why\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndat: {}\n", `a.yaml:11:1: Secret default/s: dat: unknown field`},
		"a pool that is there twice": {"a.yaml", smallPool + "---\n" + smallPool, `a.yaml:6:1: InferencePool default/m: the object is also in a.yaml, line 1; that one is applied`},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems := load(t, open(t, tc.file, tc.text))
			if !slices.Contains(problems, tc.want) {
				t.Errorf("%s\nis not among\n%q", tc.want, problems)
			}
		})
	}
}

func TestSteps(t *testing.T) {
	for path, want := range map[string][]string{
		"":                            nil,
		"spec":                        {"spec"},
		"spec.tenants[2].name":        {"spec", "tenants", "2", "name"},
		"metadata.labels[app.io/x].y": {"metadata", "labels", "app.io/x", "y"},
		"a[1][2]":                     {"a", "1", "2"},
		"a[":                          {"a", ""},
		"[x":                          {"x"},
		".":                           {""},
	} {
		if diff := cmp.Diff(want, steps(path)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", path, diff)
		}
	}
}

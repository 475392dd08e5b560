package config

import (
	"fmt"
	"slices"
	"strings"
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
		"an unknown field":            {"a.yaml", pool("  selecter: {}\n"), fmt.Sprintf(`a.yaml:%d:3: InferencePool default/m: spec.selecter: unknown field, did you mean "selector"?`, line)},
		"an unknown field, far off":   {"a.yaml", pool("  gpu: 1\n"), fmt.Sprintf(`a.yaml:%d:3: InferencePool default/m: spec.gpu: unknown field`, line)},
		"a field of a field":          {"a.yaml", pool("  engine:\n    event: {}\n"), fmt.Sprintf(`a.yaml:%d:5: InferencePool default/m: spec.engine.event: unknown field, did you mean "events"?`, line+1)},
		"a value in another case":     {"a.yaml", pool("  engine: {type: vllm}\n"), fmt.Sprintf(`a.yaml:%d:12: InferencePool default/m: spec.engine.type: Unsupported value: "vllm", did you mean "VLLM"? Supported values: "VLLM", "SGLang" (the rules cannot be checked before this is mended)`, line)},
		"a text for a number":         {"a.yaml", pool("  replicas: 'three'\n"), fmt.Sprintf(`a.yaml:%d:3: InferencePool default/m: spec.replicas: must be of type integer, not string (the rules cannot be checked before this is mended)`, line)},
		"a tab":                       {"a.yaml", pool("\treplicas: 1\n"), fmt.Sprintf(`a.yaml:%d:1: reading YAML: found character that cannot start any token (the line is indented with a tab; YAML takes spaces only)`, line)},
		"a key twice":                 {"a.yaml", pool("spec: {}\n"), fmt.Sprintf(`a.yaml:%d:1: InferencePool default/m: reading YAML: key "spec" already set in map`, line)},
		"a kind with a typo":          {"a.yaml", "\n\napiVersion: kvasir.dev/v1alpha1\nkind: InferencPool\nmetadata: {name: m}\n", `a.yaml:3:1: InferencPool default/m: kind "InferencPool" of "kvasir.dev/v1alpha1" is not read here, did you mean "InferencePool"?`},
		"a name":                      {"a.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: A_b}\n", `a.yaml:3:12: Secret default/A_b: metadata.name: Invalid value: "A_b": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com')`},
		"a value of a slice":          {"a.yaml", "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s}\nports:\n- {port: x}\n", `a.yaml:5:1: EndpointSlice default/s: ports.port: must be of type int32, not string`},
		"a field of a slice":          {"a.yaml", strings.Replace(smallSlice, "addressType", "addresType", 1), `a.yaml:4:1: EndpointSlice default/m-a: addresType: unknown field, did you mean "addressType"?`},
		"a field in a slice's list":   {"a.yaml", strings.Replace(smallSlice, "targetRef", "targtRef", 1), `a.yaml:7:28: EndpointSlice default/m-a: endpoints[0].targtRef: unknown field, did you mean "targetRef"?`},
		"a port's name":               {"a.yaml", strings.Replace(smallSlice, "kv-events", "kv-event", 1), `a.yaml:5:36: EndpointSlice default/m-a: ports[1].name: Invalid value: "kv-event": ports of this name are not used, did you mean "kv-events"?`},
		"JSON that ends":              {"a.json", "{\"a\":\n", `a.json:2:1: reading JSON: unexpected EOF`},
		"JSON with a comma":           {"a.json", "{\n  \"a\": 1,\n}\n", `a.json:3:1: reading JSON: invalid character '}' looking for beginning of object key string`},
		"the second object of JSON":   {"a.json", "{\"apiVersion\":\"v1\",\"kind\":\"Secret\",\"metadata\":{\"name\":\"s\"}}\n  {\"apiVersion\":\"v1\",\"kind\":\"Secret\",\"metadata\":{\"name\":\"B\"}}", `a.json:2:50: Secret default/B: metadata.name: Invalid value: "B": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com')`},
		"bytes that are not a text":   {"a.yaml", "a: 1\n\x80", `a.yaml:2:1: reading YAML: invalid leading UTF-8 octet`},
		"a control character":         {"a.yaml", "a: 1\nb: x\x01\n", `a.yaml:2:5: reading YAML: control characters are not allowed`},
		"a colon in a value":          {"a.yaml", pool("  engine: {type: a: b}\n"), fmt.Sprintf(`a.yaml:%d:19: reading YAML: did not find expected ',' or '}', while parsing a flow mapping`, line)},
		"an indentation":              {"a.yaml", pool("   replicas: 1\n"), fmt.Sprintf(`a.yaml:%d:4: reading YAML: did not find expected key, while parsing a block mapping from line 5`, line)},
		"a text without an end":       {"a.yaml", pool("  replicas: \"1\n---\n" + smallPolicy), fmt.Sprintf(`a.yaml:%d:13: reading YAML: found unexpected end of stream, while scanning a quoted scalar`, line)},
		"a bracket without an end":    {"a.yaml", pool("  engine: {type: VLLM\n\n"), fmt.Sprintf(`a.yaml:%d:11: reading YAML: did not find expected ',' or '}', while parsing a flow mapping`, line)},
		"a list without an end":       {"a.yaml", smallPolicy + "--- {a: [\n", `a.yaml:5:10: reading YAML: did not find expected node content`},
		"an anchor that is not there": {"a.yaml", smallPolicy + "--- {kind: *x}\n", `a.yaml:5:12: reading YAML: unknown anchor 'x' referenced`},
		"a document behind another":   {"a.yaml", smallPolicy + "---\n# why\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndat: {}\n", `a.yaml:11:1: Secret default/s: dat: unknown field, did you mean "data"?`},
		"a pool that is there twice":  {"a.yaml", smallPool + "---\n" + smallPool, `a.yaml:6:1: InferencePool default/m: the object is also in a.yaml, line 1; that one is applied`},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems := load(t, open(t, tc.file, tc.text))
			if !slices.Contains(problems, tc.want) {
				t.Errorf("%s\nis not among\n%q", tc.want, problems)
			}
		})
	}
}

// A mistake is one line, and what follows from it comes after it and names it.
func TestTheCauseComesFirstAndOnce(t *testing.T) {
	const unchecked = " (the rules cannot be checked before this is mended)"
	policy := func(spec string) string {
		return "apiVersion: kvasir.dev/v1alpha1\nkind: RoutingPolicy\nmetadata: {name: r}\nspec:\n  " + spec + "\n"
	}
	refused := strings.Replace(smallPool, "spec: {", "spec: {nam: x, ", 1)
	for name, tc := range map[string]struct {
		files []string
		want  []string
	}{
		"a boolean for a word": {[]string{"a.yaml", smallPool, "p.yaml", policy("{targetRefs: [{name: m}], decisions: {answerHeaders: on}}")},
			[]string{`p.yaml:5:41: RoutingPolicy default/r: spec.decisions.answerHeaders: Unsupported value: true: supported values: "Never", "OnRequest", "Always"` + unchecked}},
		"an object for a list": {[]string{"a.yaml", smallPool, "p.yaml", policy("targetRefs: {name: m}")},
			[]string{"p.yaml:5:3: RoutingPolicy default/r: spec.targetRefs: must be of type array, not object" + unchecked}},
		"a text for an object in a list": {[]string{"a.yaml", smallPool, "p.yaml", policy("targetRefs: [m]")},
			[]string{"p.yaml:5:16: RoutingPolicy default/r: spec.targetRefs[0]: must be of type object, not string" + unchecked}},
		"a pool with a typo": {[]string{"a.yaml", strings.ReplaceAll(smallPool, "{name: m}", "{name: demo}"), "p.yaml", policy("targetRefs: [{name: demmo}]")},
			[]string{`p.yaml:5:17: RoutingPolicy default/r: spec.targetRefs[0].name: Not found: "InferencePool default/demmo": did you mean "demo"?`}},
		"a pool elsewhere": {[]string{"a.yaml", strings.Replace(smallPool, "{name: m}", "{name: m, namespace: llm}", 1), "p.yaml", policy("targetRefs: [{name: m}]")},
			[]string{`p.yaml:5:17: RoutingPolicy default/r: spec.targetRefs[0].name: Not found: "InferencePool default/m": there is one in the namespace llm`}},
		"a pool that is refused": {[]string{"a.yaml", smallSlice, "p.yaml", policy("targetRefs: [{name: m}]"), "z.yaml", refused}, []string{
			"z.yaml:4:8: InferencePool default/m: spec.nam: unknown field",
			`a.yaml:3:32: EndpointSlice default/m-a: metadata.labels[kvasir.dev/pool]: Not found: "InferencePool default/m": it is refused (z.yaml:4:8)`,
			`p.yaml:5:17: RoutingPolicy default/r: spec.targetRefs[0].name: Not found: "InferencePool default/m": it is refused (z.yaml:4:8)`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems := load(t, open(t, tc.files...))
			if diff := cmp.Diff(tc.want, problems); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
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

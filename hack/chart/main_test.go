package main

import (
	"strings"
	"testing"
)

func TestDefinition(t *testing.T) {
	got, err := definition("---\nkind: K\nmetadata:\n  annotations:\n    a: b\n  name: n\nspec: {description: 'a {{ b }}'}\n")
	if err != nil {
		t.Fatal(err)
	}
	want := "{{- if .Values.crds.install }}\nkind: K\nmetadata:\n  annotations:\n    helm.sh/resource-policy: keep\n    a: b\n  name: n\n" +
		"spec: {description: 'a {{ \"{{\" }} b }}'}\n{{- end }}\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if _, err := definition("kind: K\nmetadata:\n  name: n\n"); err == nil {
		t.Error("a definition that would go with the chart is taken")
	}
}

func TestRules(t *testing.T) {
	files := map[string]string{}
	text := "kind: ClusterRole\nmetadata:\n  name: a\nrules:\n- verbs: [get] # why\n---\nkind: RoleBinding\nmetadata:\n  name: b\n---\nkind: Role\nmetadata:\n  name: c\nrules:\n- verbs: [list]\n"
	if err := rules(text, files); err != nil {
		t.Fatal(err)
	}
	if len(files) != 2 || files["files/roles/a.yaml"] != "- verbs: [get] # why" || files["files/roles/c.yaml"] != "- verbs: [list]" {
		t.Errorf("%q", files)
	}
	if err := rules("kind: Role\nmetadata:\n  name: d\nrules: []\n", files); err == nil {
		t.Error("a role whose rules are not found is taken")
	}
}

func TestReadme(t *testing.T) {
	got, err := readme("# All of it.\n\n# One\n# or more.\na: 1\nb:\n  # Two | three.\n  c: []\n  d: {e: f}\n# Both.\ng:\n  h: \"\"\n")
	if err != nil {
		t.Fatal(err)
	}
	want := "| `a` | `1` | One or more. |\n| `b.c` | `[]` | Two \\| three. |\n| `b.d` | `{\"e\":\"f\"}` |  |\n| `g` | | Both. |\n| `g.h` | `\"\"` |  |\n"
	if _, table, _ := strings.Cut(got, "|---|---|---|\n"); table != want {
		t.Errorf("got\n%s\nwant\n%s", table, want)
	}
	if _, err := readme("- a\n"); err == nil {
		t.Error("a list is taken for values")
	}
}

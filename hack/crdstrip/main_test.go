package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const head = `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: things.example.com
spec:
  group: example.com
  names:
    kind: Thing
    plural: things
  scope: Namespaced
  versions:
  - name: v1
    schema:
      openAPIV3Schema:
        description: a thing
        properties:
          spec:
            description: its spec
            properties:
`

const tail = `            type: object
        type: object
    served: true
    storage: true
`

// full has a description at every schema; bare is the same without those below spec.template and spec.picker.pod.
const (
	full = `              other:
                description: stays
                properties:
                  template:
                    description: stays too
                    type: string
                type: object
              picker:
                description: stays
                properties:
                  pod:
                    description: stays
                    properties:
                      labels:
                        additionalProperties:
                          description: goes
                          type: string
                        description: goes
                        type: object
                    type: object
                type: object
              template:
                description: stays
                properties:
                  description:
                    description: goes, but not the field of that name
                    type: string
                  list:
                    description: goes
                    items:
                      description: goes
                      properties:
                        deep:
                          description: goes
                          type: string
                      type: object
                    type: array
                type: object
`
	bare = `              other:
                description: stays
                properties:
                  template:
                    description: stays too
                    type: string
                type: object
              picker:
                description: stays
                properties:
                  pod:
                    description: stays
                    properties:
                      labels:
                        additionalProperties:
                          type: string
                        type: object
                    type: object
                type: object
              template:
                description: stays
                properties:
                  description:
                    type: string
                  list:
                    items:
                      properties:
                        deep:
                          type: string
                      type: object
                    type: array
                type: object
`
)

func TestOnlyDescriptionsBelowEmbeddedTypesGo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "crd.yaml")
	if err := os.WriteFile(file, []byte(head+full+tail), 0o644); err != nil {
		t.Fatal(err)
	}
	// The second run finds nothing left to do.
	for range 2 {
		if err := run([]string{file}); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(head+bare+tail, string(got)); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
}

func TestFilesThatAreNotDefinitionsAreRefused(t *testing.T) {
	cases := map[string]string{
		"not YAML":         "a: [",
		"an unknown field": "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nfoo: 1\n",
		"no versions":      "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n",
		"no schema":        strings.Split(head, "    schema:")[0],
	}
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			if out, err := strip([]byte(text)); err == nil {
				t.Errorf("got %s, want an error", out)
			}
		})
	}
	if err := run(nil); err == nil {
		t.Error("no file is no error")
	}
	if err := run([]string{filepath.Join(t.TempDir(), "missing.yaml")}); err == nil {
		t.Error("a missing file is no error")
	}
}

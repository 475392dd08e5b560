// Command crdstrip removes from CustomResourceDefinitions the descriptions of fields that are not ours: those below
// embedded pod templates and pod settings. They repeat the Kubernetes reference and make the definition too large for
// kubectl apply, which keeps a copy of the object in an annotation of at most 262,144 bytes.
//
// Usage: crdstrip FILE... rewrites the files in place.
package main

import (
	"errors"
	"fmt"
	"os"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// stripped are the fields below which descriptions are removed; their own are kept. A field that a kind does not have
// is passed over.
var stripped = [][]string{
	{"spec", "template"},
	{"spec", "picker", "pod"},
	{"spec", "pod"}, // of a fleet
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "crdstrip:", err)
		os.Exit(1)
	}
}

func run(files []string) error {
	if len(files) == 0 {
		return errors.New("no file given")
	}
	for _, file := range files {
		in, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		out, err := strip(in)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := os.WriteFile(file, out, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// strip returns the definition in YAML, keys sorted, without the descriptions below the stripped fields.
func strip(in []byte) ([]byte, error) {
	// A plain map keeps every field, whatever version of the types wrote it.
	var crd map[string]any
	if err := yaml.Unmarshal(in, &crd); err != nil {
		return nil, fmt.Errorf("reading: %w", err)
	}
	var typed apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(in, &typed); err != nil {
		return nil, fmt.Errorf("reading as CustomResourceDefinition: %w", err)
	}
	spec, _ := crd["spec"].(map[string]any)
	versions, _ := spec["versions"].([]any)
	if len(versions) == 0 {
		return nil, errors.New("no versions")
	}
	for _, v := range versions {
		version, _ := v.(map[string]any)
		schema, _ := version["schema"].(map[string]any)
		root, ok := schema["openAPIV3Schema"].(map[string]any)
		if !ok {
			return nil, errors.New("a version has no schema")
		}
		for _, path := range stripped {
			if field := property(root, path); field != nil {
				removeBelow(field)
			}
		}
	}
	out, err := yaml.Marshal(crd)
	if err != nil {
		return nil, fmt.Errorf("writing: %w", err)
	}
	return append([]byte("---\n"), out...), nil
}

// property returns the schema of the field at path, nil when there is none.
func property(schema map[string]any, path []string) map[string]any {
	for _, name := range path {
		properties, _ := schema["properties"].(map[string]any)
		next, ok := properties[name].(map[string]any)
		if !ok {
			return nil
		}
		schema = next
	}
	return schema
}

// removeBelow removes the descriptions of all schemas below this one.
func removeBelow(schema map[string]any) {
	properties, _ := schema["properties"].(map[string]any)
	for _, p := range properties {
		removeAll(p)
	}
	removeAll(schema["items"])
	removeAll(schema["additionalProperties"])
}

// removeAll removes the description of a schema and of all below. A field named "description" is a property and stays.
func removeAll(v any) {
	schema, ok := v.(map[string]any)
	if !ok {
		return
	}
	delete(schema, "description")
	removeBelow(schema)
}

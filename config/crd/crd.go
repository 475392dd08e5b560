// Package crd holds the CustomResourceDefinitions of kvasir.dev, generated from api/v1alpha1 by hack/generate.sh.
//
// They are embedded, so that every program of the project can check and default objects as an API server does.
package crd

import (
	"embed"
	"fmt"
	"io/fs"
	"path"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

//go:embed bases/*.yaml
var bases embed.FS

// Definitions returns the definitions, in the order of their file names. Every call returns fresh objects.
func Definitions() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	entries, err := fs.ReadDir(bases, "bases")
	if err != nil {
		return nil, fmt.Errorf("listing the embedded definitions: %w", err)
	}
	defs := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(entries))
	for _, entry := range entries {
		raw, err := fs.ReadFile(bases, path.Join("bases", entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("reading the embedded definition: %w", err)
		}
		def := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(raw, def); err != nil {
			return nil, fmt.Errorf("reading %s: %w", entry.Name(), err)
		}
		defs = append(defs, def)
	}
	return defs, nil
}

// Command crdcheck reports whether an API server would accept CustomResourceDefinitions: it runs the checks of a create
// request, those of the structure, of the defaults against the schema and the rules, and of the cost of evaluating the
// rules.
//
// Usage: crdcheck FILE...
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "crdcheck:", err)
		os.Exit(1)
	}
}

func run(files []string) error {
	if len(files) == 0 {
		return errors.New("no file given")
	}
	var failed []error
	for _, file := range files {
		if err := check(file); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", file, err))
		}
	}
	return errors.Join(failed...)
}

func check(file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var def apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(raw, &def); err != nil {
		return err
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&def)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&def.Spec)
	var internal apiextensions.CustomResourceDefinition
	err = apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&def, &internal, nil)
	if err != nil {
		return err
	}
	for _, version := range def.Spec.Versions {
		if version.Storage {
			internal.Status.StoredVersions = append(internal.Status.StoredVersions, version.Name)
		}
	}
	return validation.ValidateCustomResourceDefinition(context.Background(), &internal).ToAggregate()
}

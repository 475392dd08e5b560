// Command objects prints what a cluster holds after a page of the docs was followed: the manifests of the page that are
// about gateways, and what the operator makes of its first pool that names a Gateway.
//
//	go run ./hack/objects install-gateways.md
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/config/crd"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/test/manifests"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: objects PAGE")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "objects:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, page string) error {
	all, err := manifests.Of(page)
	if err != nil {
		return fmt.Errorf("reading the manifests of %s: %w", page, err)
	}
	defs, err := crd.Definitions()
	if err != nil {
		return fmt.Errorf("reading the definitions: %w", err)
	}
	a, err := crdadmission.Of(defs)
	if err != nil {
		return fmt.Errorf("reading the definitions: %w", err)
	}
	var objects []*unstructured.Unstructured
	for _, text := range all {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			return fmt.Errorf("reading a manifest of %s: %w", page, err)
		}
		switch {
		case o.GetKind() == "Gateway":
			objects = append(objects, o)
		case o.GroupVersionKind() == v1alpha1.GroupVersion.WithKind("InferencePool"):
			made, err := ofPool(ctx, a, text)
			if err != nil {
				return err
			}
			return write(append(objects, made...))
		}
	}
	return errors.New("no pool is on the page")
}

// ofPool is what the operator makes where Istio is installed.
func ofPool(ctx context.Context, a *crdadmission.Admitter, text string) ([]*unstructured.Unstructured, error) {
	admitted, err := a.Admit(ctx, []byte(text), nil)
	if err != nil {
		return nil, fmt.Errorf("admitting the pool: %w", err)
	}
	pool, err := crdadmission.Pool(admitted)
	if err != nil {
		return nil, fmt.Errorf("reading the pool: %w", err)
	}
	pool.UID = "pool"
	objects, err := resources.Objects(resources.Config{
		PickerImage: "picker", Operator: types.NamespacedName{Namespace: "kvasir", Name: "operator"}, GIE: true, Routes: true,
		Traffic: resources.Traffic{DestinationRule: true},
	}, resources.Input{Pool: pool, Trusted: []byte("-")})
	if err != nil {
		return nil, fmt.Errorf("making the objects of the pool: %w", err)
	}
	kinds := []string{"Service", "InferencePool", "HTTPRoute", "DestinationRule"}
	return slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return !slices.Contains(kinds, o.GetKind()) }), nil
}

func write(objects []*unstructured.Unstructured) error {
	for _, o := range objects {
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			return fmt.Errorf("writing %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		fmt.Printf("---\n%s", text)
	}
	return nil
}

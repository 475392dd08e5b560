// Command objects prints what a cluster holds after a page of the docs was followed: the Gateway of the page, what the
// operator makes of its first pool, and what else of the page is named. A name that no manifest of the page has is that
// of a second pool, which is as the first one. If the name is that of a fleet, it is what the operator makes of the fleet, as the page has
// it last, without pools.
//
//	go run ./hack/objects install-gateways.md
//	go run ./hack/objects install-gateways.md chat-split chat-new
//	go run ./hack/objects pickers.md default
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/config/crd"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/test/manifests"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: objects PAGE [NAME...]")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "objects:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, page string, further []string) error {
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
	var pool string
	fleets := map[string]string{}
	for _, text := range all {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			return fmt.Errorf("reading a manifest of %s: %w", page, err)
		}
		switch i := slices.Index(further, o.GetName()); {
		case o.GetKind() == v1alpha1.KindPickerFleet:
			fleets[o.GetName()] = text
		case i >= 0:
			objects, further = append(objects, o), slices.Delete(further, i, i+1)
		case o.GetKind() == "Gateway":
			objects = append(objects, o)
		case o.GroupVersionKind() == v1alpha1.GroupVersion.WithKind("InferencePool") && pool == "":
			pool = text
		}
	}
	if pool == "" {
		return errors.New("no pool is on the page")
	}
	for _, name := range append([]string{""}, further...) {
		of, text := ofPool, pool
		if fleet, ok := fleets[name]; ok {
			of, text = ofFleet, fleet
		}
		made, err := of(ctx, a, text, name)
		if err != nil {
			return err
		}
		objects = append(objects, made...)
	}
	return write(objects)
}

// ofPool is what the operator makes of a pool where Istio is installed. A name takes the place of the pool's.
func ofPool(ctx context.Context, a *crdadmission.Admitter, text, name string) ([]*unstructured.Unstructured, error) {
	admitted, err := a.Admit(ctx, []byte(text), nil)
	if err != nil {
		return nil, fmt.Errorf("admitting the pool: %w", err)
	}
	pool, err := crdadmission.Pool(admitted)
	if err != nil {
		return nil, fmt.Errorf("reading the pool: %w", err)
	}
	pool.UID, pool.Name = "pool", cmp.Or(name, pool.Name)
	objects, err := resources.Objects(withIstio, resources.Input{Pool: pool, Trusted: []byte("-")})
	if err != nil {
		return nil, fmt.Errorf("making the objects of the pool: %w", err)
	}
	return ofGateways(objects), nil
}

// ofFleet is what the operator makes of a fleet where Istio is installed.
func ofFleet(ctx context.Context, a *crdadmission.Admitter, text, _ string) ([]*unstructured.Unstructured, error) {
	admitted, err := a.Admit(ctx, []byte(text), nil)
	if err != nil {
		return nil, fmt.Errorf("admitting the fleet: %w", err)
	}
	fleet := &v1alpha1.PickerFleet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(admitted.Object, fleet); err != nil {
		return nil, fmt.Errorf("reading the fleet: %w", err)
	}
	fleet.UID = "fleet"
	objects, err := resources.FleetObjects(withIstio, resources.Fleet{PickerFleet: fleet, Trusted: []byte("-")})
	if err != nil {
		return nil, fmt.Errorf("making the objects of the fleet: %w", err)
	}
	return ofGateways(objects), nil
}

// withIstio is the configuration of an operator where Istio is installed.
var withIstio = resources.Config{
	PickerImage: "picker", Operator: types.NamespacedName{Namespace: "kvasir", Name: "operator"}, GIE: true, Routes: true,
	Traffic: resources.Traffic{DestinationRule: true},
}

// ofGateways are the objects that gateways read.
func ofGateways(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	kinds := []string{"Service", "InferencePool", "HTTPRoute", "DestinationRule"}
	return slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return !slices.Contains(kinds, o.GetKind()) })
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

package crdadmission

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// Pool converts an admitted InferencePool. Optional objects that are absent stay nil.
func Pool(obj *unstructured.Unstructured) (*v1alpha1.InferencePool, error) {
	pool := &v1alpha1.InferencePool{}
	if err := convert(obj, v1alpha1.KindInferencePool, pool); err != nil {
		return nil, err
	}
	return pool, nil
}

// Policy converts an admitted RoutingPolicy. Optional objects that are absent stay nil.
func Policy(obj *unstructured.Unstructured) (*v1alpha1.RoutingPolicy, error) {
	policy := &v1alpha1.RoutingPolicy{}
	if err := convert(obj, v1alpha1.KindRoutingPolicy, policy); err != nil {
		return nil, err
	}
	return policy, nil
}

// Route converts an admitted ModelRoute.
func Route(obj *unstructured.Unstructured) (*v1alpha1.ModelRoute, error) {
	route := &v1alpha1.ModelRoute{}
	if err := convert(obj, v1alpha1.KindModelRoute, route); err != nil {
		return nil, err
	}
	return route, nil
}

func convert(obj *unstructured.Unstructured, kind string, into any) error {
	if want := v1alpha1.GroupVersion.WithKind(kind); obj.GroupVersionKind() != want {
		return fmt.Errorf("converting %s: its kind is not %s", describe(obj), want)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, into); err != nil {
		return fmt.Errorf("converting %s: %w", describe(obj), err)
	}
	return nil
}

// DefaultPolicy returns the policy that applies to a pool that no RoutingPolicy targets: all defaults, no name and no
// target.
func (a *Admitter) DefaultPolicy() (*v1alpha1.RoutingPolicy, error) {
	const smallest = `{"apiVersion":"kvasir.dev/v1alpha1","kind":"RoutingPolicy","metadata":{"name":"default"},` +
		`"spec":{"targetRefs":[{"name":"default"}]}}`
	obj, err := a.Admit(context.Background(), []byte(smallest), nil)
	if err != nil {
		return nil, fmt.Errorf("making the default policy: %w", err)
	}
	policy, err := Policy(obj)
	if err != nil {
		return nil, err
	}
	return &v1alpha1.RoutingPolicy{Spec: v1alpha1.RoutingPolicySpec{
		Strategy:    policy.Spec.Strategy,
		Session:     policy.Spec.Session,
		Guards:      policy.Spec.Guards,
		Tokens:      policy.Spec.Tokens,
		Speculation: policy.Spec.Speculation,
		Admission:   policy.Spec.Admission,
		Fallback:    policy.Spec.Fallback,
		Decisions:   policy.Spec.Decisions,
	}}, nil
}

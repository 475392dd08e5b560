package inferencepool

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// A pool serves without the objects of single gateways: one that the user has made stays, and one that another release
// of the gateway refuses is no error.
func TestObjectsOfSingleGatewaysNeverHoldAPoolUp(t *testing.T) {
	rule := func() *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"host": "ours"}}}
		o.SetGroupVersionKind(resources.DestinationRuleKind)
		o.SetNamespace(poolKey.Namespace)
		o.SetName("chat-picker")
		return o
	}
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "DestinationRule"}, "chat-picker", nil)
	for name, tc := range map[string]struct {
		there   *unstructured.Unstructured
		failure error
		applies int
		told    string // of the problems
		fails   bool
	}{
		"the user has made one":    {there: rule()},
		"it is refused":            {failure: invalid, applies: 1, told: "DestinationRule chat-picker is refused"},
		"the operator may not":     {failure: apierrors.NewForbidden(anyResource, "chat-picker", nil), applies: 1, told: "forbidden"},
		"the API server is away":   {failure: apierrors.NewServiceUnavailable("away"), applies: 1, fails: true},
		"it is taken as it stands": {applies: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := fake.NewClientBuilder().WithScheme(testScheme())
			if tc.there != nil {
				b = b.WithObjects(tc.there)
			}
			applies := 0
			api := interceptor.NewClient(b.Build(), interceptor.Funcs{
				Apply: func(context.Context, client.WithWatch, runtime.ApplyConfiguration, ...client.ApplyOption) error {
					applies++
					return tc.failure
				},
			})
			r := &Reconciler{Client: api, Direct: api}
			one := &children{scope: &scope{Reconciler: r, pool: newPool(), key: poolKey, memory: r.memory(poolKey)}}
			err := one.apply(t.Context(), rule())
			if (err != nil) != tc.fails || applies != tc.applies {
				t.Errorf("%d applied, error %v", applies, err)
			}
			if told := strings.Join(one.problems.traffic, "; "); !strings.Contains(told, tc.told) || (told == "") != (tc.told == "") {
				t.Errorf("told %q, want %q", told, tc.told)
			}
			if len(one.problems.taken)+len(one.problems.gateway) > 0 {
				t.Errorf("problems %+v", one.problems)
			}
		})
	}
}

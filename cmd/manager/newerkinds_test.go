package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// refusing is a client that fails lists of fleets with an error, until that is nil.
func refusing(t *testing.T, err *atomic.Pointer[error]) client.WithWatch {
	t.Helper()
	fleet := &v1alpha1.PickerFleet{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "f"}}
	route := &v1alpha1.ModelRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "r"}}
	return interceptor.NewClient(fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(fleet, route).Build(), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, is := list.(*v1alpha1.PickerFleetList); is && err.Load() != nil {
				return *err.Load()
			}
			return c.List(ctx, list, opts...)
		},
	})
}

// TestTheOperatorStartsWithoutNewerKinds: if a kind is not defined, or not in the operator's role, no object of it exists for the
// operator, all others do, and it ends when the kind is there.
func TestTheOperatorStartsWithoutNewerKinds(t *testing.T) {
	for name, why := range map[string]error{
		"not defined":          &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: v1alpha1.GroupName, Kind: v1alpha1.KindPickerFleet}},
		"not served":           apierrors.NewNotFound(schema.GroupResource{}, ""),
		"not in the role":      apierrors.NewForbidden(schema.GroupResource{}, "", nil),
		"there all along":      nil,
		"an API server's pain": apierrors.NewInternalError(errors.New("etcd")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var refusal atomic.Pointer[error]
				if why != nil {
					refusal.Store(&why)
				}
				c := refusing(t, &refusal)
				kinds := &newerKinds{reader: c, log: logr.Discard()}
				err := kinds.find(t.Context())
				if apierrors.IsInternalError(why) {
					if !errors.Is(err, why) {
						t.Errorf("an error that says nothing of the kind is taken for its absence: %v", err)
					}
					return
				}
				if err != nil || kinds.absent[v1alpha1.KindPickerFleet] != (why != nil) || kinds.absent[v1alpha1.KindModelRoute] {
					t.Fatalf("absent: %v, %v", kinds.absent, err)
				}
				of := kinds.clientOf(c)
				fleet, route := of.Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "f"}, &v1alpha1.PickerFleet{}),
					of.Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "r"}, &v1alpha1.ModelRoute{})
				if apierrors.IsNotFound(fleet) != (why != nil) || route != nil {
					t.Errorf("the fleet: %v; the route: %v", fleet, route)
				}
				var fleets v1alpha1.PickerFleetList
				if err := of.List(t.Context(), &fleets); err != nil || (len(fleets.Items) == 0) != (why != nil) {
					t.Errorf("%d fleets: %v", len(fleets.Items), err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- kinds.Start(ctx) }()
				synctest.Wait()
				if why == nil {
					cancel()
					if err := <-ended; err != nil {
						t.Error(err)
					}
					return
				}
				refusal.Store(nil)
				if err := <-ended; !errors.Is(err, errNewKind) {
					t.Errorf("when the kind is there: %v", err)
				}
				cancel()
			})
		})
	}
}

package doctor

import (
	"slices"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/cli/view"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/status"
)

func TestFleetsAreChecked(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, networkingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	good := []metav1.Condition{status.Available.True("Available", ""), status.Programmed.True(status.ReasonProgrammed, "")}
	for name, tc := range map[string]struct {
		ready          int32
		conditions     []metav1.Condition
		closed         bool
		warned, failed int
	}{
		"all is well":           {2, good, true, 0, 0},
		"no gateway is wanted":  {2, append(slices.Clone(good), status.GatewayAccepted.Unknown(status.ReasonDisabled, "")), true, 0, 0},
		"gateways say nothing":  {2, append(slices.Clone(good), status.GatewayAccepted.False(status.ReasonNotReferenced, "none")), true, 1, 0},
		"no NetworkPolicy":      {2, good, false, 1, 0},
		"one picker is missing": {1, []metav1.Condition{status.Available.False("SomeUnavailable", "1 of 2"), good[1]}, true, 1, 0},
		"there are no pickers": {0, []metav1.Condition{status.Available.False(status.ReasonUnavailable, "0 of 2"),
			status.Programmed.Unknown(status.ReasonNoPicker, "")}, true, 1, 1},
		"a certificate": {2, []metav1.Condition{status.Available.False(status.ReasonCertificateInvalid, "no"), good[1]}, true, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&v1alpha1.PickerFleet{
				ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "big", Generation: 1},
				Status:     v1alpha1.PickerFleetStatus{ObservedGeneration: ptr.To[int64](1), ReadyReplicas: ptr.To(tc.ready), Conditions: tc.conditions},
			})
			if tc.closed {
				c = c.WithObjects(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: resources.NamesOfFleet("big").Guard}})
			}
			d := &Doctor{Source: &view.Source{Client: c.Build()}, Namespace: "llm", Now: time.Now, cures: readCures()}
			d.fleets(t.Context())
			if d.report.Warned != tc.warned || d.report.Failed != tc.failed {
				t.Errorf("%+v, want %d warnings and %d failures", d.report.Results, tc.warned, tc.failed)
			}
			for _, r := range d.report.Results {
				if (r.Cure == "") != (r.Level == OK) {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

package doctor

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/cli/view"
	"github.com/kvasir-dev/kvasir/internal/status"
)

func TestRoutesAreChecked(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	accepted, resolved := status.Accepted.True(status.ReasonAccepted, ""), status.ResolvedRefs.True(status.ReasonResolvedRefs, "")
	for name, tc := range map[string]struct {
		conditions []metav1.Condition
		undefined  bool
		ok, warned int
	}{
		"all is well":       {[]metav1.Condition{accepted, resolved}, false, 1, 0},
		"a name is taken":   {[]metav1.Condition{status.Accepted.False(status.ReasonNameTaken, "chat"), resolved}, false, 0, 1},
		"a pool is missing": {[]metav1.Condition{accepted, status.ResolvedRefs.False(status.ReasonReferenceNotFound, "m")}, false, 0, 1},
		"both":              {[]metav1.Condition{status.Accepted.False("TooManyRoutes", ""), status.ResolvedRefs.False("SeveralFleets", "m")}, false, 0, 2},
		"no status":         {nil, false, 0, 1},
		"no definition":     {nil, true, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&v1alpha1.ModelRoute{
				ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "chat"}, Status: v1alpha1.ModelRouteStatus{Conditions: tc.conditions},
			}).WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					if tc.undefined {
						return &meta.NoKindMatchError{}
					}
					return c.List(ctx, list, opts...)
				},
			}).Build()
			d := &Doctor{Source: &view.Source{Client: c}, Namespace: "llm", Now: time.Now}
			d.routes(t.Context())
			if got := len(d.report.Results) - d.report.Warned; d.report.Warned != tc.warned || got != tc.ok || d.report.Failed != 0 {
				t.Errorf("%+v, want %d warnings and %d others", d.report.Results, tc.warned, tc.ok)
			}
			for _, r := range d.report.Results {
				if (r.Cure == "") != (r.Level == OK) {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

package live

import (
	"context"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestTheAccountIsThePoolsOrTheOperators: that of the pool's namespace first, then that of the operator's, and no other's.
func TestTheAccountIsThePoolsOrTheOperators(t *testing.T) {
	for name, tc := range map[string]struct {
		accounts []string
		want     string
	}{
		"both":      {[]string{"llm", "kvasir-system"}, "llm"},
		"operators": {[]string{"kvasir-system"}, "kvasir-system"},
		"anothers":  {[]string{"other"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			operator := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "kvasir-system", Name: "operator"}}
			operator.Spec.Template.Spec.Containers = []corev1.Container{{Args: []string{"--reporter-image=r"}}}
			all := []client.Object{operator, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "app"}}}
			for _, namespace := range tc.accounts {
				all = append(all, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: DefaultAccount}})
			}
			c := fake.NewClientBuilder().WithObjects(all...).WithInterceptorFuncs(interceptor.Funcs{
				SubResourceCreate: func(ctx context.Context, c client.Client, _ string, o, request client.Object, _ ...client.SubResourceCreateOption) error {
					if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
						return err
					}
					request.(*authenticationv1.TokenRequest).Status.Token = o.GetNamespace()
					return nil
				},
			}).Build()
			a := &Access{Client: c, Config: &rest.Config{}, Account: DefaultAccount}
			got, err := a.token(t.Context(), "llm")
			if got != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

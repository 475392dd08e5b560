package inferencepool

import (
	"context"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// keepsCertificates lets the controller reconcile the certificates of a pool with the given number of ready pickers of two.
func (w *world) keepsCertificates(ready int32) *secrets {
	w.t.Helper()
	picker := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)}, Status: appsv1.DeploymentStatus{ReadyReplicas: ready}}
	r := &secrets{w.r.begin(w.pool()), picker}
	w.must(r.keepCertificates(context.Background()))
	return r
}

func TestADeletedCertificateIsCreatedAgain(t *testing.T) {
	for name, secret := range map[string]string{"of the CA": resources.CAName(poolKey.Name), "of the pickers": resources.TLSName(poolKey.Name)} {
		for _, tc := range []struct {
			ready int32
			every time.Duration
		}{{2, foundEvery}, {1, missingEvery}} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t)
				w.applies = func(*unstructured.Unstructured) error { return nil }
				found := func() *corev1.Secret {
					got := &corev1.Secret{}
					if w.api.Get(context.Background(), types.NamespacedName{Namespace: poolKey.Namespace, Name: secret}, got) != nil {
						return nil
					}
					return got
				}
				r := w.keepsCertificates(tc.ready)
				if want := w.clock.Now().Add(tc.every); !r.wake.Equal(want) {
					t.Errorf("with %d of 2 pickers ready it checks again at %s, want %s", tc.ready, r.wake, want)
				}
				w.must(w.api.Delete(context.Background(), found()))
				w.clock.SetTime(w.clock.Now().Add(tc.every - time.Second))
				w.keepsCertificates(tc.ready)
				if found() != nil {
					t.Error("the Secret is read all the time")
				}
				w.clock.SetTime(w.clock.Now().Add(time.Second))
				w.keepsCertificates(tc.ready)
				if found() == nil {
					t.Errorf("with %d of 2 pickers ready, the Secret is missing after %s", tc.ready, tc.every)
				}
			})
		}
	}
}

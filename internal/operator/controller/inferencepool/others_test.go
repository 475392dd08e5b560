package inferencepool

import (
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// install makes the world's controller that of the operator of a namespace.
func (w *world) install(namespace string) {
	w.start()
	own := types.NamespacedName{Namespace: namespace, Name: "kvasir-operator"}
	w.applies = func(*unstructured.Unstructured) error { return nil }
	w.r.Children = func() resources.Config { return resources.Config{PickerImage: "picker:" + namespace, Operator: own} }
	w.r.Others = &Others{Reader: w.cache, Direct: w.api, Own: own, Clock: w.clock}
}

func serviceAccount(namespace string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kvasir-operator"}}
}

// pickerImage is the image of the pool's pickers.
func (w *world) pickerImage() string {
	w.t.Helper()
	d := &appsv1.Deployment{}
	w.must(w.api.Get(context.Background(), client.ObjectKey{Namespace: poolKey.Namespace, Name: resources.PickerName(poolKey.Name)}, d))
	return d.Spec.Template.Spec.Containers[0].Image
}

func TestTwoInstallationsDoNotFightOverAPool(t *testing.T) {
	w := newWorld(t)
	w.must(w.api.Create(context.Background(), serviceAccount("first")))
	w.must(w.api.Create(context.Background(), serviceAccount("second")))
	w.install("first")
	w.serve()
	status := w.pool().ResourceVersion
	w.install("second")
	recorder := events.NewFakeRecorder(100)
	w.r.Recorder = recorder
	before := w.writes
	for range 5 {
		again, err := w.reconcile()
		if err != nil || again != othersEvery {
			t.Fatalf("reconciled again after %s, %v", again, err)
		}
		w.clock.SetTime(w.clock.Now().Add(time.Second))
	}
	if w.writes != before || w.pickerImage() != "picker:first" || w.pool().ResourceVersion != status {
		w.fail("the second installation has written: %d writes, pickers %s", w.writes-before, w.pickerImage())
	}
	if len(recorder.Events) != 1 || !strings.Contains(<-recorder.Events, "first/kvasir-operator") {
		t.Errorf("events that name the other operator: %d", len(recorder.Events))
	}
	if yes, err := w.r.Others.ManagesPool(context.Background(), poolKey); err != nil || !yes {
		t.Errorf("the pool is the other's: %v, %v", yes, err)
	}
	// The first is uninstalled.
	w.must(w.api.Delete(context.Background(), serviceAccount("first")))
	w.clock.SetTime(w.clock.Now().Add(othersEvery))
	w.settleDown()
	if got := w.pickerImage(); got != "picker:second" {
		t.Errorf("taken over with pickers of %s", got)
	}
	if yes, err := w.r.Others.ManagesPool(context.Background(), poolKey); err != nil || yes {
		t.Errorf("the pool is the other's still: %v, %v", yes, err)
	}
	w.expect("new-0", "new-1")
}

func TestAnInstallationWithAnotherNameInOneNamespaceTakesOver(t *testing.T) {
	w := newWorld(t)
	w.must(w.api.Create(context.Background(), serviceAccount("first")))
	w.install("first")
	w.serve()
	w.install("first")
	own := types.NamespacedName{Namespace: "first", Name: "renamed"}
	w.r.Children = func() resources.Config { return resources.Config{PickerImage: "picker:renamed", Operator: own} }
	w.r.Others.Own = own
	w.settleDown()
	if got := w.pickerImage(); got != "picker:renamed" {
		t.Errorf("pickers of %s", got)
	}
}

func TestAnOperatorThatCannotBeReadCountsAsThere(t *testing.T) {
	w := newWorld(t)
	w.install("first")
	w.serve()
	w.install("second")
	w.r.Others.Direct = interceptor.NewClient(w.api, interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return forbidden("serviceaccounts", "kvasir-operator", "only in some namespaces")
		},
	})
	if again, err := w.reconcile(); err != nil || again != othersEvery || w.pickerImage() != "picker:first" {
		t.Errorf("again after %s, %v, pickers of %s", again, err, w.pickerImage())
	}
}

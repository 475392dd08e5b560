package inferencepool

import (
	"context"
	"slices"
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

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
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

// blindTo makes the operator one whose rights end at the pools' namespaces.
func (w *world) blindTo(others ...string) {
	w.r.Others.Direct = interceptor.NewClient(w.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if slices.Contains(others, key.Namespace) {
				return forbidden("serviceaccounts", key.Name, "only in some namespaces")
			}
			return c.Get(ctx, key, obj, opts...)
		},
	})
}

// annotate the pool with the namespace of the operator that shall manage it; none takes the annotation away.
func (w *world) annotate(operator string) {
	w.t.Helper()
	pool := w.pool()
	pool.Annotations = map[string]string{}
	if operator != "" {
		pool.Annotations[v1alpha1.AnnotationOperator] = operator
	}
	w.must(w.api.Update(context.Background(), pool))
}

// waits checks that the operator leaves the pool alone, and returns the event that says so.
func (w *world) waits() string {
	w.t.Helper()
	recorder := events.NewFakeRecorder(10)
	w.r.Recorder = recorder
	before := w.writes
	if again, err := w.reconcile(); err != nil || again != othersEvery || w.writes != before {
		w.fail("again after %s, %v, %d writes", again, err, w.writes-before)
	}
	if len(recorder.Events) != 1 {
		w.fail("%d events", len(recorder.Events))
	}
	return <-recorder.Events
}

// TestAnOperatorThatCannotBeSeenHandsItsPoolsOverByAnnotation: with watch.namespaces the new operator is not allowed to see that the old one is gone. It says how
// to have the pool, and has it as soon as that is done. The old one, if it is there, lets go of it.
func TestAnOperatorThatCannotBeSeenHandsItsPoolsOverByAnnotation(t *testing.T) {
	w := newWorld(t)
	w.install("first")
	w.serve()
	w.install("second")
	w.blindTo("first")
	const cure = "kubectl annotate kvpool -n llm chat kvasir.dev/operator=second --overwrite"
	if said := w.waits(); !strings.Contains(said, cure) || w.pickerImage() != "picker:first" {
		t.Errorf("pickers of %s; the event says %q, want %q in it", w.pickerImage(), said, cure)
	}
	w.annotate("second")
	w.settleDown()
	if got := w.pickerImage(); got != "picker:second" {
		t.Errorf("handed over, with pickers of %s", got)
	}
	for _, annotation := range []string{"second", ""} { // it can be taken away afterwards
		w.annotate(annotation)
		w.install("first")
		w.blindTo("second")
		w.waits()
		if yes, err := w.r.Others.ManagesPool(t.Context(), poolKey); err != nil || !yes {
			t.Errorf("annotated %q: the pool is the second's: %v, %v", annotation, yes, err)
		}
		w.install("second")
		w.blindTo("first")
		w.settleDown()
		if yes, err := w.r.Others.ManagesPool(t.Context(), poolKey); err != nil || yes || w.pickerImage() != "picker:second" {
			t.Errorf("annotated %q: the pool is another's: %v, %v; pickers of %s", annotation, yes, err, w.pickerImage())
		}
	}
	w.expect("new-0", "new-1")
}

// TestAnAnnotationThatNamesNoOperatorIsTold by every operator that leaves the pool alone for it, of pools with external pickers, too.
func TestAnAnnotationThatNamesNoOperatorIsTold(t *testing.T) {
	w := newWorld(t, func(p *v1alpha1.InferencePool) { p.Spec.Picker.Mode = v1alpha1.PickerExternal })
	w.annotate("typo")
	w.install("first")
	said := w.waits()
	for _, part := range []string{"namespace typo", "kvasir.dev/operator=first"} {
		if !strings.Contains(said, part) {
			t.Errorf("the event says %q, without %q", said, part)
		}
	}
	w.annotate("first")
	w.settleDown()
	w.expect("new-0", "new-1")
}

func TestAnOperatorThatCannotBeReadCountsAsThere(t *testing.T) {
	w := newWorld(t)
	w.install("first")
	w.serve()
	w.install("second")
	w.blindTo("first")
	if again, err := w.reconcile(); err != nil || again != othersEvery || w.pickerImage() != "picker:first" {
		t.Errorf("again after %s, %v, pickers of %s", again, err, w.pickerImage())
	}
}

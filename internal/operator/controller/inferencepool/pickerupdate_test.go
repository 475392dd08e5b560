package inferencepool

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// fleet is a world of several pools, p0 and so on, whose pickers have the image v1 and are available. No controller of Deployments runs in
// it: pickers become available when a test says so.
type fleet struct {
	*world
	names  []string
	refuse string  // the pool whose Deployment the API server refuses
	others *Others // of operators that are started
}

func newFleet(t *testing.T, n int) *fleet {
	t.Helper()
	w := emptyWorld(t)
	builder := newServer()
	f := &fleet{world: w}
	for i := range n {
		name := fmt.Sprintf("p%d", i)
		f.names = append(f.names, name)
		builder = builder.WithObjects(newPool(func(p *v1alpha1.InferencePool) {
			p.Name, p.UID, p.Spec.Template, p.Spec.Replicas, p.Spec.Picker.Replicas = name, types.UID(name), nil, nil, 2
			p.Spec.Selector = v1alpha1.PodSelector{MatchLabels: map[string]v1alpha1.LabelValue{"app": v1alpha1.LabelValue(name)}}
		}))
	}
	w.serveFrom(builder.Build())
	f.upgrade("v1")
	f.reconcileAll()
	for _, name := range f.names {
		f.available(name)
	}
	f.reconcileAll()
	return f
}

// upgrade begins an operator of a release. It has no memory of those before.
func (f *fleet) upgrade(image string) {
	f.start()
	if f.others != nil {
		f.r.Others = f.others
	}
	f.applies = func(o *unstructured.Unstructured) error {
		if f.refuse != "" && o.GetKind() == "Deployment" && o.GetName() == resources.PickerName(f.refuse) {
			return forbidden("deployments", o.GetName(), "images must be signed")
		}
		if o.GetKind() == "Deployment" {
			f.keepStatus(o, image)
		}
		return nil
	}
	f.r.Children = func() resources.Config {
		return resources.Config{PickerImage: image, Operator: types.NamespacedName{Namespace: "kvasir", Name: "operator"}}
	}
}

// keepStatus does to a Deployment that is applied what an API server does: the status stays, and another spec is a new generation.
func (f *fleet) keepStatus(o *unstructured.Unstructured, image string) {
	live := &appsv1.Deployment{}
	if f.api.Get(context.Background(), client.ObjectKeyFromObject(o), live) != nil {
		return
	}
	status, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&live.Status)
	f.must(err)
	o.Object["status"] = status
	o.SetGeneration(live.Generation)
	if pickerImage(live) != image {
		o.SetGeneration(live.Generation + 1)
	}
}

// reconcileAll reconciles all pools until each has seen what the others did, the last one first, and until conditions have lasted.
func (f *fleet) reconcileAll() {
	f.t.Helper()
	for range 3 {
		for _, name := range slices.Backward(f.names) {
			f.reconcilePool(name)
		}
		f.clock.SetTime(f.clock.Now().Add(settle))
	}
}

func (f *fleet) reconcilePool(name string) time.Duration {
	f.t.Helper()
	result, err := f.r.Reconcile(context.Background(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: poolKey.Namespace, Name: name}})
	f.must(err)
	return result.RequeueAfter
}

func (f *fleet) pickers(name string) *appsv1.Deployment {
	d := &appsv1.Deployment{}
	f.must(f.api.Get(context.Background(), client.ObjectKey{Namespace: poolKey.Namespace, Name: resources.PickerName(name)}, d))
	return d
}

// available makes all pickers of a pool available, with the image that they should have.
func (f *fleet) available(name string) {
	d := f.pickers(name)
	n := *d.Spec.Replicas
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n}
	d.Status.Conditions = []appsv1.DeploymentCondition{{
		Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable", LastUpdateTime: metav1.NewTime(f.clock.Now()),
	}}
	f.must(f.api.Status().Update(context.Background(), d))
}

// reports sets a condition of a pool's Deployment to False.
func (f *fleet) reports(name string, kind appsv1.DeploymentConditionType, since time.Duration) {
	d := f.pickers(name)
	d.Status.ObservedGeneration, d.Status.UpdatedReplicas = d.Generation, 1
	d.Status.Conditions = []appsv1.DeploymentCondition{{
		Type: kind, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(f.clock.Now().Add(-since)),
	}}
	f.must(f.api.Status().Update(context.Background(), d))
}

// expectWith reconciles all pools, and checks which of them have an image then.
func (f *fleet) expectWith(image, want string) {
	f.t.Helper()
	f.reconcileAll()
	var got []string
	for _, name := range f.names {
		if pickerImage(f.pickers(name)) == image {
			got = append(got, name)
		}
	}
	if diff := cmp.Diff(strings.Fields(want), got); diff != "" {
		f.t.Fatalf("pools with %s (-want +got):\n%s", image, diff)
	}
}

func (f *fleet) says(name string) string {
	p := &v1alpha1.InferencePool{}
	f.must(f.api.Get(context.Background(), client.ObjectKey{Namespace: poolKey.Namespace, Name: name}, p))
	c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionPickerAvailable)
	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

// change edits a pool as a person does.
func (f *fleet) change(name string, edit func(*v1alpha1.InferencePool)) {
	p := &v1alpha1.InferencePool{}
	f.must(f.api.Get(context.Background(), client.ObjectKey{Namespace: poolKey.Namespace, Name: name}, p))
	edit(p)
	p.Generation++
	f.must(f.api.Update(context.Background(), p))
}

func TestOnePoolGetsANewImageOfThePickersFirst(t *testing.T) {
	f := newFleet(t, 8)
	f.upgrade("v2")
	f.expectWith("v2", "p0")
	if got := f.says("p3"); !strings.HasPrefix(got, "True UpdateWaiting: ") || !strings.Contains(got, "llm/p0") {
		t.Errorf("p3: %s", got)
	}
	if again := f.reconcilePool("p3"); again <= 0 || again > TurnEvery {
		t.Errorf("p3 checks again after %s", again)
	}
	f.upgrade("v2") // another replica of the operator leads
	f.expectWith("v2", "p0")
	f.available("p0")
	f.expectWith("v2", "p0") // the image could crash after a while
	if got := f.says("p3"); !strings.HasPrefix(got, "True UpdateWaiting: ") || !strings.Contains(got, "llm/p0") {
		t.Errorf("p3: %s", got)
	}
	f.clock.SetTime(f.clock.Now().Add(pickersProven))
	f.expectWith("v2", "p0 p1 p2 p3 p4")
	f.upgrade("v2")
	f.expectWith("v2", "p0 p1 p2 p3 p4")
	f.available("p2")
	f.expectWith("v2", "p0 p1 p2 p3 p4 p5")
	f.upgrade("v1") // the way back needs no first pool: the others have shown that it works
	f.expectWith("v2", "p4 p5")
	for _, name := range f.names {
		f.available(name)
		f.reconcileAll()
	}
	for _, name := range f.names {
		f.available(name)
	}
	f.expectWith("v1", strings.Join(f.names, " "))
	for _, name := range f.names {
		if got := f.says(name); !strings.HasPrefix(got, "True Available") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestPickersThatDoNotComeHoldUpOthersForAWhile(t *testing.T) {
	f := newFleet(t, 4)
	f.upgrade("v2")
	f.expectWith("v2", "p0")
	f.reports("p0", appsv1.DeploymentAvailable, pickersWithin-time.Minute)
	f.expectWith("v2", "p0")
	f.reports("p0", appsv1.DeploymentAvailable, pickersWithin+time.Second)
	f.expectWith("v2", "p0 p1")
	f.reports("p1", appsv1.DeploymentProgressing, 0)
	f.expectWith("v2", "p0 p1 p2") // still one at a time: none has shown that the image works
}

func TestWhoseTurnItIsToGetAnImageOfThePickers(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(*fleet)
		want string
	}{
		"the first one": {func(*fleet) {}, "p0"},
		"a pool whose spec has changed, too": {func(f *fleet) {
			f.change("p2", func(p *v1alpha1.InferencePool) { p.Spec.Picker.CompatibilityMetrics = v1alpha1.Enabled })
		}, "p2"}, // it is the first one then
		"not one that did not serve before": {func(f *fleet) {
			d := f.pickers("p0")
			d.Status.AvailableReplicas--
			f.must(f.api.Status().Update(context.Background(), d))
		}, "p1"},
		"not one that the API server refuses": {func(f *fleet) { f.refuse = "p0" }, "p1"},
		"not one that is not accepted": {func(f *fleet) {
			p := &v1alpha1.InferencePool{}
			f.must(f.api.Get(context.Background(), client.ObjectKey{Namespace: poolKey.Namespace, Name: "p0"}, p))
			meta.SetStatusCondition(&p.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: "NameTaken"})
			f.must(f.api.Status().Update(context.Background(), p))
			f.names = []string{"p1", "p2"} // nothing changes p0
		}, "p1"},
		"not one that is left to another operator": {func(f *fleet) {
			f.others = &Others{Own: types.NamespacedName{Namespace: "kvasir", Name: "operator"}}
			f.change("p0", func(p *v1alpha1.InferencePool) {
				p.Annotations = map[string]string{v1alpha1.AnnotationOperator: "typo"}
			})
			f.names = []string{"p1", "p2"}
		}, "p1"},
		"not one that people have paused": {func(f *fleet) {
			d := f.pickers("p0")
			d.Spec.Paused = true
			f.must(f.api.Update(context.Background(), d))
			f.names = []string{"p1", "p2"}
		}, "p1"},
		"not one that is deleted": {func(f *fleet) {
			f.change("p0", func(p *v1alpha1.InferencePool) { p.Finalizers = []string{"example.com/slow"} })
			f.reconcileAll()
			f.available("p0")
			p := &v1alpha1.InferencePool{}
			f.must(f.api.Get(context.Background(), client.ObjectKey{Namespace: poolKey.Namespace, Name: "p0"}, p))
			f.must(f.api.Delete(context.Background(), p))
		}, "p1"},
		"not one of another operator": {func(f *fleet) {
			d := f.pickers("p0")
			d.Spec.Template.Spec.Containers[0].Args = []string{"--operator=other/operator"}
			f.must(f.api.Update(context.Background(), d))
		}, "p1"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 3)
			tc.do(f)
			f.upgrade("v2")
			f.expectWith("v2", tc.want)
		})
	}
}

package inferencepool

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// provisionedWorld has a pool with an island that asks for nodes, and a dearer one that has some.
func provisionedWorld(t *testing.T) *world {
	w := newWorld(t, func(p *v1alpha1.InferencePool) {
		p.Spec.Picker.Mode = v1alpha1.PickerExternal
		p.Spec.Gateway.Mode = v1alpha1.GatewayDisabled
		p.Spec.Placement = &v1alpha1.Placement{Islands: []v1alpha1.Island{
			{Name: "queued", HourlyPrice: "1", ProvisioningClassName: "queued.example", ProvisionTimeoutSeconds: 3600},
			{Name: "dear", HourlyPrice: "9", ProvisionTimeoutSeconds: 3600},
		}}
	})
	w.r.Children = func() resources.Config { return resources.Config{Provisioning: true} }
	return w
}

// requests for nodes, by name.
func (w *world) requests() []unstructured.Unstructured {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(resources.ProvisioningKind)
	w.must(w.api.List(context.Background(), list))
	return list.Items
}

func TestPodsAskForNodesOfTheirOwn(t *testing.T) {
	w := provisionedWorld(t)
	w.settleDown()
	requests := w.requests()
	pods := w.all()
	if len(requests) != 2 || len(pods) != 2 {
		t.Fatalf("%d requests, %d pods", len(requests), len(pods))
	}
	for i := range requests {
		pod, request := pods[i], &requests[i]
		if request.GetName() != pod.Name || pod.Annotations[resources.AnnotationConsumes] != pod.Name ||
			pod.Annotations[resources.AnnotationProvisioningClass] != "queued.example" || !metav1.IsControlledBy(request, pod) {
			t.Errorf("pod %s, %v; request %s of %v", pod.Name, pod.Annotations, request.GetName(), request.GetOwnerReferences())
		}
		class, _, _ := unstructured.NestedString(request.Object, "spec", "provisioningClassName")
		sets, _, _ := unstructured.NestedSlice(request.Object, "spec", "podSets")
		if class != "queued.example" || len(sets) != 1 {
			t.Errorf("spec %v", request.Object["spec"])
		}
		template := &corev1.PodTemplate{}
		w.must(w.api.Get(context.Background(), client.ObjectKeyFromObject(pod), template))
		if len(template.Template.Spec.Containers) != 1 || !metav1.IsControlledBy(template, pod) {
			t.Errorf("template %+v", template)
		}
	}
	// A controller without memory asks for nothing more.
	w.start()
	w.r.Children = func() resources.Config { return resources.Config{Provisioning: true} }
	w.settleDown()
	if len(w.requests()) != 2 {
		t.Errorf("%d requests", len(w.requests()))
	}
	// The need ends before the node was added.
	w.newEvents()
	w.edit(func(s *v1alpha1.InferencePoolSpec) { *s.Replicas = 1 })
	w.settleDown()
	if events := w.newEvents(); events["ProvisioningCancelled"] != 1 || len(w.all()) != 1 {
		t.Errorf("events %v, %d pods", events, len(w.all()))
	}
}

func TestATemplateHasThePodsAccount(t *testing.T) {
	made := &corev1.Pod{Spec: corev1.PodSpec{ServiceAccountName: "default"}}
	for want, wanted := range map[string]*corev1.Pod{"default": {}, "own": {Spec: corev1.PodSpec{ServiceAccountName: "own"}}} {
		if template, _ := resources.Provisioning(newPool(), wanted, made); template.Template.Spec.ServiceAccountName != want {
			t.Errorf("account %q, want %q", template.Template.Spec.ServiceAccountName, want)
		}
	}
}

func TestAPodWhoseNodeIsDeniedGoesElsewhere(t *testing.T) {
	w := provisionedWorld(t)
	w.settleDown()
	request := w.requests()[0]
	w.must(unstructured.SetNestedSlice(request.Object, []any{map[string]any{
		"type": "Failed", "status": "True", "reason": "OutOfResources", "message": "no GPU", "lastTransitionTime": "2026-01-01T12:00:00Z",
	}}, "status", "conditions"))
	w.must(w.api.Update(context.Background(), &request))
	w.newEvents()
	w.settleDown()
	islands := []string{}
	for _, pod := range w.all() {
		islands = append(islands, pod.Labels[v1alpha1.LabelIsland])
	}
	slices.Sort(islands)
	if !slices.Equal(islands, []string{"dear", "queued"}) {
		w.fail("islands %v", islands)
	}
	if events := w.newEvents(); events["IslandTimedOut"] != 1 {
		t.Errorf("events %v", events)
	}
	for _, s := range w.pool().Status.Islands {
		if s.Name == "queued" && s.State != v1alpha1.IslandExhausted {
			t.Errorf("island %+v", s)
		}
	}
}

func TestWithoutTheAPIPodsJustWait(t *testing.T) {
	w := provisionedWorld(t)
	w.r.Children = func() resources.Config { return resources.Config{} }
	w.settleDown()
	for _, pod := range w.all() {
		if pod.Annotations[resources.AnnotationConsumes] != "" {
			t.Errorf("%s waits for a request that is never made", pod.Name)
		}
	}
	if n := len(w.requests()); n != 0 {
		t.Errorf("%d requests", n)
	}
}

func TestARequestIsMadeAgainAfterAFailure(t *testing.T) {
	w := provisionedWorld(t)
	failures := 3
	w.broken = func(verb string, obj client.Object) (error, error) {
		if _, ok := obj.(*corev1.PodTemplate); ok && verb == "create" && failures > 0 {
			failures--
			return errBroken, nil
		}
		return nil, nil
	}
	for range 8 {
		_, _ = w.reconcile()
		w.clock.SetTime(w.clock.Now().Add(time.Second))
	}
	if n := len(w.requests()); n != 2 || failures != 0 {
		t.Errorf("%d requests", n)
	}
}

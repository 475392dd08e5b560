package inferencepool

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/podtemplate"
)

// TestANewOperatorKnowsTheFamilyOfPods: an operator that has just begun, and cannot read the Services of a pool, creates pods as those
// that there are. The family of the Services counts as soon as it is known, and neither restarts a pod.
func TestANewOperatorKnowsTheFamilyOfPods(t *testing.T) {
	for _, tc := range []struct {
		address string
		host    bool
	}{{"10.0.0.1", false}, {"fd00::1", true}} {
		w := newWorld(t)
		w.serve()
		before := w.names()
		for _, pod := range w.all() {
			w.setStatus(pod, func(s *corev1.PodStatus) { s.PodIP = tc.address })
		}
		w.start()
		w.withChildren(func(*unstructured.Unstructured) error { return errors.New("the connection was reset") })
		w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](3) })
		for range 5 {
			_, _ = w.reconcile() // it fails
		}
		if got := w.names(); len(got) != 3 || !slices.Equal(got[:2], before) {
			t.Fatalf("pods %s, before %s", got, before)
		}
		for _, pod := range w.all()[2:] {
			if got := slices.Contains(podtemplate.Injected(pod), podtemplate.FlagHost); got != tc.host {
				t.Errorf("%s beside pods with %s: %s is injected: %t", pod.Name, tc.address, podtemplate.FlagHost, got)
			}
		}
		w.withChildren(func(o *unstructured.Unstructured) error {
			if o.GetKind() != "Service" {
				return nil
			}
			return unstructured.SetNestedStringSlice(o.Object, []string{"IPv6"}, "spec", "ipFamilies")
		})
		for range 3 {
			_, err := w.reconcile()
			w.must(err)
		}
		if got := w.r.memory(poolKey).family; got != corev1.IPv6Protocol {
			t.Errorf("the family of the Services is not learned: %q", got)
		}
		if got := w.names(); len(got) != 3 || !slices.Equal(got[:2], before) {
			t.Errorf("pods %s, before %s", got, before)
		}
	}
}

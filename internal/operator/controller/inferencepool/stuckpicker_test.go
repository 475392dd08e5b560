package inferencepool

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// TestPodsOfOthersDoNotStopAnUpdateOfThePickers has a pod with all labels that the pickers' Deployment selects, which does not start.
func TestPodsOfOthersDoNotStopAnUpdateOfThePickers(t *testing.T) {
	owner := func(kind, name string, controller bool) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: "u", Controller: ptr.To(controller)}}
		}
	}
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"a pod of the Deployment":         {func(*corev1.Pod) {}, "False UpdateStopped"},
		"a pod of nothing":                {func(p *corev1.Pod) { p.OwnerReferences = nil }, "True Available"},
		"a pod of another Deployment":     {owner("ReplicaSet", "chat-picker-test-6f9", true), "True Available"},
		"a pod of a DaemonSet":            {owner("DaemonSet", "chat-picker-6f9", true), "True Available"},
		"a ReplicaSet does not manage it": {owner("ReplicaSet", "chat-picker-6f9", false), "True Available"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.serve()
			stuckPicker(2, 1, "ErrImagePull", "picker:v9: not found")(w)
			pod := &corev1.Pod{}
			w.must(w.api.Get(context.Background(), types.NamespacedName{Namespace: poolKey.Namespace, Name: "chat-picker-new"}, pod))
			tc.change(pod)
			w.must(w.api.Update(context.Background(), pod))
			w.lasting()
			if got := w.condition(v1alpha1.ConditionPickerAvailable); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

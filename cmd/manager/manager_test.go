package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodsInTheCacheAreLean(t *testing.T) {
	kept := func() *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "m-0", Labels: map[string]string{"kvasir.dev/pool": "m"}, Annotations: map[string]string{"a": "b"}},
			Spec: corev1.PodSpec{
				NodeName: "node", Tolerations: []corev1.Toleration{{Key: "gpu"}}, ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "kvasir.dev/Warm"}},
				InitContainers: []corev1.Container{{Name: "kvasir-reporter", Image: "reporter"}},
				Containers:     []corev1.Container{{Name: "vllm", Image: "vllm"}},
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", ContainerStatuses: []corev1.ContainerStatus{{Name: "vllm", Ready: true}}},
		}
	}
	whole := kept()
	whole.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	whole.Spec.Volumes = []corev1.Volume{{Name: "token"}}
	whole.Spec.Containers[0].Args = []string{"--model", "m"}
	whole.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "B"}}
	whole.Spec.InitContainers[0].VolumeMounts = []corev1.VolumeMount{{Name: "token"}}
	got, err := leanPod(whole)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(kept(), got); diff != "" {
		t.Errorf("the cached pod differs (-want +got):\n%s", diff)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	if got, err := leanPod(node); err != nil || got != any(node) {
		t.Errorf("got %v, %v of a node", got, err)
	}
}

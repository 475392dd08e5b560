package main

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestPodsInTheCacheAreLean(t *testing.T) {
	kept := func() *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "m-0", Labels: map[string]string{"kvasir.dev/pool": "m"}, Annotations: map[string]string{"a": "b"}},
			Spec: corev1.PodSpec{
				NodeName: "node", Tolerations: []corev1.Toleration{{Key: "gpu"}}, ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "kvasir.dev/Warm"}},
				InitContainers: []corev1.Container{{Name: "kvasir-reporter", Image: "reporter", Args: []string{"--serve-address=:8000"}}},
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
	whole.Spec.InitContainers[0].Args = []string{"--ranks=1", "--serve-address=:8000"}
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

func TestTheCacheKeepsOfNodesWhatIsRead(t *testing.T) {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(1, 0)}
	kept := func() *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "u", ResourceVersion: "7",
				Labels: map[string]string{"karpenter.sh/capacity-type": "spot"}},
			Spec:   corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{{Key: corev1.TaintNodeUnschedulable}}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready}},
		}
	}
	whole := kept()
	whole.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	whole.Labels["a"], whole.Annotations = "b", map[string]string{"a": "b"}
	whole.Spec.PodCIDR = "10.0.0.0/24"
	whole.Status.Images = []corev1.ContainerImage{{Names: []string{"vllm"}}}
	whole.Status.Conditions[0].LastHeartbeatTime = metav1.Unix(2, 0)
	whole.Status.Conditions = append(whole.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeDiskPressure})
	got, err := leanNode(whole)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(kept(), got); diff != "" {
		t.Errorf("the cached node differs (-want +got):\n%s", diff)
	}
	if transform := onlyOurs(); !slices.ContainsFunc(slices.Collect(maps.Keys(transform)), func(o client.Object) bool { _, is := o.(*corev1.Node); return is }) {
		t.Error("nodes are cached whole")
	}
}

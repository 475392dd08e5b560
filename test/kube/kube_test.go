package kube_test

import (
	"net"
	"net/url"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/test/kube"
)

func TestKube(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Control plane")
}

var _ = Describe("A control plane", func() {
	It("runs and schedules the pods of a Deployment, and collects what it leaves", func(ctx SpecContext) {
		cluster, err := kube.Start(kube.Options{ControllerManager: true, Scheduler: true})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(cluster.Stop)
		c, err := client.New(cluster.Config, client.Options{})
		Expect(err).NotTo(HaveOccurred())

		Expect(c.Create(ctx, node("a"))).To(Succeed())
		deployment := deployment("web", 2)
		Expect(c.Create(ctx, deployment)).To(Succeed())
		nodes := func(g Gomega) []string {
			var pods corev1.PodList
			g.Expect(c.List(ctx, &pods, client.InNamespace("default"))).To(Succeed())
			var names []string
			for i := range pods.Items {
				names = append(names, pods.Items[i].Spec.NodeName)
			}
			return names
		}
		Eventually(nodes).WithTimeout(timeout).Should(Equal([]string{"a", "a"}))

		Expect(c.Delete(ctx, deployment)).To(Succeed())
		replicaSets := func(g Gomega) []appsv1.ReplicaSet {
			var sets appsv1.ReplicaSetList
			g.Expect(c.List(ctx, &sets)).To(Succeed())
			return sets.Items
		}
		Eventually(replicaSets).WithTimeout(timeout).Should(BeEmpty())
	})

	It("finds its own programs beside those of another one", func(ctx SpecContext) {
		var clusters []*kube.Cluster
		seen := map[int]bool{}
		for range 2 {
			cluster, err := kube.Start(kube.Options{ControllerManager: true, Bare: true})
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(cluster.Stop)
			clusters = append(clusters, cluster)
		}
		for _, cluster := range clusters {
			for _, program := range []string{"etcd", "kube-apiserver", "kube-controller-manager"} {
				pid, err := cluster.Process(program)
				Expect(err).NotTo(HaveOccurred())
				Expect(seen).NotTo(HaveKey(pid))
				seen[pid] = true
			}
		}
		// The second is away, and the first answers.
		Expect(clusters[1].Crash()).To(Succeed())
		c, err := client.New(clusters[0].Config, client.Options{})
		Expect(err).NotTo(HaveOccurred())
		Expect(c.Create(ctx, node("a"))).To(Succeed())
		// Another program has the port of the second for a while.
		api, err := url.Parse(clusters[1].Config.Host)
		Expect(err).NotTo(HaveOccurred())
		other, err := net.Listen("tcp", api.Host)
		Expect(err).NotTo(HaveOccurred())
		time.AfterFunc(2*time.Second, func() { _ = other.Close() })
		Expect(clusters[1].Recover(ctx)).To(Succeed())
	})
})

// timeout of what controllers do. It is generous: the machine can be very busy.
const timeout = time.Minute

func node(name string) *corev1.Node {
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("100"),
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Capacity: room, Allocatable: room,
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
}

func deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(replicas), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
			},
		},
	}
}

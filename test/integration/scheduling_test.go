package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// addNode makes a node of a region, ready for pods.
func addNode(ctx SpecContext, region string) {
	GinkgoHelper()
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("100"),
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: region, Labels: map[string]string{"region": region}}}
	Expect(admin.Create(ctx, node)).To(Succeed())
	node.Spec.Taints = nil // that it is not ready, which a controller would take away
	Expect(admin.Update(ctx, node)).To(Succeed())
	node.Status = corev1.NodeStatus{
		Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}
	Expect(admin.Status().Update(ctx, node)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(admin.Delete(ctx, node)).To(Succeed()) })
}

var _ = Describe("The scheduler", func() {
	It("puts pods on the nodes of their island, and a pod that it cannot place is reported", func(ctx SpecContext) {
		ns := namespace(ctx)
		addNode(ctx, "east")
		addNode(ctx, "west")
		m := startManager("--leader-election=false")
		islands := ownedPool(ns, "islands", 3)
		islands.Spec.Placement = &v1alpha1.Placement{Islands: []v1alpha1.Island{
			{Name: "dear", NodeSelector: map[string]v1alpha1.LabelValue{"region": "east"}, HourlyPrice: "9.80"},
			{Name: "cheap", NodeSelector: map[string]v1alpha1.LabelValue{"region": "west"}, HourlyPrice: "3.10"},
		}}
		Expect(admin.Create(ctx, islands)).To(Succeed())
		nowhere := ownedPool(ns, "nowhere", 1)
		nowhere.Spec.Template.Spec.NodeSelector = map[string]string{"region": "north"}
		Expect(admin.Create(ctx, nowhere)).To(Succeed())

		Eventually(func(g Gomega) []string {
			var pods corev1.PodList
			g.Expect(admin.List(ctx, &pods, client.InNamespace(ns), client.MatchingLabels{v1alpha1.LabelPool: "islands"})).To(Succeed())
			var nodes []string
			for i := range pods.Items {
				nodes = append(nodes, pods.Items[i].Labels[v1alpha1.LabelIsland]+" "+pods.Items[i].Spec.NodeName)
			}
			return nodes
		}).Should(Equal([]string{"cheap west", "cheap west", "cheap west"}))
		Eventually(func(g Gomega) string {
			pool := &v1alpha1.InferencePool{}
			g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(nowhere), pool)).To(Succeed())
			c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionPodsHealthy)
			g.Expect(c).NotTo(BeNil())
			g.Expect(pool.Status.Pods).To(HaveLen(1))
			return string(c.Status) + " " + c.Reason + " " + pool.Status.Pods[0].Reason + ": " + c.Message
		}).Should(And(HavePrefix("False Unschedulable Unschedulable: "), ContainSubstring("node")))
		m.stop()
	})
})

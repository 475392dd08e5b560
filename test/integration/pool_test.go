package integration

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// ownedPool makes its own pods.
func ownedPool(ns, name string, replicas int32) *v1alpha1.InferencePool {
	return &v1alpha1.InferencePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: v1alpha1.InferencePoolSpec{
			Model: v1alpha1.Model{Name: "model"}, Replicas: ptr.To(replicas),
			Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				ServiceAccountName: "default", // which the API server would fill in, were its admission of service accounts on
				Containers:         []corev1.Container{{Name: "vllm", Image: "vllm", Command: []string{"vllm", "serve"}, Args: []string{"model"}}},
			}},
		},
	}
}

// versions of all that a pool has, its own and its policy's included: they change with every write.
func versions(ctx context.Context, ns string) func(g Gomega) map[string]string {
	return func(g Gomega) map[string]string {
		all := map[string]string{}
		for _, list := range []client.ObjectList{
			&v1alpha1.InferencePoolList{}, &v1alpha1.RoutingPolicyList{}, &corev1.PodList{}, &corev1.SecretList{}, &corev1.ConfigMapList{},
			&corev1.ServiceList{}, &appsv1.DeploymentList{}, &appsv1.ControllerRevisionList{}, &rbacv1.RoleList{},
		} {
			g.Expect(admin.List(ctx, list, client.InNamespace(ns))).To(Succeed())
			items, err := meta.ExtractList(list)
			g.Expect(err).NotTo(HaveOccurred())
			for _, item := range items {
				o, err := meta.Accessor(item)
				g.Expect(err).NotTo(HaveOccurred())
				all[string(o.GetUID())] = o.GetName() + " " + o.GetResourceVersion()
			}
		}
		return all
	}
}

var _ = Describe("A pool", func() {
	It("gets pods, pickers and status with the rights that the operator has, and then rests", func(ctx SpecContext) {
		ns := namespace(ctx)
		m := startManager("--leader-election=false")
		Expect(admin.Create(ctx, ownedPool(ns, "m", 2))).To(Succeed())
		Expect(admin.Create(ctx, smallPolicy(ns, "p", "m"))).To(Succeed())

		Eventually(func(g Gomega) []corev1.Pod {
			var pods corev1.PodList
			g.Expect(admin.List(ctx, &pods, client.InNamespace(ns), client.MatchingLabels{v1alpha1.LabelPool: "m"})).To(Succeed())
			return pods.Items
		}).Should(HaveLen(2))
		Eventually(func() error {
			return admin.Get(ctx, client.ObjectKey{Namespace: ns, Name: resources.PickerName("m")}, &appsv1.Deployment{})
		}).Should(Succeed())
		pool := &v1alpha1.InferencePool{}
		Eventually(func(g Gomega) string {
			g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: ns, Name: "m"}, pool)).To(Succeed())
			if c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionAccepted); c != nil {
				return c.Reason
			}
			return ""
		}).Should(Equal("Accepted"))
		Expect(meta.IsStatusConditionTrue(pool.Status.Conditions, v1alpha1.ConditionPolicyAffected)).To(BeTrue())

		// Conditions settle after 10 s in a new state. Then nothing is written any more.
		var before map[string]string
		Eventually(func(g Gomega) {
			last := before
			before = versions(ctx, ns)(g)
			g.Expect(before).To(Equal(last))
		}).WithPolling(12 * time.Second).Should(Succeed())
		Consistently(versions(ctx, ns)).WithTimeout(5 * time.Second).WithPolling(time.Second).Should(Equal(before))

		m.stop()
		m.expectNoSecrets()
		for line := range strings.Lines(string(m.log.Contents())) {
			Expect(line).NotTo(ContainSubstring("forbidden"))
		}
	})
})

package inferencepool_test

import (
	"context"
	"fmt"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
)

var _ = Describe("a pool of groups of pods", Ordered, func() {
	ctx := context.Background()
	const namespace = "groups"

	It("gives up the group of the highest number, through the scale of its owner", func() {
		_, err := envtest.InstallCRDs(administrator, envtest.CRDInstallOptions{Paths: []string{filepath.Join("testdata", "groups.yaml")}})
		Expect(err).NotTo(HaveOccurred())
		Expect(api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
		set := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicas": int64(3)}}}
		set.SetAPIVersion("leaderworkerset.x-k8s.io/v1")
		set.SetKind("LeaderWorkerSet")
		set.SetNamespace(namespace)
		set.SetName("llama")
		Expect(api.Create(ctx, set)).To(Succeed())
		for group := range 3 {
			for member := range 2 {
				name := fmt.Sprintf("llama-%d", group)
				if member > 0 {
					name = fmt.Sprintf("llama-%d-%d", group, 9) // higher than any group
				}
				Expect(api.Create(ctx, &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{
						"app": "llama", config.LabelGroup: fmt.Sprint(group), config.LabelMember: fmt.Sprint(member),
					}},
					Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "vllm", Image: "vllm"}}},
				})).To(Succeed())
			}
		}
		decided.Store(types.NamespacedName{Namespace: namespace, Name: "llama"}, 2)
		Expect(api.Create(ctx, &v1alpha1.InferencePool{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "llama"},
			Spec: v1alpha1.InferencePoolSpec{
				Model:       v1alpha1.Model{Name: "m"},
				Selector:    v1alpha1.PodSelector{MatchLabels: map[string]v1alpha1.LabelValue{"app": "llama"}},
				Adoption:    &v1alpha1.Adoption{ScaleTargetRef: v1alpha1.ScaleTarget{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "LeaderWorkerSet", Name: "llama"}},
				Autoscaling: v1alpha1.Autoscaling{MinReplicas: ptr.To[int32](2), MaxReplicas: 5},
			},
		})).To(Succeed())

		Eventually(func(g Gomega) int64 {
			g.Expect(api.Get(ctx, client.ObjectKeyFromObject(set), set)).To(Succeed())
			n, _, err := unstructured.NestedInt64(set.Object, "spec", "replicas")
			g.Expect(err).NotTo(HaveOccurred())
			return n
		}, "15s").Should(BeEquivalentTo(2), func() string {
			pool := &v1alpha1.InferencePool{}
			_ = api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "llama"}, pool)
			return fmt.Sprintf("conditions %+v", pool.Status.Conditions)
		})
		var pods corev1.PodList
		Expect(api.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{"app": "llama"})).To(Succeed())
		var names, marked []string
		for i := range pods.Items {
			names = append(names, pods.Items[i].Name)
			Expect(pods.Items[i].Annotations).NotTo(HaveKey(corev1.PodDeletionCost), "this owner looks at numbers")
			if _, is := pods.Items[i].Labels[v1alpha1.LabelDrain]; is {
				marked = append(marked, pods.Items[i].Name)
			}
		}
		Expect(names).To(HaveLen(6), "they are their owner's to delete")
		Expect(marked).To(ConsistOf("llama-2"))
		Eventually(func(g Gomega) int32 {
			pool := &v1alpha1.InferencePool{}
			g.Expect(api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "llama"}, pool)).To(Succeed())
			return ptr.Deref(pool.Status.Replicas, 0) + ptr.Deref(pool.Status.DrainingReplicas, 0)
		}).Should(BeEquivalentTo(3), "each group is one pod of the pool")
	})

	It("gives up the pods of a Deployment that it names", func() {
		labels := map[string]string{"app": "plain"}
		deployment := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "plain"},
			Spec: appsv1.DeploymentSpec{
				Replicas: ptr.To[int32](3), Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "vllm", Image: "vllm"}}},
				},
			},
		}
		Expect(api.Create(ctx, deployment)).To(Succeed())
		decided.Store(types.NamespacedName{Namespace: namespace, Name: "plain"}, 2)
		Expect(api.Create(ctx, &v1alpha1.InferencePool{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "plain"},
			Spec: v1alpha1.InferencePoolSpec{
				Model:       v1alpha1.Model{Name: "m"},
				Selector:    v1alpha1.PodSelector{MatchLabels: map[string]v1alpha1.LabelValue{"app": "plain"}},
				Adoption:    &v1alpha1.Adoption{ScaleTargetRef: v1alpha1.ScaleTarget{APIVersion: "apps/v1", Kind: "Deployment", Name: "plain"}},
				Autoscaling: v1alpha1.Autoscaling{MinReplicas: ptr.To[int32](2), MaxReplicas: 5},
			},
		})).To(Succeed())
		Eventually(func(g Gomega) int32 {
			g.Expect(api.Get(ctx, client.ObjectKeyFromObject(deployment), deployment)).To(Succeed())
			return *deployment.Spec.Replicas
		}).Should(BeEquivalentTo(2))
		Eventually(func(g Gomega) int {
			var pods corev1.PodList
			g.Expect(api.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels(labels))).To(Succeed())
			return len(pods.Items)
		}).Should(Equal(2))
	})
})

package inferencepool_test

import (
	"context"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

var _ = Describe("what people ask of a pool", Ordered, func() {
	ctx := context.Background()
	const namespace = "asked"

	get := func(g Gomega, name string) *v1alpha1.InferencePool {
		pool := &v1alpha1.InferencePool{}
		g.Expect(api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, pool)).To(Succeed())
		return pool
	}
	edit := func(name string, change func(*v1alpha1.InferencePool)) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			pool := get(g, name)
			change(pool)
			g.Expect(api.Update(ctx, pool)).To(Succeed())
		}).Should(Succeed())
	}
	create := func(name string, change func(*v1alpha1.InferencePoolSpec)) {
		GinkgoHelper()
		pool := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		pool.Spec = v1alpha1.InferencePoolSpec{
			Model: v1alpha1.Model{Name: "m"}, Replicas: ptr.To[int32](1),
			Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{
				{Name: "vllm", Image: "vllm/vllm-openai:v0.24.0", Args: []string{"--model", "m"}},
			}}},
		}
		if change != nil {
			change(&pool.Spec)
		}
		Expect(api.Create(ctx, pool)).To(Succeed())
	}
	// pods of a pool that stay, by the hash of their revision.
	pods := func(name string) func() []string {
		return func() []string {
			var list corev1.PodList
			Expect(api.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelPool: name})).To(Succeed())
			var revisions []string
			for i := range list.Items {
				if list.Items[i].DeletionTimestamp.IsZero() {
					revisions = append(revisions, list.Items[i].Labels[v1alpha1.LabelRevision])
				}
			}
			return revisions
		}
	}
	reason := func(name, kind string) func() string {
		return func() string {
			c := meta.FindStatusCondition(get(Default, name).Status.Conditions, kind)
			if c == nil {
				return ""
			}
			return c.Reason
		}
	}

	BeforeAll(func() {
		Expect(api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	})

	It("pauses, and goes on", func() {
		create("paused", nil)
		Eventually(pods("paused")).Should(HaveLen(1))
		first := pods("paused")()[0]
		edit("paused", func(p *v1alpha1.InferencePool) {
			p.Spec.Paused, p.Spec.Replicas = v1alpha1.PauseAll, ptr.To[int32](2)
			metav1.SetMetaDataAnnotation(&p.Spec.Template.ObjectMeta, v1alpha1.AnnotationRestartedAt, "2026-01-01T00:00:00Z")
		})
		Eventually(reason("paused", v1alpha1.ConditionUpToDate)).Should(Equal("RolloutPaused"))
		Expect(pods("paused")()).To(ConsistOf(first))
		edit("paused", func(p *v1alpha1.InferencePool) { p.Spec.Paused = v1alpha1.PauseRollout })
		Eventually(pods("paused")).Should(ConsistOf(first, first))
		edit("paused", func(p *v1alpha1.InferencePool) { p.Spec.Paused = "" })
		Eventually(pods("paused")).Should(SatisfyAll(HaveLen(2), Not(ContainElement(first)))) // nothing ran in them
	})

	It("rotates the key root", func() {
		create("rotated", nil)
		secret := &corev1.Secret{}
		root := func(g Gomega) string {
			g.Expect(api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "rotated-key"}, secret)).To(Succeed())
			return string(secret.Data[v1alpha1.SecretKeyRoot])
		}
		var first string
		Eventually(func(g Gomega) { first = root(g) }).Should(Succeed())
		edit("rotated", func(p *v1alpha1.InferencePool) {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, v1alpha1.AnnotationRotateKey, "today")
		})
		Eventually(root).Should(SatisfyAll(Not(Equal(first)), HaveLen(v1alpha1.MinRootBytes)))
		Expect(secret.Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationRotateKey, "today"))
		Expect(metav1.GetControllerOf(secret)).To(HaveField("Name", "rotated"))
	})

	It("asks for nodes, and goes to another island when they are denied", func() {
		_, err := envtest.InstallCRDs(administrator, envtest.CRDInstallOptions{Paths: []string{filepath.Join("testdata", "provisioning.yaml")}})
		Expect(err).NotTo(HaveOccurred())
		provisioning.Store(true)
		create("queued", func(s *v1alpha1.InferencePoolSpec) {
			s.Placement = &v1alpha1.Placement{Islands: []v1alpha1.Island{
				{Name: "queue", HourlyPrice: "1", ProvisioningClassName: "queued.example", NodeSelector: map[string]v1alpha1.LabelValue{"queue": "yes"}},
				{Name: "dear", HourlyPrice: "9"},
			}}
		})
		request := &unstructured.Unstructured{}
		Eventually(func(g Gomega) {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(resources.ProvisioningKind)
			g.Expect(api.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
			g.Expect(list.Items).To(HaveLen(1))
			*request = list.Items[0]
		}).Should(Succeed())
		template := &corev1.PodTemplate{}
		Expect(api.Get(ctx, client.ObjectKeyFromObject(request), template)).To(Succeed())
		Expect(template.Template.Spec.NodeSelector).To(HaveKeyWithValue("queue", "yes"))

		Expect(unstructured.SetNestedSlice(request.Object, []any{map[string]any{
			"type": "Failed", "status": "True", "reason": "NoCapacity", "message": "none", "lastTransitionTime": "2026-01-01T00:00:00Z",
		}}, "status", "conditions")).To(Succeed())
		Expect(api.Status().Update(ctx, request)).To(Succeed())
		Eventually(func(g Gomega) {
			var list corev1.PodList
			g.Expect(api.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelIsland: "dear"})).To(Succeed())
			g.Expect(list.Items).To(HaveLen(1))
		}).Should(Succeed())
		Eventually(func(g Gomega) { // with its pod
			g.Expect(client.IgnoreNotFound(api.Get(ctx, client.ObjectKeyFromObject(request), request))).To(Succeed())
			g.Expect(api.Get(ctx, client.ObjectKeyFromObject(request), template)).NotTo(Succeed())
		}).Should(Succeed())
	})
})

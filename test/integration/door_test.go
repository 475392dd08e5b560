package integration

import (
	"net/http"
	"path/filepath"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/test/kube"
	"github.com/kvasir-dev/kvasir/test/manifests"
)

var _ = Describe("A fleet behind gateways", func() {
	It("is one backend with the pods of all its pools, by the definitions of gateways and the rights of the operator", func(ctx SpecContext) {
		c, err := kube.Start(kube.Options{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(c.Stop)
		_, err = c.Kubectl(ctx, nil, "apply", "--server-side", "-k", filepath.Join(kube.Root(), "config", "default"))
		Expect(err).NotTo(HaveOccurred())
		definitions, err := manifests.Gateways(ctx)
		Expect(err).NotTo(HaveOccurred())
		_, err = envtest.InstallCRDs(c.Config, envtest.CRDInstallOptions{CRDs: definitions})
		Expect(err).NotTo(HaveOccurred())
		there, err := client.New(c.Config, client.Options{Scheme: admin.Scheme()})
		Expect(err).NotTo(HaveOccurred())
		const ns = "default"
		for _, pod := range [][2]string{{"a-0", "a"}, {"b-0", "b"}, {"own-0", "own"}} {
			Expect(there.Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: pod[0], Labels: map[string]string{"app": pod[1]}},
				Spec:       corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "vllm", Image: "vllm"}}},
			})).To(Succeed())
		}
		fleet := &v1alpha1.PickerFleet{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "default"}}
		fleet.Spec.Gateway = v1alpha1.FleetGateway{ParentRefs: []gwapiv1.ParentReference{{Name: "gate"}}}
		Expect(there.Create(ctx, fleet)).To(Succeed())
		for _, name := range []string{"a", "b", "own"} {
			pool := smallPool(ns, name)
			if name != "own" {
				pool.Spec.Picker.Mode = v1alpha1.PickerOfFleet
			}
			Expect(there.Create(ctx, pool)).To(Succeed())
		}
		m := startManagerOf(c, "--leader-election=false")
		Eventually(m.ready).Should(Equal(http.StatusOK))

		door := func(kind schema.GroupVersionKind) (*unstructured.Unstructured, error) {
			o := &unstructured.Unstructured{}
			o.SetGroupVersionKind(kind)
			return o, there.Get(ctx, client.ObjectKey{Namespace: ns, Name: "default-fleet"}, o)
		}
		Eventually(func() error { _, err := door(resources.RouteKind); return err }).Should(Succeed())
		Eventually(func() error { _, err := door(resources.GIEKind); return err }).Should(Succeed())
		selected := func(g Gomega) (names []string) {
			pool, err := door(resources.GIEKind)
			g.Expect(err).NotTo(HaveOccurred())
			selector, _, err := unstructured.NestedStringMap(pool.Object, "spec", "selector", "matchLabels")
			g.Expect(err).NotTo(HaveOccurred())
			var pods corev1.PodList
			g.Expect(there.List(ctx, &pods, client.InNamespace(ns), client.MatchingLabels(selector))).To(Succeed())
			for i := range pods.Items {
				names = append(names, pods.Items[i].Name)
			}
			slices.Sort(names)
			return names
		}
		Eventually(selected).Should(Equal([]string{"a-0", "b-0"}))
		Eventually(func(g Gomega) string {
			g.Expect(there.Get(ctx, client.ObjectKeyFromObject(fleet), fleet)).To(Succeed())
			if c := meta.FindStatusCondition(fleet.Status.Conditions, v1alpha1.ConditionGatewayAccepted); c != nil {
				return c.Reason + ": " + c.Message
			}
			return ""
		}).Should(Equal("NotReferenced: no gateway has a route to the pool"))

		By("following a pod that becomes another pool's, and one whose label is forged")
		Expect(there.Patch(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a-0"}},
			client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"app":"own"}}}`)))).To(Succeed())
		Expect(there.Patch(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "own-0"}},
			client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"fleet.kvasir.dev/default":"engine"}}}`)))).To(Succeed())
		Eventually(selected).Should(Equal([]string{"b-0"}))

		By("making none of it when it is not wanted any more")
		Expect(there.Patch(ctx, fleet, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"gateway":{"mode":"Disabled","parentRefs":null}}}`)))).To(Succeed())
		Eventually(func() []bool {
			_, first := door(resources.RouteKind)
			_, second := door(resources.GIEKind)
			return []bool{client.IgnoreNotFound(first) == nil && first != nil, client.IgnoreNotFound(second) == nil && second != nil}
		}).Should(Equal([]bool{true, true}))
		Eventually(func(g Gomega) []string {
			var pods corev1.PodList
			g.Expect(there.List(ctx, &pods, client.InNamespace(ns), client.HasLabels{v1alpha1.LabelFleetPrefix + "default"})).To(Succeed())
			var names []string
			for i := range pods.Items {
				names = append(names, pods.Items[i].Name)
			}
			return names
		}).Should(BeEmpty())
	})
})

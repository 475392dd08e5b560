package inferencepool_test

import (
	"context"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/event"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

var _ = Describe("a pool behind gateways", Ordered, func() {
	ctx := context.Background()
	const namespace = "behind"

	makePool := func(name string, gateway v1alpha1.Gateway) {
		GinkgoHelper()
		Expect(api.Create(ctx, &v1alpha1.InferencePool{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: v1alpha1.InferencePoolSpec{
				Model: v1alpha1.Model{Name: "m"}, Gateway: gateway,
				Selector: v1alpha1.PodSelector{MatchLabels: map[string]v1alpha1.LabelValue{"app": v1alpha1.LabelValue(name)}},
			},
		})).To(Succeed())
	}
	condition := func(name, kind string) func(Gomega) string {
		return func(g Gomega) string {
			pool := &v1alpha1.InferencePool{}
			g.Expect(api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, pool)).To(Succeed())
			c := meta.FindStatusCondition(pool.Status.Conditions, kind)
			g.Expect(c).NotTo(BeNil())
			return string(c.Status) + " " + c.Reason
		}
	}
	accepted := func(name string) func(Gomega) string { return condition(name, v1alpha1.ConditionGatewayAccepted) }
	read := func(g Gomega, kind schema.GroupVersionKind, name string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(kind)
		g.Expect(api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, o)).To(Succeed())
		return o
	}
	// say writes a status as a gateway does.
	say := func(kind schema.GroupVersionKind, name, accepted, resolved string) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			o := read(g, kind, name)
			said := func(kind, status string) any {
				return map[string]any{"type": kind, "status": status, "reason": "Said", "message": "by hand", "lastTransitionTime": "2026-01-01T00:00:00Z"}
			}
			g.Expect(unstructured.SetNestedSlice(o.Object, []any{map[string]any{
				"parentRef": map[string]any{"name": "gate"}, "controllerName": "example.com/gate",
				"conditions": []any{said("Accepted", accepted), said("ResolvedRefs", resolved)},
			}}, "status", "parents")).To(Succeed())
			g.Expect(api.Status().Update(ctx, o)).To(Succeed())
		}).Should(Succeed())
	}
	// giePool is one of somebody else.
	giePool := func(name, picker, app string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
			"selector":          map[string]any{"matchLabels": map[string]any{"app": app}},
			"targetPorts":       []any{map[string]any{"number": int64(8000)}},
			"endpointPickerRef": map[string]any{"name": picker, "port": map[string]any{"number": int64(9002)}},
		}}}
		o.SetGroupVersionKind(resources.GIEKind)
		o.SetNamespace(namespace)
		o.SetName(name)
		return o
	}

	BeforeAll(func() {
		Expect(api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	})

	It("says that the definitions are missing, and goes on when they have come", func() {
		makePool("routed", v1alpha1.Gateway{ParentRefs: []gwapiv1.ParentReference{{Name: "gate"}}, Hostnames: []gwapiv1.Hostname{"llm.example.com"}})
		makePool("off", v1alpha1.Gateway{Mode: v1alpha1.GatewayDisabled})
		Eventually(accepted("routed")).Should(Equal("Unknown CRDsMissing"))
		Eventually(accepted("off")).Should(Equal("Unknown Disabled"))

		_, err := envtest.InstallCRDs(administrator, envtest.CRDInstallOptions{Paths: []string{filepath.Join("testdata", "gateways.yaml")}})
		Expect(err).NotTo(HaveOccurred())
		gateways.Store(true)
		look <- event.GenericEvent{Object: &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "routed"}}}
		Eventually(accepted("routed")).Should(Equal("False NotReferenced"))
	})

	It("has a pool and a route made for them", func() {
		pool := read(Default, resources.GIEKind, "routed")
		Expect(metav1.GetControllerOf(pool)).To(HaveField("Name", "routed"))
		picker, _, err := unstructured.NestedString(pool.Object, "spec", "endpointPickerRef", "name")
		Expect(err).NotTo(HaveOccurred())
		Expect(picker).To(Equal("routed-picker"))
		route := read(Default, resources.RouteKind, "routed")
		Expect(metav1.GetControllerOf(route)).To(HaveField("Name", "routed"))
		parents, _, err := unstructured.NestedSlice(route.Object, "spec", "parentRefs")
		Expect(err).NotTo(HaveOccurred())
		Expect(parents).To(ConsistOf(HaveKeyWithValue("name", "gate")))
	})

	It("mirrors what gateways say", func() {
		say(resources.GIEKind, "routed", "True", "True")
		Eventually(accepted("routed")).Should(Equal("True Accepted"))
		say(resources.GIEKind, "routed", "True", "False")
		Eventually(accepted("routed")).Should(Equal("False RejectedByGateway"))
		say(resources.GIEKind, "routed", "True", "True")
		say(resources.RouteKind, "routed", "True", "True")
		Eventually(accepted("routed")).Should(Equal("True Accepted"))
		say(resources.RouteKind, "routed", "False", "True")
		Eventually(accepted("routed")).Should(Equal("False RejectedByGateway"))
	})

	It("gets them back when they are deleted", func() {
		before := read(Default, resources.GIEKind, "routed")
		Expect(api.Delete(ctx, before)).To(Succeed())
		Eventually(func(g Gomega) types.UID { return read(g, resources.GIEKind, "routed").GetUID() }).ShouldNot(Equal(before.GetUID()))
	})

	It("leaves one of its name alone that is somebody else's", func() {
		Expect(api.Create(ctx, giePool("taken", "other", "other"))).To(Succeed())
		makePool("taken", v1alpha1.Gateway{})
		Eventually(accepted("taken")).Should(Equal("False NameTaken"))
		Expect(condition("taken", v1alpha1.ConditionAccepted)(Default)).To(Equal("True Accepted"), "the pool serves without")
		other := read(Default, resources.GIEKind, "taken")
		Expect(metav1.GetControllerOf(other)).To(BeNil())
		picker, _, err := unstructured.NestedString(other.Object, "spec", "endpointPickerRef", "name")
		Expect(err).NotTo(HaveOccurred())
		Expect(picker).To(Equal("other"))
	})

	It("checks one that exists, and writes nothing there", func() {
		makePool("existing", v1alpha1.Gateway{Mode: v1alpha1.GatewayExisting})
		Eventually(accepted("existing")).Should(Equal("False NotReferenced"))
		Expect(api.Create(ctx, giePool("existing", "other", "existing"))).To(Succeed())
		Eventually(accepted("existing")).Should(Equal("False WrongPicker"))
		patch := func(body string) {
			GinkgoHelper()
			Expect(api.Patch(ctx, read(Default, resources.GIEKind, "existing"), client.RawPatch(types.MergePatchType, []byte(body)))).To(Succeed())
		}
		patch(`{"spec":{"endpointPickerRef":{"name":"existing-picker"}}}`)
		say(resources.GIEKind, "existing", "True", "True")
		Eventually(accepted("existing")).Should(Equal("True Accepted"))
		patch(`{"spec":{"selector":{"matchLabels":{"more":"x"}}}}`)
		Eventually(accepted("existing")).Should(Equal("False WrongPicker"))
		Expect(read(Default, resources.GIEKind, "existing").GetLabels()).To(BeEmpty())
	})

	It("closes engines, admits a gateway, and names one without pods until they come", func() {
		Expect(api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "infra"}})).To(Succeed())
		infra := gwapiv1.Namespace("infra")
		policyKey := types.NamespacedName{Namespace: namespace, Name: "closed"}
		edit := func(change func(*v1alpha1.InferencePool)) {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				pool := &v1alpha1.InferencePool{}
				g.Expect(api.Get(ctx, policyKey, pool)).To(Succeed())
				change(pool)
				g.Expect(api.Update(ctx, pool)).To(Succeed())
			}).Should(Succeed())
		}
		makePool("closed", v1alpha1.Gateway{ParentRefs: []gwapiv1.ParentReference{{Namespace: &infra, Name: "web"}}})
		Eventually(condition("closed", v1alpha1.ConditionAccepted)).Should(Equal("True Accepted"))
		policy := &networkingv1.NetworkPolicy{}
		Expect(apierrors.IsNotFound(api.Get(ctx, policyKey, policy))).To(BeTrue(), "pods of others are not isolated unasked")

		By("closing them, in spite of a peer that only the API server can refuse")
		edit(func(p *v1alpha1.InferencePool) {
			p.Spec.Engine.NetworkPolicy.From = []v1alpha1.NetworkPeer{{PodSelector: &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like", Values: []string{"x"}}},
			}}}
		})
		Eventually(condition("closed", v1alpha1.ConditionAccepted)).Should(Equal("False ObjectRefused"))
		edit(func(p *v1alpha1.InferencePool) {
			p.Spec.Engine.NetworkPolicy = v1alpha1.EngineNetworkPolicy{Mode: v1alpha1.EngineNetworkClosed}
		})
		Eventually(api.Get).WithArguments(ctx, policyKey, policy).Should(Succeed())
		Expect(policy.Spec.Ingress).NotTo(BeEmpty())
		for _, rule := range policy.Spec.Ingress {
			Expect(rule.From).NotTo(BeEmpty(), "a rule admits all")
		}
		closed := condition("closed", v1alpha1.ConditionEnginesClosed)
		Eventually(closed).Should(Equal("False GatewayPodsMissing"))

		By("finding the gateway's pods in its namespace")
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "infra", Name: "web-0", Labels: map[string]string{resources.LabelGateway: "web"}},
			Spec:       corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "envoy", Image: "envoy:v1"}}},
		}
		Eventually(func() error { return api.Create(ctx, pod.DeepCopy()) }).Should(Succeed()) // its account comes late
		Eventually(closed).Should(Equal("True Closed"))
		Expect(api.Delete(ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		Eventually(closed).Should(Equal("False GatewayPodsMissing"))

		By("opening them again")
		edit(func(p *v1alpha1.InferencePool) { p.Spec.Engine.NetworkPolicy.Mode = v1alpha1.EngineNetworkNone })
		Eventually(func() bool { return apierrors.IsNotFound(api.Get(ctx, policyKey, policy)) }).Should(BeTrue())
		edit(func(p *v1alpha1.InferencePool) { p.Spec.Engine.NetworkPolicy.Mode = v1alpha1.EngineNetworkOpen })
		Eventually(api.Get).WithArguments(ctx, policyKey, policy).Should(Succeed())
		Eventually(closed).Should(Equal("Unknown Open"))
		pool := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "closed"}}
		Expect(api.Delete(ctx, pool, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		Eventually(func() bool { return apierrors.IsNotFound(api.Get(ctx, policyKey, policy)) }).Should(BeTrue(), "it goes with its pool")
		Expect(api.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "infra"}})).To(Succeed())
	})

	AfterAll(func() {
		for _, name := range []string{"routed", "off", "taken", "existing"} {
			pool := &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
			Expect(api.Delete(ctx, pool, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		}
		Expect(api.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	})
})

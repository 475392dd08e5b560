package inferencepool_test

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

var _ = Describe("a pool in a namespace with limits", Ordered, func() {
	ctx := context.Background()
	const gpu, namespace = "nvidia.com/gpu", "limited"
	w := waiting{types.NamespacedName{Namespace: namespace, Name: "chat"}}
	amounts := func(pairs ...string) corev1.ResourceList {
		list := corev1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return list
	}
	// limit creates an object of the namespace that is gone after the spec, but not before its pool: without it a pool that is about to be
	// deleted could get a pod that the next spec takes for one of its own.
	var limits []client.Object
	limit := func(object client.Object) {
		GinkgoHelper()
		object.SetNamespace(namespace)
		Expect(api.Create(ctx, object)).To(Succeed())
		limits = append(limits, object)
	}
	// quota creates one, and waits until Kubernetes counts.
	quota := func(pairs ...string) *corev1.ResourceQuota {
		GinkgoHelper()
		q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "team"}, Spec: corev1.ResourceQuotaSpec{Hard: amounts(pairs...)}}
		limit(q)
		Eventually(func(g Gomega) {
			g.Expect(api.Get(ctx, client.ObjectKeyFromObject(q), q)).To(Succeed())
			g.Expect(q.Status.Used).To(HaveLen(len(q.Spec.Hard)))
		}).Should(Succeed())
		return q
	}

	BeforeAll(func() {
		Expect(api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	})
	BeforeEach(func() {
		DeferCleanup(func() {
			for _, object := range limits {
				Expect(client.IgnoreNotFound(api.Delete(ctx, object))).To(Succeed())
			}
			limits = nil
		})
		w.clear() // whose cleanup comes first
	})
	create := func(replicas int32) {
		GinkgoHelper()
		w.create(replicas, func(s *v1alpha1.InferencePoolSpec) {
			s.Template.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: amounts(gpu, "1"), Requests: amounts("cpu", "1", "memory", "8Gi")}
		})
	}

	It("keeps what a LimitRange adds to its pods", func() {
		limit(&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "defaults"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, Default: amounts("cpu", "4", "memory", "16Gi", "ephemeral-storage", "9Gi"),
		}}}})
		create(2)
		w.says(2, v1alpha1.ConditionAccepted, "Accepted")
		before := w.pods(Default)
		for i := range before {
			limits := before[i].Spec.Containers[0].Resources.Limits
			Expect(limits.Cpu().String()).To(Equal("4"))
			Expect(limits[gpu]).To(Equal(resource.MustParse("1")))
		}
		w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](3) })
		w.says(3, v1alpha1.ConditionUpToDate, "UpToDate")
		after := map[types.UID]bool{}
		for _, pod := range w.pods(Default) {
			after[pod.UID] = true
		}
		Expect(after).To(And(HaveKey(before[0].UID), HaveKey(before[1].UID)))
	})

	It("names the LimitRange that refuses its pods", func() {
		limit(&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "narrow"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, Min: amounts("memory", "9Gi"),
		}}}})
		create(1)
		w.says(0, v1alpha1.ConditionAccepted, "NotPermitted", "minimum memory usage per Container is 9Gi, but request is 8Gi")
	})

	It("names the quota that its pods have used up, keeps them, and goes on when there is more", func() {
		q := quota("requests."+gpu, "1")
		create(2)
		w.says(1, v1alpha1.ConditionScaled, "QuotaExceeded", "exceeded quota: team, requested: requests."+gpu+"=1, used: requests."+gpu+"=1")
		var first types.UID
		Eventually(func(g Gomega) { // not one of the pool before, which Kubernetes is about to delete
			pods := w.pods(g)
			g.Expect(pods).To(HaveLen(1))
			g.Expect(metav1.IsControlledBy(&pods[0], w.get(g))).To(BeTrue())
			first = pods[0].UID
		}).Should(Succeed())
		w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](1) })
		w.says(1, v1alpha1.ConditionScaled, "ScalingUp") // it is not ready
		w.edit(func(s *v1alpha1.InferencePoolSpec) { s.Replicas = ptr.To[int32](2) })
		w.says(1, v1alpha1.ConditionScaled, "QuotaExceeded")
		Expect(w.pods(Default)[0].UID).To(Equal(first))
		more := fmt.Appendf(nil, `{"spec": {"hard": {"requests.%s": "2"}}}`, gpu)
		Expect(api.Patch(ctx, q, client.RawPatch(types.MergePatchType, more))).To(Succeed())
		w.says(2, v1alpha1.ConditionScaled, "ScalingUp")
	})

	It("names what a quota wants the sidecar to state, which the pool can", func() {
		quota("limits.cpu", "64")
		create(1)
		w.edit(func(s *v1alpha1.InferencePoolSpec) {
			s.Template.Spec.Containers[0].Resources.Limits[corev1.ResourceCPU] = resource.MustParse("8")
		})
		w.says(0, v1alpha1.ConditionAccepted, "NotPermitted", "must specify limits.cpu for: kvasir-reporter")
		w.edit(func(s *v1alpha1.InferencePoolSpec) {
			s.Engine.Events.Reporter.Resources = &corev1.ResourceRequirements{Limits: amounts("cpu", "1", "memory", "128Mi")}
		})
		w.says(1, v1alpha1.ConditionAccepted, "Accepted")
	})

	It("names the quota of objects beside the pods, and creates the others", func() {
		quota("count/networkpolicies.networking.k8s.io", "0")
		create(1)
		w.says(1, v1alpha1.ConditionAccepted, "ObjectRefused", "exceeded quota: team", "networkpolicies.networking.k8s.io")
		Expect(api.Get(ctx, w.key, &policyv1.PodDisruptionBudget{})).To(Succeed())
		Expect(api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "chat-picker"}, &corev1.Service{})).To(Succeed())
	})
})

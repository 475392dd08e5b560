package inferencepool_test

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

var _ = Describe("a pool that is deleted with --cascade=orphan", Ordered, func() {
	ctx := context.Background()
	const namespace = "orphans"
	w := waiting{types.NamespacedName{Namespace: namespace, Name: "chat"}}

	// owned are the UIDs of what a pool has made, by name. All of it must belong to the present pool.
	owned := func(g Gomega) map[string]types.UID {
		pool, out := w.get(g), map[string]types.UID{}
		objects := []client.Object{
			&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "chat-picker"}}, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "chat-picker"}},
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "chat-key"}}, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "chat-picker-tls"}},
			&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "chat"}},
		}
		for _, pod := range w.pods(g) {
			objects = append(objects, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}})
		}
		for _, o := range objects {
			g.Expect(api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: o.GetName()}, o)).To(Succeed())
			g.Expect(metav1.IsControlledBy(o, pool)).To(BeTrue(), "%T %s belongs to %v", o, o.GetName(), o.GetOwnerReferences())
			out[fmt.Sprintf("%T %s", o, o.GetName())] = o.GetUID()
		}
		return out
	}

	BeforeAll(func() {
		Expect(api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	})

	It("leaves pods, which a pool of its name adopts, also with another value of an immutable field", func() {
		w.create(2, func(*v1alpha1.InferencePoolSpec) {})
		w.says(2, v1alpha1.ConditionAccepted, "Accepted")
		var before map[string]types.UID
		Eventually(func(g Gomega) { before = owned(g) }).Should(Succeed())

		former := w.get(Default)
		Expect(api.Delete(ctx, former, client.PropagationPolicy(metav1.DeletePropagationOrphan))).To(Succeed())
		Eventually(func() bool { return apierrors.IsNotFound(api.Get(ctx, w.key, &v1alpha1.InferencePool{})) }).Should(BeTrue())
		w.create(2, func(s *v1alpha1.InferencePoolSpec) { s.Model.Name = "another" })
		DeferCleanup(func() { Expect(api.Delete(ctx, w.get(Default))).To(Succeed()) })
		Expect(w.get(Default).UID).NotTo(Equal(former.UID))

		Eventually(owned).Should(Equal(before))
		w.says(2, v1alpha1.ConditionAccepted, "Accepted")
		w.says(2, v1alpha1.ConditionUpToDate, "UpToDate")
		w.quiet()
		Expect(owned(Default)).To(Equal(before))
	})
})

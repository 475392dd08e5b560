package integration

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

var _ = Describe("The status of policies", Ordered, func() {
	BeforeAll(func() {
		m := startManager("--leader-election=false")
		DeferCleanup(m.stop)
	})

	It("follows pools that come and go", func(ctx SpecContext) {
		ns := namespace(ctx)
		Expect(admin.Create(ctx, smallPolicy(ns, "p", "m"))).To(Succeed())
		Eventually(reason(ctx, ns, "p", v1alpha1.ConditionAccepted)).Should(Equal("TargetNotFound"))
		pool := smallPool(ns, "m")
		Expect(admin.Create(ctx, pool)).To(Succeed())
		Eventually(reason(ctx, ns, "p", v1alpha1.ConditionAccepted)).Should(Equal("Accepted"))
		Eventually(reason(ctx, ns, "p", v1alpha1.ConditionProgrammed)).Should(Equal("NoPicker"))
		Expect(admin.Delete(ctx, pool)).To(Succeed())
		Eventually(reason(ctx, ns, "p", v1alpha1.ConditionAccepted)).Should(Equal("TargetNotFound"))
	})

	It("names the winner of two, and follows when it goes", func(ctx SpecContext) {
		ns := namespace(ctx)
		Expect(admin.Create(ctx, smallPool(ns, "m"))).To(Succeed())
		winner := smallPolicy(ns, "a", "m")
		Expect(admin.Create(ctx, winner)).To(Succeed())
		Expect(admin.Create(ctx, smallPolicy(ns, "b", "m"))).To(Succeed()) // as old, or younger
		Eventually(reason(ctx, ns, "a", v1alpha1.ConditionAccepted)).Should(Equal("Accepted"))
		Eventually(reason(ctx, ns, "b", v1alpha1.ConditionAccepted)).Should(Equal("Conflicted"))
		Eventually(func(g Gomega) []string {
			var list eventsv1.EventList
			g.Expect(admin.List(ctx, &list, client.InNamespace(ns))).To(Succeed())
			var notes []string
			for i := range list.Items {
				if e := &list.Items[i]; e.Reason == "PolicyConflicted" && e.Regarding.Name == "m" && e.Related != nil && e.Related.Name == "b" {
					notes = append(notes, e.Note)
				}
			}
			return notes
		}).Should(ConsistOf(ContainSubstring("RoutingPolicy a")))

		Expect(admin.Delete(ctx, winner)).To(Succeed())
		Eventually(reason(ctx, ns, "b", v1alpha1.ConditionAccepted)).Should(Equal("Accepted"))
	})

	It("reports Secrets without permission to list them", func(ctx SpecContext) {
		ns := namespace(ctx)
		Expect(admin.Create(ctx, smallPool(ns, "m"))).To(Succeed())
		p := smallPolicy(ns, "p", "m")
		p.Spec.Admission.Tenants = v1alpha1.Tenants{
			Identification: v1alpha1.IdentifyByAPIKey, SecretRefs: []v1alpha1.LocalName{{Name: "keys"}},
			Classes: []v1alpha1.TenantClass{{Name: "default"}},
		}
		Expect(admin.Create(ctx, p)).To(Succeed())
		Eventually(reason(ctx, ns, "p", v1alpha1.ConditionResolvedRefs)).Should(Equal("SecretNotFound"))
		Expect(admin.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "keys"},
			StringData: map[string]string{"acme": `{"sha256":["` + strings.Repeat("0a", 32) + `"]}`},
		})).To(Succeed())
		Eventually(reason(ctx, ns, "p", v1alpha1.ConditionResolvedRefs)).Should(Equal("ResolvedRefs"))
	})
})

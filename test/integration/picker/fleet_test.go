package picker_test

import (
	"context"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/test/kube"
)

var _ = Describe("A picker of a fleet", func() {
	It("serves the pools that name it, and reports about each", func(ctx SpecContext) {
		w := newWorld(ctx)
		w.source = "--fleet"
		w.start(ctx)
		Eventually(w.ready, patience).Should(Equal(200), "a fleet without pools is ready: pools that come then wait for nothing")

		pool := smallPool(w.port)
		pool.Spec.Picker.Mode, pool.Spec.Picker.FleetRef.Name = v1alpha1.PickerOfFleet, poolName
		w.create(ctx, pool, strategy(v1alpha1.StrategyRoundRobin))
		other := smallPool(w.port)
		other.Name, other.Spec.Model.Name, other.Spec.Picker = "other", "other", pool.Spec.Picker
		other.Spec.Selector.MatchLabels["app"] = "other"
		w.create(ctx, other)
		a := w.pod(ctx, "a", kube.Address(0, 0, 2))
		w.pod(ctx, "b", kube.Address(0, 0, 3))
		n := 0
		asked := func() string { n++; return w.ask(n) }
		Eventually(asked, patience).Should(HavePrefix("b"), "the other pool has no key root yet, which is its problem alone")
		Eventually(asked, patience).Should(HavePrefix("a"))

		By("following a route, once it has the right to")
		Expect(w.logs.String()).To(ContainSubstring("refuses ModelRoutes"))
		route := &v1alpha1.ModelRoute{ObjectMeta: metav1.ObjectMeta{Name: "chat"}}
		route.Spec.Models = []v1alpha1.ModelName{"chat"}
		route.Spec.Rules = []v1alpha1.ModelRouteRule{{Backends: []v1alpha1.ModelRouteBackend{{Pool: poolName}}}}
		w.create(ctx, route)
		Expect(w.askFor("chat", n)).To(Equal("404 Not Found"))
		routes := metav1.ObjectMeta{Name: "routes"}
		w.create(ctx,
			&rbacv1.Role{ObjectMeta: routes, Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"modelroutes"}, Verbs: []string{"get", "list", "watch"},
			}}},
			&rbacv1.RoleBinding{
				ObjectMeta: routes, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: routes.Name},
				Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: poolName + "-picker", Namespace: namespace}},
			})
		chat := func() string { n++; return w.askFor("chat", n) }
		Eventually(chat, 2*patience).Should(SatisfyAny(HavePrefix("a"), HavePrefix("b")), "the picker asks again after at most half a minute")
		Expect(w.client.Delete(ctx, route)).To(Succeed())
		Eventually(chat, patience).Should(Equal("404 Not Found"))

		By("reporting to the operator")
		pickers := w.listen(w.tokenOf(ctx, operator, rpc.OperateAudience))
		replicas := func() int { v := pickers.View(namespace + "/" + poolName); return len(v.Replicas) }
		Eventually(replicas, patience).Should(Equal(1))
		acknowledged := func() bool {
			v := pickers.View(namespace + "/" + poolName)
			_, ok := v.Acknowledged(string(a.UID))
			return ok
		}
		w.label(ctx, a, v1alpha1.LabelDrain, "manual")
		Eventually(acknowledged, patience).Should(BeTrue())
		w.label(ctx, a, v1alpha1.LabelDrain, "")
		Eventually(acknowledged, patience).Should(BeFalse())

		By("showing its metrics to accounts that can get those of all pools, and not of one alone")
		Expect(w.scrape(w.tokenOf(ctx, monitor))).To(Equal(200))
		one := metav1.ObjectMeta{Name: "one"}
		w.create(ctx, &corev1.ServiceAccount{ObjectMeta: one},
			&rbacv1.Role{ObjectMeta: one, Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"inferencepools/metrics"}, ResourceNames: []string{poolName},
				Verbs: []string{"get"},
			}}},
			&rbacv1.RoleBinding{
				ObjectMeta: one, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: one.Name},
				Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: one.Name, Namespace: namespace}},
			})
		Expect(w.scrape(w.tokenOf(ctx, one.Name))).To(Equal(403))

		By("serving a pool on, by its name and by a route, when it leaves for pickers of its own under load")
		again := &v1alpha1.ModelRoute{ObjectMeta: metav1.ObjectMeta{Name: "again"}, Spec: *route.Spec.DeepCopy()}
		w.create(ctx, again)
		Eventually(chat, patience).Should(SatisfyAny(HavePrefix("a"), HavePrefix("b")))
		loading, stop := context.WithCancel(ctx)
		failed, load := make(chan string, 100), sync.WaitGroup{}
		for client, model := range []string{"m", "chat", "chat"} {
			load.Go(func() {
				for i := 0; loading.Err() == nil; i++ {
					if answer := w.askFor(model, 1000*(client+1)+i); !strings.HasPrefix(answer, "a") && !strings.HasPrefix(answer, "b") {
						select {
						case failed <- model + ": " + answer:
						default:
						}
					}
				}
			})
		}
		Expect(w.client.Get(ctx, client.ObjectKeyFromObject(pool), pool)).To(Succeed())
		pool.Spec.Picker.Mode, pool.Spec.Picker.FleetRef.Name = v1alpha1.PickerManaged, ""
		Expect(w.client.Update(ctx, pool)).To(Succeed())
		Eventually(w.logs.String, patience).Should(ContainSubstring("left the fleet"))
		Consistently(chat, "500ms").Should(SatisfyAny(HavePrefix("a"), HavePrefix("b")))
		stop()
		load.Wait()
		Expect(failed).To(BeEmpty())
	}, SpecTimeout(3*time.Minute))
})

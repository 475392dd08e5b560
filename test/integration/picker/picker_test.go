package picker_test

import (
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/test/kube"
)

const patience = 30 * time.Second

func smallPool(port int) *v1alpha1.InferencePool {
	p := &v1alpha1.InferencePool{
		ObjectMeta: metav1.ObjectMeta{Name: poolName},
		Spec: v1alpha1.InferencePoolSpec{
			Model:    v1alpha1.Model{Name: "m"},
			Selector: v1alpha1.PodSelector{MatchLabels: map[string]v1alpha1.LabelValue{"app": "m"}},
		},
	}
	p.Spec.Engine.Ports.HTTP = int32(port)
	p.Spec.Engine.Events.Source = v1alpha1.EventsNone
	return p
}

func strategy(name v1alpha1.StrategyType) *v1alpha1.RoutingPolicy {
	p := &v1alpha1.RoutingPolicy{ObjectMeta: metav1.ObjectMeta{Name: "chat"}}
	p.Spec.TargetRefs = []v1alpha1.PolicyTarget{{Name: poolName}}
	p.Spec.Strategy.Type = name
	p.Spec.Decisions.AnswerHeaders = v1alpha1.AnswerHeadersAlways
	return p
}

var _ = Describe("A picker in a cluster", func() {
	It("follows pool, policy and pods, and goes on while the API server is away", func(ctx SpecContext) {
		w := newWorld(ctx)
		w.start(ctx)
		Consistently(w.ready, "500ms").ShouldNot(Equal(200), "it is not ready without its pool")

		pool := smallPool(w.port)
		w.create(ctx, pool, strategy(v1alpha1.StrategyRoundRobin))
		a := w.pod(ctx, "a", kube.Address(0, 0, 2))
		w.pod(ctx, "b", kube.Address(0, 0, 3))
		Eventually(w.ready, patience).Should(Equal(200))
		n := 0
		asked := func() string { n++; return w.ask(n) }
		Eventually(asked, patience).Should(HavePrefix("b"))
		Eventually(asked, patience).Should(HavePrefix("a"))

		By("reporting to the operator, and to no other client")
		name := namespace + "/" + poolName
		pickers := w.listen(w.tokenOf(ctx, operator, rpc.OperateAudience))
		strangers := []*rpc.Pickers{
			w.listen(w.tokenOf(ctx, operator)),
			w.listen(w.tokenOf(ctx, poolName+"-picker", rpc.OperateAudience)),
			w.listen("x"),
		}
		Eventually(func() int { v := pickers.View(name); return len(v.Replicas) }, patience).Should(Equal(1))
		view := pickers.View(name)
		Expect(view.Replicas[0].PoolGeneration).To(Equal(pool.Generation))
		programmed := func(generation int64) int {
			v := pickers.View(name)
			n, _ := v.Programmed("chat", generation)
			return n
		}
		Expect(programmed(1)).To(Equal(1))
		Expect(view.Synced(string(a.UID))).To(BeTrue())

		By("showing its metrics to users that are allowed to see them")
		Expect(w.scrape(w.tokenOf(ctx, monitor))).To(Equal(200))
		Expect(w.scrape(w.tokenOf(ctx, operator))).To(Equal(403))
		Expect(w.scrape(w.tokenOf(ctx, monitor, "elsewhere"))).To(Equal(401))

		By("following a mark")
		acknowledged := func() bool { v := pickers.View(name); _, ok := v.Acknowledged(string(a.UID)); return ok }
		Expect(acknowledged()).To(BeFalse())
		marked := time.Now()
		w.label(ctx, a, v1alpha1.LabelDrain, "manual")
		Eventually(acknowledged, patience, "5ms").Should(BeTrue())
		GinkgoWriter.Printf("the mark is acknowledged after %v\n", time.Since(marked))
		for range 20 {
			Expect(asked()).To(HavePrefix("b"), "no request goes there once the mark is acknowledged")
		}
		w.label(ctx, a, v1alpha1.LabelDrain, "")
		Eventually(asked, patience).Should(HavePrefix("a"))
		Eventually(acknowledged, patience).Should(BeFalse(), "it reports after it has begun to choose the pod again")

		By("following a policy within a second")
		policy := &v1alpha1.RoutingPolicy{}
		Expect(w.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "chat"}, policy)).To(Succeed())
		policy.Spec.Strategy = v1alpha1.Strategy{Type: v1alpha1.StrategyLeastLoad}
		Expect(w.client.Update(ctx, policy)).To(Succeed())
		changed := time.Now()
		Eventually(asked, patience, "5ms").Should(HaveSuffix("LeastLoad"))
		took := time.Since(changed)
		GinkgoWriter.Printf("the policy is in force after %v\n", took)
		Expect(took).To(BeNumerically("<", 10*time.Second), "it must not wait for a poll")
		Eventually(programmed, patience).WithArguments(policy.Generation).Should(Equal(1))

		By("going on while the API server is away")
		w.wire.set(true)
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
			Expect(asked()).To(SatisfyAny(HavePrefix("a"), HavePrefix("b")))
		}
		Expect(w.ready()).To(Equal(200))
		w.label(ctx, a, v1alpha1.LabelDrain, "manual")
		Consistently(acknowledged, "500ms").Should(BeFalse())
		w.wire.set(false)
		Eventually(acknowledged, 60*time.Second).Should(BeTrue(), "it hears again")
		w.label(ctx, a, v1alpha1.LabelDrain, "")
		Eventually(asked, patience).Should(HavePrefix("a"))

		By("leaving a pod that is being deleted, or is another one of the same name")
		Expect(w.client.Delete(ctx, a, client.GracePeriodSeconds(0))).To(Succeed())
		Eventually(func() []string {
			var pods []string
			for range 6 {
				pods = append(pods, strings.TrimSuffix(asked(), "LeastLoad"))
			}
			return pods
		}, patience).Should(HaveEach(HavePrefix("b")))
		Eventually(func() error {
			v := pickers.View(name)
			if _, known := v.Pod(string(a.UID)); known {
				return fmt.Errorf("pod %s is still told of", a.UID)
			}
			return nil
		}, patience).Should(Succeed())
		for _, s := range strangers {
			v := s.View(name)
			Expect(v.Replicas).To(BeEmpty())
		}
	}, SpecTimeout(3*time.Minute))

	It("does without what it may not read, and says so", func(ctx SpecContext) {
		w := newWorld(ctx)
		pool, policy := smallPool(w.port), strategy(v1alpha1.StrategyRoundRobin)
		w.create(ctx, pool, policy, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "others"}})
		w.pod(ctx, "a", kube.Address(0, 0, 2))
		w.start(ctx)
		Eventually(func() string { return w.ask(1) }, patience).Should(HavePrefix("a"))
		pool.Spec.Engine.APIKey = v1alpha1.SecretKey{Name: "others", Key: "key"}
		Expect(w.client.Update(ctx, pool)).To(Succeed())
		Eventually(func() string { return w.logs.String() }, patience).Should(ContainSubstring("Secret default/others"))
		Expect(w.ask(2)).To(HavePrefix("a"), "the last good state stays")
	}, SpecTimeout(2*time.Minute))
})

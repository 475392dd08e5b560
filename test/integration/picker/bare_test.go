package picker_test

import (
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/test/kube"
)

var _ = Describe("A picker of a pool that only gateways know", func() {
	It("serves it with all defaults, and follows its policy", func(ctx SpecContext) {
		_, err := envtest.InstallCRDs(cluster.Config, envtest.CRDInstallOptions{
			Paths: []string{filepath.Join("..", "inferencepool", "testdata", "gateways.yaml")},
		})
		Expect(err).NotTo(HaveOccurred())
		w := newWorld(ctx)
		w.source = "--gateway-pool"
		w.start(ctx)
		Consistently(w.ready, "500ms").ShouldNot(Equal(200))

		bare := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
			"selector":          map[string]any{"matchLabels": map[string]any{"app": "m"}},
			"targetPorts":       []any{map[string]any{"number": int64(w.port)}},
			"endpointPickerRef": map[string]any{"name": "somebodys-picker", "port": map[string]any{"number": int64(9002)}},
		}}}
		bare.SetGroupVersionKind(resources.GIEKind)
		bare.SetName(poolName)
		policy := &v1alpha1.RoutingPolicy{ObjectMeta: metav1.ObjectMeta{Name: "bare"}}
		policy.Spec.TargetRefs = []v1alpha1.PolicyTarget{{Group: ptr.To(resources.GIEKind.Group), Name: poolName}}
		policy.Spec.Strategy.Type = v1alpha1.StrategyRoundRobin
		policy.Spec.Decisions.AnswerHeaders = v1alpha1.AnswerHeadersAlways
		w.create(ctx, bare, policy)
		w.pod(ctx, "a", kube.Address(0, 0, 2))
		w.pod(ctx, "b", kube.Address(0, 0, 3))
		n := 0
		asked := func() string { n++; return w.ask(n) }
		Eventually(asked, patience).Should(HavePrefix("b"))
		Eventually(asked, patience).Should(HavePrefix("a"))
		Eventually(w.ready, patience).Should(Equal(200))
		Expect(w.client.Get(ctx, client.ObjectKeyFromObject(policy), policy)).To(Succeed())
		policy.Spec.Strategy = v1alpha1.Strategy{Type: v1alpha1.StrategyLeastLoad}
		Expect(w.client.Update(ctx, policy)).To(Succeed())
		Eventually(asked, patience).Should(HaveSuffix("LeastLoad"))
	}, SpecTimeout(2*time.Minute))
})

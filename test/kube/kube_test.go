package kube_test

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kvasirv1alpha1 "github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/test/kube"
)

func TestKube(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Control plane")
}

var _ = Describe("A control plane", func() {
	It("knows our kinds", func(ctx SpecContext) {
		cluster, err := kube.Start()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(cluster.Stop)

		Expect(kvasirv1alpha1.AddToScheme(scheme.Scheme)).To(Succeed())
		c, err := client.New(cluster.Config, client.Options{})
		Expect(err).NotTo(HaveOccurred())
		pool := &kvasirv1alpha1.InferencePool{
			ObjectMeta: metav1.ObjectMeta{Name: "m", Namespace: "default"},
			Spec: kvasirv1alpha1.InferencePoolSpec{
				Model:    kvasirv1alpha1.Model{Name: "m"},
				Selector: kvasirv1alpha1.PodSelector{MatchLabels: map[string]kvasirv1alpha1.LabelValue{"app": "m"}},
			},
		}
		Expect(c.Create(ctx, pool)).To(Succeed())
		Expect(pool.Spec.KeySpace.BlockTokens).To(Equal(int32(16)))
	})
})

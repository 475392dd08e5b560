package integration

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/kvasir-dev/kvasir/test/kube"
)

var _ = Describe("The Lease", func() {
	// A control plane of its own: one that makes the pods of Deployments, and removes what has lost its owner.
	var c *kube.Cluster
	get := func(ctx context.Context, args ...string) string {
		GinkgoHelper()
		out, err := c.Kubectl(ctx, nil, append([]string{"get", "--namespace=" + system, "--ignore-not-found"}, args...)...)
		Expect(err).NotTo(HaveOccurred())
		return out
	}
	lease := func(ctx context.Context, field string) func() string {
		return func() string { return get(ctx, "lease", "manager.kvasir.dev", "--output=jsonpath={"+field+"}") }
	}
	BeforeEach(func(ctx SpecContext) {
		var err error
		c, err = kube.Start(kube.Options{ControllerManager: true})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(c.Stop)
		_, err = c.Kubectl(ctx, nil, "apply", "--server-side", "-k", filepath.Join(kube.Root(), "config", "default"))
		Expect(err).NotTo(HaveOccurred())
	})

	It("goes with the Deployment whose replicas write it, and stays where there is none", func(ctx SpecContext) {
		By("staying without an owner where the operator runs in no pod")
		outside := startManagerOf(c)
		Eventually(lease(ctx, ".spec.holderIdentity")).ShouldNot(BeEmpty())
		Expect(lease(ctx, ".metadata.ownerReferences")()).To(BeEmpty())
		outside.stop()

		By("passing to a replica of the Deployment")
		var pods []string
		Eventually(func() int {
			pods = strings.Fields(get(ctx, "pods", "--selector=app.kubernetes.io/name="+operator, "--output=jsonpath={.items[*].metadata.name}"))
			return len(pods)
		}).Should(Equal(2))
		first := startManagerOf(c, "--pod="+pods[0])
		uid := get(ctx, "deployment", operator, "--output=jsonpath={.metadata.uid}")
		Expect(uid).NotTo(BeEmpty())
		Eventually(lease(ctx, ".metadata.ownerReferences[*].uid")).Should(Equal(uid))
		Expect(lease(ctx, ".metadata.ownerReferences[*]['kind','name','blockOwnerDeletion']")()).To(Equal("Deployment " + operator))
		second := startManagerOf(c, "--pod="+pods[1])
		Eventually(second.ready).Should(Equal(http.StatusOK))
		held := lease(ctx, ".spec.holderIdentity")()
		first.stop()
		Eventually(lease(ctx, ".spec.holderIdentity")).Should(And(Not(BeEmpty()), Not(Equal(held))))
		Expect(lease(ctx, ".metadata.ownerReferences[*].uid")()).To(Equal(uid))
		Expect(get(ctx, "events.events.k8s.io", "--output=jsonpath={.items[?(@.reason=='LeaderElection')].note}")).To(ContainSubstring("became leader"))

		By("going, also where a replica that has not ended yet writes it again")
		was := lease(ctx, ".metadata.uid")()
		_, err := c.Kubectl(ctx, nil, "delete", "deployment", operator, "--namespace="+system)
		Expect(err).NotTo(HaveOccurred())
		Eventually(lease(ctx, ".metadata.uid")).ShouldNot(Equal(was))
		second.stop()
		Eventually(lease(ctx, ".metadata.uid")).Should(BeEmpty())
		Consistently(lease(ctx, ".metadata.uid"), "1s").Should(BeEmpty())
	})
})

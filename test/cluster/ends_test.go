package cluster

import (
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// upgrade: a new version of Kvasir restarts no engine.
func upgrade() {
	It("is upgraded from the chart before without a failure or an engine's restart", func(ctx SpecContext) {
		pods, before := names(w.pods(ctx, engines)), w.pods(ctx, engines)
		Expect(underLoad(ctx, func() {
			w.install(ctx, chart, "dev")
			Eventually(func() bool {
				images := w.kubectl(ctx, "get", "pods", "-n", namespace, "-o", "jsonpath={.items[*].spec.initContainers[*].image} {.items[*].spec.containers[*].image}")
				return strings.Count(images, "kvasir/picker:dev") == 2 && strings.Count(images, "kvasir/reporter:dev") == 3
			}).Should(BeTrue(), "pickers and reporters are not upgraded")
			w.settled(ctx, 3)
		})).To(BeEmpty())
		Expect(names(w.pods(ctx, engines))).To(Equal(pods))
		for _, p := range w.pods(ctx, engines) {
			i := slices.Index(pods, p.Name)
			Expect(restarts(&p, "vllm")).To(Equal(restarts(&before[i], "vllm")), "the engine of %s was started again", p.Name)
		}
	})

}

// uninstall: what is removed leaves nothing but the definitions.
func uninstall() {
	It("leaves only the definitions and the users' objects when it is uninstalled", func(ctx SpecContext) {
		_, err := w.program(ctx, "helm", "uninstall", release, "--namespace="+system, "--wait")
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() string {
			return w.kubectl(ctx, "get", "all,configmaps,secrets,leases,networkpolicies,poddisruptionbudgets,roles,rolebindings,serviceaccounts", "-n", system, "-o", "name")
		}).Should(Equal("configmap/kube-root-ca.crt\nserviceaccount/default"), "what every namespace has")
		Expect(w.kubectl(ctx, "get", "clusterroles,clusterrolebindings", "-o", "name")).NotTo(ContainSubstring("kvasir"))
		Expect(w.kubectl(ctx, "get", "kvpool", "-n", namespace, "-o", "name")).To(Equal("inferencepool.kvasir.dev/" + poolName))
		Expect(w.ready(ctx, engines)).To(HaveLen(3), "engines go on without the operator")
		Expect(underLoad(ctx, func() {})).To(BeEmpty())
		w.kubectl(ctx, "delete", "kvpool", poolName, "-n", namespace, "--timeout=2m")
		Eventually(func() string {
			return w.kubectl(ctx, "get", "all,configmaps,secrets,networkpolicies,poddisruptionbudgets,controllerrevisions,leases", "-n", namespace, "-o", "name")
		}).Should(Equal("configmap/kube-root-ca.crt"))
		Expect(w.kubectl(ctx, "get", "crds", "-o", "name")).To(ContainSubstring("inferencepools.kvasir.dev"))
	})
}

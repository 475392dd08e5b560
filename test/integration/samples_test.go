package integration

import (
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/kvasir-dev/kvasir/test/kube"
)

var _ = Describe("The samples", func() {
	It("are applied, twice without a change, and listed", func(ctx SpecContext) {
		kubectl(ctx, "create", "namespace", "llm")
		samples := filepath.Join(kube.Root(), "config", "samples")
		first := kubectl(ctx, "apply", "-k", samples)
		Expect(strings.Count(first, " created")).To(Equal(11), first)
		kubectl(ctx, "apply", "-k", samples)
		Expect(kubectl(ctx, "get", "kvpool,kvpolicy,kvfleet,modelroutes", "-n", "llm", "-o", "jsonpath={.items[*].metadata.generation}")).To(Equal("1 1 1 1 1 1 1 1 1 1 1"))
		Expect(strings.Fields(kubectl(ctx, "get", "kvpool,kvpolicy,kvfleet,modelroutes", "-n", "llm", "-o", "name"))).To(ConsistOf(
			"inferencepool.kvasir.dev/llama", "inferencepool.kvasir.dev/m", "inferencepool.kvasir.dev/qwen3-32b",
			"inferencepool.kvasir.dev/large", "inferencepool.kvasir.dev/small", "pickerfleet.kvasir.dev/default", "modelroute.kvasir.dev/assistant",
			"routingpolicy.kvasir.dev/chat", "routingpolicy.kvasir.dev/m", "inferencepool.kvasir.dev/qwen3-235b", "routingpolicy.kvasir.dev/qwen3-235b",
		))
		Expect(kubectl(ctx, "get", "kvpool", "-n", "llm")).To(MatchRegexp(`NAME +MODEL +DESIRED +READY +STATUS +TROUBLE +AGE`))
		Expect(kubectl(ctx, "get", "kvpolicy", "-n", "llm")).To(MatchRegexp(`NAME +STRATEGY +TARGET +ACCEPTED +PROGRAMMED +AGE`))
	})

	It("show how a pool is scaled, and that one that scales itself is not", func(ctx SpecContext) {
		ns := namespace(ctx)
		out, err := cluster.Kubectl(ctx, strings.NewReader(`
apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: a, namespace: `+ns+`}
spec:
  model: {name: a}
  replicas: 1
  template: {spec: {containers: [{name: vllm, image: vllm}]}}
---
apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: b, namespace: `+ns+`}
spec:
  model: {name: b}
  autoscaling: {maxReplicas: 3}
  template: {spec: {containers: [{name: vllm, image: vllm}]}}
---
apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: c, namespace: `+ns+`}
spec:
  model: {name: c}
  roles: [{name: Prefill, replicas: 1}, {name: Decode, replicas: 2}]
  template: {spec: {containers: [{name: vllm, image: vllm}]}}
`), "apply", "-f", "-")
		Expect(err).NotTo(HaveOccurred(), out)
		kubectl(ctx, "scale", "-n", ns, "kvpool/a", "--replicas=3")
		Expect(kubectl(ctx, "get", "-n", ns, "kvpool/a", "-o", "jsonpath={.spec.replicas}")).To(Equal("3"))
		_, err = cluster.Kubectl(ctx, nil, "scale", "-n", ns, "kvpool/b", "--replicas=3")
		Expect(err).To(HaveOccurred())
		out, err = cluster.Kubectl(ctx, nil, "scale", "-n", ns, "kvpool/c", "--replicas=3")
		Expect(err).To(HaveOccurred())
		Expect(out + err.Error()).To(ContainSubstring("set the size in roles"))
		out, err = cluster.Kubectl(ctx, strings.NewReader(`
apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: c, namespace: `+ns+`}
spec: {roles: [{name: Prefill, replicas: 4}]}
`), "apply", "--server-side", "--field-manager=prefill", "--force-conflicts", "-f", "-")
		Expect(err).NotTo(HaveOccurred(), out)
		Expect(kubectl(ctx, "get", "-n", ns, "kvpool/c", "-o", "jsonpath={.spec.roles[*].replicas}")).To(Equal("4 2"), "a writer of its own for the size of a role")
	})
})

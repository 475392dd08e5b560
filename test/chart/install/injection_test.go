package install

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/test/kube"
)

var _ = Describe("With reporter.injection", Ordered, func() {
	BeforeAll(func(ctx SpecContext) {
		kubectl(ctx, "create", "namespace", "injection")
		mustHelm(ctx, "install", "kvasir-injection", chart, "--namespace", "injection", "--set", "crds.install=false",
			"--set", "reporter.injection=AdmissionPolicy", "--set", "images.registry=registry.example",
			"--set", "images.tag=v1", "--set", "watch.namespaces={injection}")
	})
	AfterAll(func(ctx SpecContext) {
		mustHelm(ctx, "uninstall", "kvasir-injection", "--namespace", "injection")
	})
	// pod is made by the API server of a pod with these labels; it keeps none.
	pod := func(ctx SpecContext, labels, more string) *corev1.Pod {
		GinkgoHelper()
		out := kubectlIn(ctx, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "vllm", "namespace": "injection", "labels": `+labels+`},
			"spec": {`+more+`"serviceAccountName": "default", "containers": [{"name": "vllm", "image": "vllm"}]}}`, "create", "--dry-run=server", "--output", "json", "--filename", "-")
		p := &corev1.Pod{}
		Expect(json.Unmarshal([]byte(out), p)).To(Succeed())
		return p
	}
	const asking = `{"kvasir.dev/inject": "reporter", "kvasir.dev/pool": "chat"}`

	It("the API server gives pods that ask for it the sidecar that owned pods have", func(ctx SpecContext) {
		// The policy is compiled and watched by the API server in its own time.
		Eventually(func() int { return len(pod(ctx, asking, "").Spec.InitContainers) }).WithTimeout(patience).Should(Equal(1))
		got := pod(ctx, asking, "")
		Expect(got.Spec.Containers[0].Lifecycle.PreStop.HTTPGet.Port.IntValue()).To(Equal(9445))

		text, err := os.ReadFile(filepath.Join(kube.Root(), "internal", "operator", "podtemplate", "testdata", "smallest", "pod.yaml"))
		Expect(err).NotTo(HaveOccurred())
		var owned struct{ Pod corev1.Pod }
		Expect(yaml.Unmarshal(text, &owned)).To(Succeed())
		want, made := owned.Pod.Spec.InitContainers[0], got.Spec.InitContainers[0]
		for i := range want.Args { // the golden pod is in another namespace
			want.Args[i] = strings.ReplaceAll(want.Args[i], ".llm.svc", ".injection.svc")
		}
		Expect(made.Args).To(Equal(want.Args))
		Expect(made.Image).To(Equal(want.Image))
		Expect(made.RestartPolicy).To(Equal(want.RestartPolicy))
		Expect(made.SecurityContext).To(Equal(want.SecurityContext))
		Expect(made.VolumeMounts).To(ConsistOf(want.VolumeMounts))
		Expect(made.Env[0].ValueFrom.FieldRef.FieldPath).To(Equal(want.Env[0].ValueFrom.FieldRef.FieldPath))
		Expect(made.Resources.Requests.Cpu().Equal(*want.Resources.Requests.Cpu())).To(BeTrue())
		Expect(made.Resources.Limits.Memory().Equal(*want.Resources.Limits.Memory())).To(BeTrue())
		volumes := map[string]corev1.VolumeSource{}
		for _, v := range got.Spec.Volumes {
			volumes[v.Name] = v.VolumeSource
		}
		for _, m := range want.VolumeMounts { // what the operator adds to the engine beside the sidecar is not injected
			Expect(volumes).To(HaveKey(m.Name))
		}
		proof := slices.IndexFunc(owned.Pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "kvasir-proof" })
		Expect(proof).To(BeNumerically(">=", 0))
		Expect(volumes["kvasir-proof"].Projected.Sources[0].ServiceAccountToken).To(
			Equal(owned.Pod.Spec.Volumes[proof].Projected.Sources[0].ServiceAccountToken))
	})

	It("the sidecar names a user in pods that run as root, and in no others", func(ctx SpecContext) {
		user := func(more string) *int64 {
			return pod(ctx, asking, more).Spec.InitContainers[0].SecurityContext.RunAsUser
		}
		Expect(user(`"securityContext": {"runAsUser": 0},`)).To(HaveValue(BeEquivalentTo(65532)))
		Expect(user(`"securityContext": {"runAsUser": 1000},`)).To(BeNil())
		Expect(user(`"securityContext": {"fsGroup": 7},`)).To(BeNil())
	})

	It("it leaves what stands there already", func(ctx SpecContext) {
		Expect(pod(ctx, `{"kvasir.dev/pool": "chat"}`, "").Spec.InitContainers).To(BeEmpty())
		Expect(pod(ctx, `{"kvasir.dev/inject": "reporter"}`, "").Spec.InitContainers).To(BeEmpty())
		Expect(pod(ctx, asking, `"initContainers": [{"name": "kvasir-reporter", "image": "mine"}],`).Spec.InitContainers).To(HaveLen(1))
		both := pod(ctx, asking, `"initContainers": [{"name": "first", "image": "mine"}], "volumes": [{"name": "v", "emptyDir": {}}],`)
		Expect(both.Spec.InitContainers).To(HaveLen(2))
		Expect(both.Spec.InitContainers[0].Name).To(Equal("kvasir-reporter"))
		Expect(both.Spec.Volumes[0].Name).To(Equal("v"))
	})
})

package install

import (
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/test/kube"
)

var _ = Describe("The API server takes", Ordered, func() {
	const restricted = "restricted"
	BeforeAll(func(ctx SpecContext) {
		kubectl(ctx, "create", "namespace", restricted)
		kubectl(ctx, "label", "namespace", restricted, "pod-security.kubernetes.io/enforce=restricted")
		for _, name := range []string{"llm", "chat"} {
			kubectl(ctx, "create", "namespace", name)
		}
	})

	// taken gives the objects to the server, which keeps none, and the operator's pod to a restricted namespace.
	taken := func(ctx SpecContext, text string) {
		GinkgoHelper()
		kubectlIn(ctx, text, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "--filename", "-")
		for object := range strings.SplitSeq(text, "\n---\n") {
			var d appsv1.Deployment
			if yaml.Unmarshal([]byte(object), &d) != nil || d.Kind != "Deployment" {
				continue
			}
			pod := corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
			pod.Name, pod.Namespace = "operator", restricted
			out, err := yaml.Marshal(pod)
			Expect(err).NotTo(HaveOccurred())
			kubectlIn(ctx, string(out), "apply", "--server-side", "--dry-run=server", "--filename", "-")
			return
		}
		Fail("no Deployment")
	}

	files, err := filepath.Glob(filepath.Join(kube.Root(), "test", "chart", "testdata", "values", "*.yaml"))
	if err != nil || len(files) == 0 {
		panic("no values")
	}
	for _, file := range files {
		It("the chart with the values "+filepath.Base(file), func(ctx SpecContext) {
			taken(ctx, mustHelm(ctx, "template", "kvasir", chart, "--namespace", restricted, "--values", file))
		})
	}
	for _, dir := range []string{"default", "namespaced"} {
		It("kustomize's config/"+dir, func(ctx SpecContext) {
			text := kubectl(ctx, "kustomize", filepath.Join(kube.Root(), "config", dir))
			taken(ctx, strings.ReplaceAll(text, "namespace: kvasir-system", "namespace: "+restricted))
		})
	}

	It("config/monitoring", func(ctx SpecContext) {
		text := kubectl(ctx, "kustomize", filepath.Join(kube.Root(), "config", "monitoring"))
		kubectlIn(ctx, strings.ReplaceAll(text, "namespace: kvasir-system", "namespace: "+restricted),
			"apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename", "-")
	})

	It("nothing else: a wrong object is refused", func(ctx SpecContext) {
		wrong, err := os.ReadFile(filepath.Join(kube.Root(), "config", "monitoring", "monitors.yaml"))
		Expect(err).NotTo(HaveOccurred())
		text := strings.Replace(string(wrong), "scheme: https", "schema: https", 1)
		_, err = cluster.Kubectl(ctx, strings.NewReader(text), "apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename", "-")
		Expect(err).To(MatchError(ContainSubstring("schema")))
	})
})

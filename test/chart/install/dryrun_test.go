package install

import (
	"bytes"
	"fmt"
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

// goldens are the files of a pattern in the repository.
func goldens(pattern ...string) []string {
	files, err := filepath.Glob(filepath.Join(append([]string{kube.Root()}, pattern...)...))
	if err != nil || len(files) < 3 {
		panic(fmt.Sprintf("%v has %d files (%v)", pattern, len(files), err))
	}
	return files
}

var _ = Describe("The API server takes", Ordered, func() {
	const restricted = "restricted"
	BeforeAll(func(ctx SpecContext) {
		kubectl(ctx, "create", "namespace", restricted)
		kubectl(ctx, "label", "namespace", restricted, "pod-security.kubernetes.io/enforce=restricted")
		for _, name := range []string{"llm", "chat"} {
			kubectl(ctx, "create", "namespace", name)
		}
	})

	// admitted gives a pod to a restricted namespace, which keeps none.
	admitted := func(ctx SpecContext, pod *corev1.Pod) error {
		GinkgoHelper()
		pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		pod.Name, pod.Namespace, pod.Spec.ServiceAccountName = "one", restricted, "default"
		out, err := yaml.Marshal(pod)
		Expect(err).NotTo(HaveOccurred())
		_, err = cluster.Kubectl(ctx, bytes.NewReader(out), "create", "--dry-run=server", "--filename", "-")
		return err
	}
	// ofDeployment is the pod of the only Deployment among objects.
	ofDeployment := func(text string) *corev1.Pod {
		GinkgoHelper()
		for object := range strings.SplitSeq(text, "\n---\n") {
			var d appsv1.Deployment
			if yaml.Unmarshal([]byte(object), &d) == nil && d.Kind == "Deployment" {
				return &corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
			}
		}
		Fail("no Deployment")
		return nil
	}
	// taken gives the objects to the server, which keeps none, and the operator's pod to a restricted namespace.
	taken := func(ctx SpecContext, text string) {
		GinkgoHelper()
		kubectlIn(ctx, text, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "--filename", "-")
		Expect(admitted(ctx, ofDeployment(text))).To(Succeed())
	}

	for _, file := range goldens("test", "chart", "testdata", "values", "*.yaml") {
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

	for _, file := range goldens("internal", "operator", "resources", "testdata", "*.yaml") {
		It("in a restricted namespace: the pickers of "+filepath.Base(file), func(ctx SpecContext) {
			text, err := os.ReadFile(file)
			Expect(err).NotTo(HaveOccurred())
			if !strings.Contains(string(text), "kind: Deployment") {
				Skip("somebody else runs them")
			}
			Expect(admitted(ctx, ofDeployment("\n"+string(text)))).To(Succeed())
		})
	}

	for _, file := range goldens("internal", "operator", "podtemplate", "testdata", "*", "pod.yaml") {
		It("in a restricted namespace: what is put beside the engine of "+filepath.Base(filepath.Dir(file)), func(ctx SpecContext) {
			text, err := os.ReadFile(file)
			Expect(err).NotTo(HaveOccurred())
			var golden struct{ Pod corev1.Pod }
			Expect(yaml.Unmarshal(text, &golden)).To(Succeed())
			pod := &golden.Pod
			if len(pod.Spec.InitContainers) == 0 {
				Skip("nothing is")
			}
			reporter := &pod.Spec.InitContainers[0]
			Expect(reporter.Name).To(Equal("kvasir-reporter"))
			for i := range pod.Spec.Containers { // the user's own, as are further containers for the start
				pod.Spec.Containers[i].SecurityContext = reporter.SecurityContext.DeepCopy()
			}
			for i := range pod.Spec.InitContainers[1:] {
				pod.Spec.InitContainers[1+i].SecurityContext = reporter.SecurityContext.DeepCopy()
			}
			Expect(admitted(ctx, pod)).To(Succeed())
			reporter.SecurityContext = nil
			Expect(admitted(ctx, pod)).To(MatchError(ContainSubstring("violates PodSecurity")))
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

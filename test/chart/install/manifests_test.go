package install

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/test/kube"
)

// manifests are the blocks of YAML of a page, wherever they are indented, an object each.
func manifests(page string) []string {
	text, err := os.ReadFile(filepath.Join(kube.Root(), "docs", page))
	if err != nil {
		panic(err)
	}
	var all []string
	for _, m := range regexp.MustCompile("(?ms)^( *)```yaml\n(.*?)^ *```$").FindAllStringSubmatch(string(text), -1) {
		body := regexp.MustCompile("(?m)^"+m[1]).ReplaceAllString(m[2], "")
		for object := range strings.SplitSeq(body, "\n---\n") {
			all = append(all, object)
		}
	}
	return all
}

// unknown are kinds whose definitions are not given to this API server: they are read as YAML. test/manifests checks some
// of them against their definitions.
var unknown = map[string]bool{
	"networking.istio.io/v1 DestinationRule":              true,
	"gateway.envoyproxy.io/v1alpha1 ClientTrafficPolicy":  true,
	"gateway.envoyproxy.io/v1alpha1 BackendTrafficPolicy": true,
	"gateway.nginx.org/v1alpha1 ClientSettingsPolicy":     true,
	"gateway.nginx.org/v1alpha1 ProxySettingsPolicy":      true,
	"networking.gke.io/v1 HealthCheckPolicy":              true,
	"networking.gke.io/v1 GCPBackendPolicy":               true,
	"leaderworkerset.x-k8s.io/v1 LeaderWorkerSet":         true,
	"cert-manager.io/v1 Issuer":                           true,
}

var _ = Describe("The manifests of", Ordered, func() {
	BeforeAll(func(ctx SpecContext) {
		kubectl(ctx, "apply", "--server-side", "--filename", filepath.Join(kube.Root(), "config", "crd", "bases"))
		kubectl(ctx, "wait", "--for=condition=Established", "crd/inferencepools.kvasir.dev", "crd/modelroutes.kvasir.dev", "crd/pickerfleets.kvasir.dev", "crd/routingpolicies.kvasir.dev")
		kubectlIn(ctx, `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "manifests"}}`, "apply", "--filename", "-")
	})
	AfterAll(func(ctx SpecContext) {
		bash(ctx, removeDefinitions)
	})
	for page, least := range map[string]int{"install-gateways.md": 9, "install-vllm.md": 3, "migration.md": 4} {
		It("docs/"+page+" are taken by the API server", func(ctx SpecContext) {
			all := manifests(page)
			Expect(len(all)).To(BeNumerically(">=", least))
			for _, text := range all {
				u := &unstructured.Unstructured{}
				Expect(yaml.UnmarshalStrict([]byte(text), &u.Object)).To(Succeed(), text)
				Expect(u.GetName()).NotTo(BeEmpty(), text)
				if unknown[u.GetAPIVersion()+" "+u.GetKind()] {
					continue
				}
				u.SetNamespace("manifests")
				out, err := yaml.Marshal(u.Object)
				Expect(err).NotTo(HaveOccurred())
				kubectlIn(ctx, string(out), "apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename", "-")
			}
		})
	}
})

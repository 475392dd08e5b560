package install

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/kvasir-dev/kvasir/test/docpage"
	"github.com/kvasir-dev/kvasir/test/kube"
)

// pages are what stands around the commands of a page: what they take for granted, and what is looked at or removed after them.
var pages = map[string]struct{ before, after string }{
	"README.md":       {after: "helm uninstall kvasir --namespace kvasir-system\n" + removeDefinitions},
	"docs/install.md": {after: "helm uninstall kvasir --namespace kvasir-system\n" + removeDefinitions},
	"docs/migration.md": {
		before: `kubectl create namespace llm-d
kubectl apply --filename - <<END
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: chat, namespace: llm-d}
spec:
  selector: {matchLabels: {llm-d.ai/model: Qwen-Qwen3-32B}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: epp, port: {number: 9002}}
END
`,
		after: `[ "$(kubectl get inferencepools.inference.networking.k8s.io chat -n llm-d -o 'jsonpath={.spec.endpointPickerRef.name}')" = chat-picker ]`,
	},
}

// removeDefinitions removes Kvasir's kinds, once each can be listed: while the storage of a kind begins, the API server fails to look for
// its objects, and takes minutes until it looks for them again.
const removeDefinitions = `kubectl get kvpool,kvroute,kvfleet,kvpolicy --all-namespaces || true
kubectl delete crd inferencepools.kvasir.dev modelroutes.kvasir.dev pickerfleets.kvasir.dev routingpolicies.kvasir.dev --ignore-not-found`

// bash runs commands as somebody at the root of the repository would, and returns what they print.
func bash(ctx context.Context, script string) string {
	GinkgoHelper()
	cmd := exec.CommandContext(ctx, "bash", "-euxo", "pipefail", "-c", script)
	cmd.Dir = kube.Root()
	assets, err := kube.Assets()
	Expect(err).NotTo(HaveOccurred())
	cmd.Env = append(os.Environ(), "KUBECONFIG="+cluster.Kubeconfig(), "PATH="+filepath.Join(kube.Root(), "bin")+":"+assets+":"+os.Getenv("PATH"),
		"HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	Expect(cmd.Run()).To(Succeed(), "%s", &out)
	return out.String()
}

var _ = Describe("The documentation's commands", Ordered, func() {
	for _, page := range docpage.Scripts["install"] {
		It("work as "+page+" has them", func(ctx SpecContext) {
			script, err := docpage.Script(page, "install")
			Expect(err).NotTo(HaveOccurred())
			around, known := pages[page]
			Expect(known).To(BeTrue(), "pages has no entry for the commands of %s", page)
			script = strings.ReplaceAll(script, " llm\n", " docs\n") // other tests have a namespace llm
			script = strings.ReplaceAll(script, " llm ", " docs ")
			bash(ctx, around.before+script+around.after)
		})
	}
})

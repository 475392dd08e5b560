package cluster

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/kvasir-dev/kvasir/test/docpage"
	"github.com/kvasir-dev/kvasir/test/kube"
)

// documented: what the pages say to do in a cluster works, in the pages' order, from the quick start on in one shell.
func documented() {
	It("does what the documentation says, as it is written", func(ctx SpecContext) {
		w.clean(ctx)
		script := "set -eu -o pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
		for _, page := range docpage.Scripts["cluster"] {
			text, err := docpage.Script(page, "cluster")
			Expect(err).NotTo(HaveOccurred())
			script += text
		}
		// What is built and runs already, and what the reader has to put in.
		script = regexp.MustCompile(`(?m)^make (cluster-up|helm|build)\b.*$`).ReplaceAllString(script, "")
		script = strings.NewReplacer("NAMESPACE", namespace, "NAME-picker", "demo-picker", " NAME\n", " demo\n", "ACCOUNT", "kvasir-viewer").Replace(script)
		cmd := exec.CommandContext(ctx, "bash", "-xc", script)
		cmd.Dir = kube.Root()
		cmd.Env = append(os.Environ(), "PWD="+kube.Root(), "HELM_CACHE_HOME="+GinkgoT().TempDir())
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		Expect(cmd.Run()).To(Succeed(), "%s", &out)
		for _, want := range []string{
			`"object":"text_completion"`,                // of the quick start's request
			`deployment "kvasir-operator" successfully`, // rolled out
			"What happens in a cluster:",                // the plugin's help
			"Name:         demo",                        // as described
			"yes\n",                                     // the account is allowed to
			"kind: InferencePool",                       // of the picker's status
		} {
			Expect(strings.Contains(out.String(), want)).To(BeTrue(), "no %s in\n%s", want, &out)
		}
		Expect(filepath.Join(kube.Root(), "bin", "kubectl_complete-kvasir")).To(BeAnExistingFile())
	})
}

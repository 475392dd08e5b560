package install

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/kvasir-dev/kvasir/test/kube"
)

var (
	// block is code in a page: lines with four blanks before them, perhaps with a word before it that they are not run.
	block   = regexp.MustCompile(`(?m)(<!-- not run: [a-z ]+ -->\n\n)?((?:^    .*\n|^\n)*^    .*\n)`)
	command = regexp.MustCompile(`^(helm|kubectl|make|go) `)
)

// commands are those of a page that are run, in their order.
func commands(page string) string {
	text, err := os.ReadFile(filepath.Join(kube.Root(), "docs", page))
	Expect(err).NotTo(HaveOccurred())
	var all []string
	for _, m := range block.FindAllStringSubmatch(string(text), -1) {
		lines := regexp.MustCompile(`(?m)^    `).ReplaceAllString(strings.Trim(m[2], "\n"), "")
		if m[1] == "" && command.MatchString(lines) {
			all = append(all, lines)
		}
	}
	return strings.Join(all, "\n")
}

var _ = Describe("docs/install.md", func() {
	It("works as it is written", func(ctx SpecContext) {
		script := strings.ReplaceAll(commands("install.md"), " llm", " docs") // other tests have a namespace llm
		Expect(strings.Count("\n"+script, "\nhelm ")).To(BeNumerically(">=", 6))
		cmd := exec.CommandContext(ctx, "bash", "-euxo", "pipefail", "-c", script)
		cmd.Dir = kube.Root()
		assets, err := kube.Assets()
		Expect(err).NotTo(HaveOccurred())
		cmd.Env = append(os.Environ(), "KUBECONFIG="+cluster.Kubeconfig(), "PATH="+filepath.Join(kube.Root(), "bin")+":"+assets+":"+os.Getenv("PATH"),
			"HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		Expect(cmd.Run()).To(Succeed(), "%s", &out)
		mustHelm(ctx, "uninstall", "kvasir", "--namespace", "kvasir-system")
		kubectl(ctx, "delete", "crd", "inferencepools.kvasir.dev", "routingpolicies.kvasir.dev")
	})
})

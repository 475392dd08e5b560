// Package cli_test runs kubectl-kvasir as its users do: against a real API server, with a picker's process behind a node
// that forwards ports to it.
package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kvasir-dev/kvasir/test/kube"
)

func TestCLI(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "kubectl kvasir in a cluster")
}

// What all specs share.
var (
	cluster  *kube.Cluster
	programs string // a directory
)

var _ = BeforeSuite(func() {
	log.SetLogger(GinkgoLogr)
	programs = GinkgoT().TempDir()
	build := exec.Command("go", "build", "-o", programs+"/", "github.com/kvasir-dev/kvasir/cmd/picker", "github.com/kvasir-dev/kvasir/cmd/kubectl-kvasir")
	build.Stderr = os.Stderr
	Expect(build.Run()).To(Succeed())
	Expect(os.Symlink("kubectl-kvasir", filepath.Join(programs, "kubectl_complete-kvasir"))).To(Succeed())
	var err error
	cluster, err = kube.Start(kube.Options{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(cluster.Stop)
})

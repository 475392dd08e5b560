// Package picker_test runs the picker's own process against a real API server: with no other rights than an operator
// gives it, with pods that are made by hand and served by simulated engines, and while the API server is away.
package picker_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/kvasir-dev/kvasir/test/kube"
)

func TestPicker(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Picker in a cluster")
}

// What all specs share.
var (
	cluster *kube.Cluster
	binary  string
)

var _ = BeforeSuite(func() {
	dir := GinkgoT().TempDir()
	build := exec.Command("go", "build", "-o", dir+"/", "github.com/kvasir-dev/kvasir/cmd/picker")
	build.Stderr = os.Stderr
	Expect(build.Run()).To(Succeed())
	binary = filepath.Join(dir, "picker")
	var err error
	cluster, err = kube.Start(kube.Options{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(cluster.Stop)
})

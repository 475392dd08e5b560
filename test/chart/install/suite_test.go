// Package install runs helm and kustomize against a real API server: what they install is taken by it, and what users
// have made stays through upgrades and after an uninstall.
package install

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kvasir-dev/kvasir/test/kube"
)

func TestInstall(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Installation")
}

// patience bounds asynchronous work of the API server. It is generous: the machine can be very busy.
const patience = 2 * time.Minute

var (
	cluster *kube.Cluster
	// home is where helm keeps its files.
	home string
)

var _ = BeforeSuite(func() {
	log.SetLogger(GinkgoLogr)
	home = GinkgoT().TempDir()
	var err error
	cluster, err = kube.Start(kube.Options{Bare: true, Definitions: foreign()})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(cluster.Stop)
})

// foreign are the definitions of others whose kinds the chart has objects of, from the modules of hack/definitions.
func foreign() []string {
	modules := filepath.Join(kube.Root(), "hack", "definitions")
	var all []string
	for module, files := range map[string][]string{
		"github.com/prometheus-operator/prometheus-operator": {
			"example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
			"example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
		},
		"sigs.k8s.io/gateway-api": {
			"config/crd/standard/gateway.networking.k8s.io_gateways.yaml",
			"config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
		},
		"sigs.k8s.io/gateway-api-inference-extension": {"config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"},
	} {
		out, err := exec.Command("go", "-C", modules, "mod", "download", module).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
		dir, err := exec.Command("go", "-C", modules, "list", "-m", "-f", "{{.Dir}}", module).Output()
		Expect(err).NotTo(HaveOccurred())
		for _, file := range files {
			all = append(all, filepath.Join(strings.TrimSpace(string(dir)), file))
		}
	}
	return all
}

// helm runs the helm that `make helm` builds, and returns what it prints.
func helm(ctx context.Context, args ...string) (string, error) {
	if slices.Contains(args, chart) && !strings.Contains(strings.Join(args, " "), "images.registry") {
		args = append(slices.Clone(args), "--set", "images.registry=docker.io") // the chart requires one; nothing is pulled here
	}
	program := filepath.Join(kube.Root(), "bin", "helm")
	if _, err := os.Stat(program); err != nil {
		return "", fmt.Errorf("looking for helm: %w: run `make helm`", err)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+cluster.Kubeconfig(),
		"HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("helm %v: %w: %s", args, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

func mustHelm(ctx context.Context, args ...string) string {
	GinkgoHelper()
	out, err := helm(ctx, args...)
	Expect(err).NotTo(HaveOccurred(), out)
	return out
}

func kubectl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	return kubectlIn(ctx, "", args...)
}

// kubectlIn gives kubectl a text to read.
func kubectlIn(ctx context.Context, stdin string, args ...string) string {
	GinkgoHelper()
	out, err := cluster.Kubectl(ctx, strings.NewReader(stdin), args...)
	Expect(err).NotTo(HaveOccurred(), out)
	return out
}

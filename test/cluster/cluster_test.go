// Package cluster puts Kvasir through its paces on a real cluster, that of hack/cluster: installed by its chart, with
// engines (simulated), reporters, pickers and the operator in real pods, under load from clients that count every failure.
// It runs with the flag -cluster only: `make cluster-up && make test-e2e`.
package cluster

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/kvasir-dev/kvasir/test/kube"
)

var run = flag.Bool("cluster", false, "run on the cluster of hack/cluster")

// patience bounds work that should take seconds. The machine can be very busy.
const patience = 4 * time.Minute

// interval between two looks at what is waited for.
const interval = 200 * time.Millisecond

func TestCluster(t *testing.T) {
	if !*run {
		t.Skip("-cluster is not set")
	}
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(interval)
	config, reporter := GinkgoConfiguration()
	config.FailFast = true // each scenario begins where the one before has ended
	reporter.Verbose = true
	RunSpecs(t, "Kvasir on a cluster", config, reporter)
}

// w is the cluster of all scenarios.
var w *world

var _ = BeforeSuite(func(ctx SpecContext) {
	state := filepath.Join(kube.Root(), "out", "cluster")
	if _, err := os.Stat(filepath.Join(state, "pki", "admin.kubeconfig")); err != nil {
		Fail("there is no cluster: run `make cluster-up`")
	}
	w = newWorld(state)
	w.clean(ctx) // what a run that was cut off has left
})

var _ = Describe("Kvasir", Ordered, func() {
	BeforeAll(func(ctx SpecContext) {
		w.kubectl(ctx, "apply", "-f", "testdata/namespaces.yaml")
		for _, node := range w.nodes(ctx) { // programs of another name, for the upgrade
			for _, program := range []string{"manager", "picker", "reporter"} {
				image := "docker.io/kvasir/" + program
				w.onNode(ctx, node, "ctr", "-n", "k8s.io", "images", "tag", "--force", image+":dev", image+":previous")
			}
		}
		w.install(ctx, previousChart, "previous")
		w.kubectl(ctx, "apply", "-f", "testdata/pool.yaml")
		w.settled(ctx, 3)
	})
	// Logs are lost with their pods, so they are looked at after each scenario.
	AfterEach(func(ctx SpecContext) {
		if CurrentSpecReport().Failed() {
			w.describe(ctx)
		}
		w.expectNoSecretsInLogs()
	})
	AfterAll(func(ctx SpecContext) {
		if !CurrentSpecReport().Failed() {
			w.clean(ctx)
		}
	})
	upgrade()
	requests()
	tools()
	life()
	disruptions()
	groups()
	broken()
	strictness()
	kills()
	policies()
	fleets()
	roles()
	uninstall()
	documented()
})

package cluster

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/hack/images/oci"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/test/kube"
)

// groups: engines of several pods, which the controller of LeaderWorkerSets runs.
func groups() {
	It("loses nothing of the engines of a LeaderWorkerSet when the node of a worker is cordoned, and drained when its leader is idle", func(ctx SpecContext) {
		DeferCleanup(func(ctx SpecContext) {
			w.kubectl(ctx, "delete", "-f", "testdata/groups.yaml", "--ignore-not-found", "--timeout=2m")
			w.uninstallGroups(ctx)
			w.settled(ctx, 3)
		})
		w.installGroups(ctx)
		path := filepath.Join(GinkgoT().TempDir(), "injected.yaml")
		Expect(os.WriteFile(path, []byte(w.did(ctx, "inject", "-f", "testdata/groups.yaml")), 0o600)).To(Succeed())
		Eventually(func() error { // the controller's webhooks answer a little later than it is ready
			_, err := w.program(ctx, filepath.Join("kube", "kubectl"), "apply", "-f", path)
			return err
		}).Should(Succeed())
		w.groupsServe(ctx)
		w.kubectl(ctx, "wait", "-n", namespace, "kvpool/groups", "--for=condition=EventsSynced", "--timeout=3m")

		const node = "kvasir-1" // with one worker and no leader
		workers := on(node, w.group(ctx, client.MatchingLabels{config.LabelMember: "1"}))
		Expect(workers).To(HaveLen(1))
		gone := w.group(ctx, client.MatchingLabels{config.LabelGroup: workers[0].Labels[config.LabelGroup]})
		Expect(gone).To(HaveLen(2))
		leader := gone[0]
		if config.Worker(&leader) {
			leader = gone[1]
		}
		stays := w.group(ctx, client.MatchingLabels{config.LabelMember: "0"})
		DeferCleanup(func(ctx SpecContext) { w.kubectl(ctx, "uncordon", node) })
		Expect(w.underLoad(ctx, "groups", func() {
			w.kubectl(ctx, "cordon", node)
			Eventually(func() bool {
				p := w.memberOf(ctx, "groups", leader.Name)
				return p.Stage == "Draining" && p.Live != nil && p.Live.InFlight == 0
			}).Should(BeTrue(), "%s gets more requests, although the node of its worker goes away", leader.Name)
			w.kubectl(ctx, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=4m")
			w.groupsServe(ctx)
			Expect(on(node, w.group(ctx, nil))).To(BeEmpty())
			w.kubectl(ctx, "uncordon", node)
		})).To(BeEmpty())
		for _, p := range w.group(ctx, nil) { // a controller that is evicted itself meanwhile makes only the worker again
			Expect(p.UID).NotTo(Equal(workers[0].UID), "%s was not evicted", p.Name)
			Expect(p.Labels).NotTo(HaveKey(v1alpha1.LabelDrain), p.Name)
		}
		for _, p := range stays {
			if p.UID != leader.UID {
				Expect(w.Get(ctx, client.ObjectKeyFromObject(&p), &p)).To(Succeed(), "the other group stays")
			}
		}
	})
}

// group lists the pods of the LeaderWorkerSet that have labels.
func (w *world) group(ctx context.Context, labels client.MatchingLabels) []corev1.Pod {
	GinkgoHelper()
	var list corev1.PodList
	Expect(w.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{config.LabelSet: "groups"}, labels)).To(Succeed())
	return list.Items
}

// groupsServe waits until both groups are complete and serve.
func (w *world) groupsServe(ctx context.Context) {
	GinkgoHelper()
	Eventually(func() int {
		n := 0
		for _, p := range w.group(ctx, nil) {
			if _, marked := p.Labels[v1alpha1.LabelDrain]; serves(&p) && !marked {
				n++
			}
		}
		return n
	}).Should(Equal(4), "there are not two groups of two pods that serve")
	w.kubectl(ctx, "wait", "-n", namespace, "kvpool/groups", "--for=condition=Ready", "--timeout=3m")
}

const groupSystem = "lws-system"

// installGroups builds the controller of LeaderWorkerSets that hack/cluster/lws pins, gives it to the nodes, and installs it by its own chart.
func (w *world) installGroups(ctx context.Context) {
	GinkgoHelper()
	dir := filepath.Join(kube.Root(), "hack", "cluster", "lws")
	run := func(args ...string) string {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), "CGO_ENABLED=0"), GinkgoWriter
		out, err := cmd.Output()
		Expect(err).NotTo(HaveOccurred(), "go %v", args)
		return strings.TrimSpace(string(out))
	}
	program := filepath.Join(kube.Root(), "bin", "cluster", "lws")
	run("build", "-ldflags=-s -w", "-o", program, "sigs.k8s.io/lws/cmd")
	content, err := os.ReadFile(program)
	Expect(err).NotTo(HaveOccurred())
	const repository, tag = "docker.io/kvasir/lws", "test"
	tar := filepath.Join(GinkgoT().TempDir(), "lws.tar")
	f, err := os.Create(tar)
	Expect(err).NotTo(HaveOccurred())
	_, err = oci.Write(f, repository+":"+tag, false, oci.Image{
		Architecture: runtime.GOARCH, Entrypoint: []string{"/manager"}, Created: time.Unix(0, 0).UTC(),
		Files: []oci.File{{Path: "/manager", Content: content, Executable: true}},
	})
	Expect(err).NotTo(HaveOccurred())
	Expect(f.Close()).To(Succeed())
	for _, node := range w.nodes(ctx) {
		w.onNode(ctx, node, filepath.Join(kube.Root(), "bin", "cluster", "ctr"), "-n", "k8s.io", "images", "import", tar)
	}
	chart := filepath.Join(run("list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/lws"), "charts", "lws")
	_, err = w.program(ctx, "helm", "upgrade", "--install", "lws", chart, "--namespace="+groupSystem, "--create-namespace", "--wait", "--timeout=4m",
		"--set=image.manager.repository="+repository, "--set=image.manager.tag="+tag, "--set=image.manager.pullPolicy=Never",
		"--set=resources.requests.cpu=20m,resources.requests.memory=64Mi")
	Expect(err).NotTo(HaveOccurred())
}

// uninstallGroups removes what installGroups has installed, and all LeaderWorkerSets.
func (w *world) uninstallGroups(ctx context.Context) {
	GinkgoHelper()
	w.kubectl(ctx, "delete", "crd", "leaderworkersets.leaderworkerset.x-k8s.io", "--ignore-not-found", "--timeout=2m")
	if _, err := w.program(ctx, "helm", "uninstall", "lws", "--namespace="+groupSystem, "--wait", "--ignore-not-found"); err != nil {
		GinkgoWriter.Println(err)
	}
	w.kubectl(ctx, "delete", "namespace", groupSystem, "--ignore-not-found", "--timeout=2m")
}

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/test/kube"
)

const (
	namespace = "llm"
	poolName  = "m"
	system    = "kvasir-system"
	release   = "kvasir"
)

// Labels of pods by what they run.
var (
	engines   = client.MatchingLabels{v1alpha1.LabelPool: poolName}
	pickers   = client.MatchingLabels{"app.kubernetes.io/component": "picker"}
	operators = client.MatchingLabels{"app.kubernetes.io/name": "kvasir-operator"}
)

// world is the cluster.
type world struct {
	client.Client
	state, kubeconfig string
	namespace         string // of the pool that is meant
	lines             *int   // of logs that were searched
}

// in is the cluster, with the pool of another namespace.
func (w *world) in(namespace string) *world {
	other := *w
	other.namespace = namespace
	return &other
}

func newWorld(state string) *world {
	w := &world{state: state, kubeconfig: filepath.Join(state, "pki", "admin.kubeconfig"), namespace: namespace, lines: new(int)}
	config, err := clientcmd.BuildConfigFromFlags("", w.kubeconfig)
	Expect(err).NotTo(HaveOccurred())
	config.QPS = -1
	scheme := runtime.NewScheme()
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	w.Client, err = client.New(config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	return w
}

// program runs one of the repository's programs.
func (w *world) program(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(kube.Root(), "bin", name), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.kubeconfig)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(stdout.String()), nil
}

func (w *world) kubectl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	out, err := w.program(ctx, filepath.Join("kube", "kubectl"), args...)
	Expect(err).NotTo(HaveOccurred())
	return out
}

// onNode runs a command in a node's namespaces.
func (w *world) onNode(ctx context.Context, node string, args ...string) {
	GinkgoHelper()
	_, err := w.program(ctx, filepath.Join("cluster", "cluster"), append([]string{"-root", kube.Root(), "exec", node}, args...)...)
	Expect(err).NotTo(HaveOccurred())
}

// Charts, of this version and of the one before.
var (
	chart         = filepath.Join(kube.Root(), "charts", "kvasir")
	previousChart = filepath.Join(kube.Root(), "test", "chart", "testdata", "kvasir-0.2.0.tgz")
)

// install installs or upgrades by a chart, with images of a tag, and other values KEY=VALUE.
func (w *world) install(ctx context.Context, chart, tag string, values ...string) {
	GinkgoHelper()
	args := []string{"upgrade", "--install", release, chart, "--namespace=" + system,
		"--set=images.registry=docker.io", // the nodes have the images
		"--set=images.tag=" + tag, "--set=images.pullPolicy=Never", "--wait", "--timeout=4m"}
	for _, v := range values {
		args = append(args, "--set="+v)
	}
	_, err := w.program(ctx, "helm", args...)
	Expect(err).NotTo(HaveOccurred())
}

// clean removes all that tests make.
func (w *world) clean(ctx context.Context) {
	GinkgoHelper()
	for _, node := range w.nodes(ctx) {
		w.kubectl(ctx, "uncordon", node)
	}
	w.loosen(ctx)
	w.uninstallGroups(ctx) // or it makes its pods again
	for _, namespace := range []string{namespace, models, apart} {
		w.empty(ctx, namespace)
	}
	if _, err := w.program(ctx, "helm", "uninstall", release, "--namespace="+system, "--wait", "--ignore-not-found"); err != nil {
		GinkgoWriter.Println(err)
	}
	w.kubectl(ctx, "delete", "namespace", namespace, models, apart, system, "--ignore-not-found", "--timeout=4m")
	w.kubectl(ctx, "delete", "crd", "inferencepools.kvasir.dev", "modelroutes.kvasir.dev", "pickerfleets.kvasir.dev", "routingpolicies.kvasir.dev", "--ignore-not-found")
}

// empty removes a namespace's fleets, pools and pods. Pods go before their namespace: its controller checks again only when half of
// their grace is over.
func (w *world) empty(ctx context.Context, namespace string) {
	GinkgoHelper()
	if _, err := w.program(ctx, filepath.Join("kube", "kubectl"), "delete", "kvfleet,kvpool,deployments,pods", "--all", "--namespace="+namespace, "--timeout=2m"); err != nil {
		GinkgoWriter.Println(err)
	}
	Eventually(func() string { return w.kubectl(ctx, "get", "pods", "--namespace="+namespace, "-o", "name") }).Should(BeEmpty())
}

func (w *world) nodes(ctx context.Context) []string {
	GinkgoHelper()
	return strings.Fields(w.kubectl(ctx, "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"))
}

func (w *world) pool(ctx context.Context) *v1alpha1.InferencePool {
	GinkgoHelper()
	p := &v1alpha1.InferencePool{}
	Expect(w.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: poolName}, p)).To(Succeed())
	return p
}

// patch changes the pool's spec.
func (w *world) patch(ctx context.Context, format string, args ...any) {
	GinkgoHelper()
	Expect(w.Patch(ctx, &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: poolName}},
		client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, format, args...)))).To(Succeed())
}

// settled waits until the pool has n pods of its newest revision that serve and whose caches all pickers know, no others,
// and all pickers that it should have.
func (w *world) settled(ctx context.Context, n int32) {
	GinkgoHelper()
	Eventually(func() string {
		p := w.pool(ctx)
		s := &p.Status
		is := func(v *int32, n int32) bool { return v != nil && *v == n }
		if s.ObservedGeneration == p.Generation && is(s.DesiredReplicas, n) && is(s.Replicas, n) && is(s.ReadyReplicas, n) && is(s.UpdatedReplicas, n) &&
			is(s.DrainingReplicas, 0) && len(w.ready(ctx, pickers)) == int(p.Spec.Picker.Replicas) && len(w.pods(ctx, engines)) == int(n) && synced(s, n) {
			return ""
		}
		text, err := json.MarshalIndent(s, "", " ")
		Expect(err).NotTo(HaveOccurred())
		return string(text)
	}).Should(BeEmpty(), "the pool has not %d pods that serve", n)
}

func synced(s *v1alpha1.InferencePoolStatus, n int32) bool {
	text, err := json.Marshal(s.Endpoints)
	var e struct{ Synced int32 }
	return err == nil && json.Unmarshal(text, &e) == nil && e.Synced == n
}

// pods of the pool or of the operator.
func (w *world) pods(ctx context.Context, labels client.MatchingLabels) []corev1.Pod {
	GinkgoHelper()
	var list corev1.PodList
	Expect(w.List(ctx, &list, labels)).To(Succeed())
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.Namespace != w.namespace && p.Namespace != system })
}

// ready are the pods that serve.
func (w *world) ready(ctx context.Context, labels client.MatchingLabels) []corev1.Pod {
	GinkgoHelper()
	return slices.DeleteFunc(w.pods(ctx, labels), func(p corev1.Pod) bool { return !serves(&p) })
}

func serves(p *corev1.Pod) bool {
	return p.DeletionTimestamp.IsZero() && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// service is the address of the Service of a pool's pickers. Its port 80 is the proxy.
func (w *world) service(ctx context.Context, pool string) string {
	GinkgoHelper()
	var s corev1.Service
	Expect(w.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: pool + "-picker"}, &s)).To(Succeed())
	return s.Spec.ClusterIP
}

// processes of a pod whose command line has a word: numbers on this machine, outside of all namespaces.
func (w *world) processes(pod *corev1.Pod, word string) []int {
	GinkgoHelper()
	var found []int
	all, err := filepath.Glob("/proc/[0-9]*")
	Expect(err).NotTo(HaveOccurred())
	for _, dir := range all {
		groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil || !bytes.Contains(groups, []byte("pod"+string(pod.UID))) {
			continue
		}
		if line, err := os.ReadFile(filepath.Join(dir, "cmdline")); err == nil && bytes.Contains(line, []byte(word)) {
			pid, err := strconv.Atoi(filepath.Base(dir))
			Expect(err).NotTo(HaveOccurred())
			found = append(found, pid)
		}
	}
	return found
}

// kubelet is the number of a node's kubelet; 0 when it does not run.
func (w *world) kubelet(node string) int {
	GinkgoHelper()
	first, err := os.ReadFile(filepath.Join(w.state, node, "pid"))
	Expect(err).NotTo(HaveOccurred())
	init, _, _ := strings.Cut(string(first), " ")
	tasks, err := filepath.Glob(filepath.Join("/proc", init, "task", "*", "children")) // each thread has its own
	Expect(err).NotTo(HaveOccurred())
	for _, task := range tasks {
		children, err := os.ReadFile(task)
		Expect(err).NotTo(HaveOccurred())
		for _, child := range strings.Fields(string(children)) {
			if name, err := os.ReadFile(filepath.Join("/proc", child, "comm")); err == nil && strings.TrimSpace(string(name)) == "kubelet" {
				pid, err := strconv.Atoi(child)
				Expect(err).NotTo(HaveOccurred())
				return pid
			}
		}
	}
	return 0
}

// kill ends a process at once.
func kill(pid int) {
	GinkgoHelper()
	Expect(pid).To(BeNumerically(">", 1), "there is no such process")
	Expect(syscall.Kill(pid, syscall.SIGKILL)).To(Succeed())
}

// describe shows what is known when a scenario has failed.
func (w *world) describe(ctx context.Context) {
	for _, args := range [][]string{
		{"get", "pods", "-A", "-o", "wide"},
		{"get", "kvpool,kvpolicy", "-A", "-o", "yaml"},
		{"get", "events", "-n", namespace, "--sort-by=.lastTimestamp"},
		{"get", "events", "-n", strict, "--sort-by=.lastTimestamp"},
		{"logs", "-n", system, "-l", "app.kubernetes.io/name=kvasir-operator", "--tail=60"},
		{"logs", "-n", namespace, "-l", "app.kubernetes.io/component=picker", "--tail=60"},
	} {
		out, err := w.program(ctx, filepath.Join("kube", "kubectl"), args...)
		GinkgoWriter.Printf("== kubectl %s %v\n%s\n", strings.Join(args, " "), err, out)
	}
}

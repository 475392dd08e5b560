// Package lifecycle plays the life of a pool under load, with everything real but the GPUs: an API server, the operator
// with the rights of config/rbac, pickers, reporters and simulated engines as the processes of pods, and clients that
// count every request that fails.
package lifecycle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/test/kube"
	"github.com/kvasir-dev/kvasir/test/podrunner"
)

const (
	namespace = "llm"
	poolName  = "m"
	system    = "kvasir-system"
	operator  = "kvasir-operator"
	// maxPickers have addresses of their own: both sides must know each other's, since there is no DNS here.
	maxPickers = 8
	// patience bounds work that should take seconds. The machine can be very busy.
	patience = 3 * time.Minute
)

// built are the programs, in a directory that TestMain removes.
var built struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	status := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(status)
}

// programsOf builds the programs once, and links them into a directory.
func programsOf(dir string) error {
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "kvasir-lifecycle-"); built.err != nil {
			return
		}
		build := exec.CommandContext(context.Background(), "go", "build", "-o", built.dir+"/", "github.com/kvasir-dev/kvasir/cmd/manager",
			"github.com/kvasir-dev/kvasir/cmd/picker", "github.com/kvasir-dev/kvasir/cmd/reporter", "github.com/kvasir-dev/kvasir/cmd/vllmsim")
		if out, err := build.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("building the programs: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		return built.err
	}
	names, err := filepath.Glob(built.dir + "/*")
	for _, name := range names {
		err = errors.Join(err, os.Symlink(name, filepath.Join(dir, filepath.Base(name))))
	}
	return err
}

// takeSubnet returns a part of the pods' addresses that no other world has, of this process or another, until the end of the test: a
// socket at one of its addresses is bound.
func takeSubnet(t *testing.T) byte {
	t.Helper()
	const first, count = 80, 170 // podrunner's own tests have 77
	for i := range count {
		subnet := byte(first + (os.Getpid()+i)%count)
		bound, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", net.JoinHostPort(kube.Address(subnet, 255, 1), "9"))
		if err == nil {
			t.Cleanup(func() { _ = bound.Close() })
			return subnet
		}
	}
	t.Fatal("no part of the addresses is free")
	return 0
}

// world is a cluster with one pool.
type world struct {
	*testing.T
	nodes   []string
	cluster *kube.Cluster
	admin   client.Client
	set     kubernetes.Interface
	runner  *podrunner.Runner
	dir     string
	subnet  byte          // of the pods' addresses
	service *serviceProxy // the Service that engines connect to, nil for none; set before there are any

	// watches of the operator and the pickers are this late.
	late time.Duration
	// loads is how long engines can take to start, beyond patience.
	loads time.Duration

	mu      sync.Mutex        // guards what follows
	pickers map[string]string // address of each picker pod, by name

	restarts atomic.Int64 // of the operator

	version     int          // counts upgrades
	installed   installation // what startManager starts
	stopManager func()       // ends the operator and waits for its end
}

// newWorld has an operator and pickers whose watches are delayed by late, and simulated engines.
func newWorld(t *testing.T, late time.Duration) *world {
	t.Helper()
	return newWorldOf(t, late, nil)
}

// newWorldOf is a world that has other engines as well: programs by image.
func newWorldOf(t *testing.T, late time.Duration, engines map[string]string) *world {
	t.Helper()
	if _, err := kube.Assets(); err != nil {
		t.Skip(err)
	}
	w := &world{T: t, dir: t.TempDir(), late: late, pickers: map[string]string{}, nodes: []string{"node-1", "node-2", "node-3"}}
	w.subnet = takeSubnet(t)
	err := programsOf(w.dir)
	w.must(err)
	if w.cluster, err = kube.Start(kube.Options{ControllerManager: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	config := rest.CopyConfig(w.cluster.Config)
	config.QPS = -1
	scheme := apiruntime.NewScheme()
	w.must(clientgoscheme.AddToScheme(scheme))
	w.must(v1alpha1.AddToScheme(scheme))
	w.admin, err = client.New(config, client.Options{Scheme: scheme})
	w.must(err)
	w.set, err = kubernetes.NewForConfig(config)
	w.must(err)
	w.kubectl("apply", "--server-side", "-k", filepath.Join(kube.Root(), "config", "default"))
	w.must(w.admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	w.must(os.WriteFile(w.file("ca.crt"), config.CAData, 0o600))
	w.runner, err = podrunner.Start(t.Context(), podrunner.Options{
		Config: config, Namespace: namespace, Nodes: w.nodes,
		Programs: w.programs(engines),
		Dir:      w.file("pods"), Subnet: w.subnet, Address: w.address, Rewrite: w.rewrite,
	})
	w.must(err)
	t.Cleanup(w.runner.Stop)
	t.Cleanup(func() {
		w.stopManager()
		if w.Failed() {
			w.showLogs()
		}
	})
	w.installed = w.release(0)
	w.startManager()
	return w
}

// showLogs shows the ends of all logs.
func (w *world) showLogs() {
	w.tail("manager.log")
	logs, _ := filepath.Glob(w.file("pods/*/*.log"))
	for _, name := range logs {
		w.tail(strings.TrimPrefix(name, w.dir+"/"))
	}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) file(name string) string { return filepath.Join(w.dir, name) }

func (w *world) kubectl(args ...string) {
	w.Helper()
	if _, err := w.cluster.Kubectl(w.Context(), nil, args...); err != nil {
		w.Fatal(err)
	}
}

// apply takes YAML.
func (w *world) apply(manifest string) {
	w.Helper()
	if _, err := w.cluster.Kubectl(w.Context(), strings.NewReader(manifest), "apply", "--server-side", "-n", namespace, "-f", "-"); err != nil {
		w.Fatal(err)
	}
}

// startManager runs the operator that is installed as its service account, again and again, as a kubelet would.
func (w *world) startManager() {
	w.Helper()
	kubeconfig := w.kubeconfig(system, operator)
	w.token(system, operator, rpc.OperateAudience, "operator.token")
	log, err := os.OpenFile(w.file("manager.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	w.must(err)
	args := []string{
		"--kubeconfig=" + kubeconfig, "--leader-election-namespace=" + system,
		"--picker-image=" + w.installed.picker, "--reporter-image=" + w.installed.reporter,
		"--service-account=" + system + "/" + operator, "--token-file=" + w.file("operator.token"),
		"--health-address=" + net.JoinHostPort(kube.Loopback(), "0"), "--metrics-address=0", "--log-level=debug",
	}
	ctx, stop := context.WithCancel(w.Context())
	done, program := make(chan struct{}), w.installed.operator
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			w.runManager(ctx, log, program, args)
			pause(ctx, time.Second)
		}
	}()
	w.stopManager = func() {
		stop()
		<-done
		_ = log.Close()
	}
}

// runManager runs the operator until it ends, or is asked to by the end of ctx. It ends by itself when it can lead no more.
func (w *world) runManager(ctx context.Context, log *os.File, program string, args []string) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	runtime.LockOSThread() // Pdeathsig is about the thread
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if ctx.Err() == nil {
		w.restarts.Add(1)
		w.Logf("the operator has ended: %v: %s", err, bytes.Join(w.lastLines("manager.log", 3), []byte("\n")))
	}
}

// kubeconfig of a service account.
func (w *world) kubeconfig(namespace, name string) string {
	w.Helper()
	file, err := w.cluster.ServiceAccount(namespace, name)
	w.must(err)
	if w.late > 0 {
		file = w.slowWatches(file, w.late)
	}
	return file
}

// tail shows the end of a log.
func (w *world) tail(name string) {
	if lines := w.lastLines(name, 40); lines != nil {
		w.Logf("%s ends with:\n%s", name, bytes.Join(lines, []byte("\n")))
	}
}

// lastLines are those of a file; none if there is none.
func (w *world) lastLines(name string, n int) [][]byte {
	text, err := os.ReadFile(w.file(name))
	if err != nil {
		return nil
	}
	lines := bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
	return lines[max(0, len(lines)-n):]
}

// token writes a token of a service account into a file.
func (w *world) token(namespace, name, audience, file string) {
	w.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](24 * 60 * 60)}}
	if audience != "" {
		request.Spec.Audiences = []string{audience}
	}
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		made, err := w.set.CoreV1().ServiceAccounts(namespace).CreateToken(w.Context(), name, request, metav1.CreateOptions{})
		if err == nil {
			w.must(os.WriteFile(w.file(file), []byte(made.Status.Token), 0o600))
			return
		}
		if time.Now().After(end) {
			w.Fatal(err)
		}
	}
}

// pickerAddresses are all addresses that pickers can have.
func (w *world) pickerAddresses() []string {
	var all []string
	for i := range maxPickers {
		all = append(all, kube.Address(w.subnet, 200, i+1))
	}
	return all
}

// address gives picker pods the addresses that are known, and those of pods that are gone again.
func (w *world) address(pod *corev1.Pod) string {
	const component = "app.kubernetes.io/component=picker"
	if pod.Labels["app.kubernetes.io/component"] != "picker" {
		return ""
	}
	there, err := w.set.CoreV1().Pods(namespace).List(w.Context(), metav1.ListOptions{LabelSelector: component})
	if err != nil {
		if w.Context().Err() == nil {
			w.Errorf("listing pickers: %v", err)
		}
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.pickers, func(name, _ string) bool {
		return !slices.ContainsFunc(there.Items, func(p corev1.Pod) bool { return p.Name == name })
	})
	for _, ip := range w.pickerAddresses() {
		if !slices.Contains(slices.Collect(maps.Values(w.pickers)), ip) {
			w.pickers[pod.Name] = ip
			return ip
		}
	}
	w.Errorf("pod %s is one picker too many: %v", pod.Name, w.pickers)
	return ""
}

// rewrite gives processes what a cluster gives pods: names that resolve, and a way to the API server.
func (w *world) rewrite(pod *corev1.Pod, container string, args []string) []string {
	var peers []string
	for _, ip := range w.pickerAddresses() {
		peers = append(peers, net.JoinHostPort(ip, "9004"))
	}
	list := strings.Join(peers, ",")
	for i, arg := range args {
		name, _, _ := strings.Cut(arg, "=")
		switch name {
		case "--peers-service":
			args[i] = "--peers=" + list
		case "--picker-service":
			args[i] = "--pickers=" + list
		case "--report-keys":
			args[i] = "--report-keys=" + strings.TrimSuffix(w.cluster.Config.Host, "/") + "/openid/v1/jwks"
		case "--report-keys-token":
			args[i] = "--report-keys-token=" + w.file(container+".token")
		case "--report-keys-ca":
			args[i] = "--report-keys-ca=" + w.file("ca.crt")
		}
	}
	switch container {
	case "picker":
		kubeconfig := w.kubeconfig(namespace, pod.Spec.ServiceAccountName)
		w.token(namespace, pod.Spec.ServiceAccountName, "", "picker.token")
		args = append(args, "--kubeconfig="+kubeconfig)
	case "vllm":
		if w.service != nil {
			args = w.service.rewrite(args)
		}
	case "kvasir-reporter":
		args = append(args, "--status-address=")
	}
	return args
}

// proxies are the addresses of the pickers that are ready.
func (w *world) proxies() []string {
	pods, err := w.set.CoreV1().Pods(namespace).List(w.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=picker"})
	if err != nil {
		return nil
	}
	var all []string
	for i := range pods.Items {
		if p := &pods.Items[i]; ready(p) && p.DeletionTimestamp.IsZero() {
			all = append(all, net.JoinHostPort(p.Status.PodIP, "8080"))
		}
	}
	return all
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func (w *world) pool() *v1alpha1.InferencePool {
	w.Helper()
	p := &v1alpha1.InferencePool{}
	w.must(w.admin.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: poolName}, p))
	return p
}

// until waits for the pool to be as a test wants it.
func (w *world) until(what string, is func(*v1alpha1.InferencePool) bool) *v1alpha1.InferencePool {
	w.Helper()
	answers := time.Duration(*longest) * 30 * time.Millisecond // drains wait for them, one after the other in rollouts
	for end := time.Now().Add(patience + answers + w.loads); ; time.Sleep(w.between(50 * time.Millisecond)) {
		p := w.pool()
		if is(p) {
			return p
		}
		if time.Now().After(end) {
			status, _ := json.MarshalIndent(p.Status, "", " ")
			w.Fatalf("the pool is not %s:\n%s", what, status)
		}
	}
}

// between is how long to wait between two looks at the API server. Real engines need the processor more.
func (w *world) between(d time.Duration) time.Duration {
	if w.loads > 0 {
		return time.Second
	}
	return d
}

// patch changes the pool's spec.
func (w *world) patch(format string, args ...any) {
	w.Helper()
	w.must(w.admin.Patch(w.Context(), &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: poolName}},
		client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, format, args...))))
}

// settled reports whether a pool has n pods of its newest revision that serve, and no others.
func settled(n int32) func(*v1alpha1.InferencePool) bool {
	return func(p *v1alpha1.InferencePool) bool {
		s := &p.Status
		is := func(v *int32) bool { return v != nil && *v == n }
		return s.ObservedGeneration == p.Generation && is(s.DesiredReplicas) && is(s.Replicas) && is(s.ReadyReplicas) && is(s.UpdatedReplicas) &&
			(s.DrainingReplicas == nil || *s.DrainingReplicas == 0)
	}
}

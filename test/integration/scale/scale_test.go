// Package scale runs the operator as a process with many pools, against a real API server. Pods and pickers are simulated:
// pods run as soon as they exist, and pickers report that they know all of them.
package scale

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/test/kube"
)

var (
	pools = flag.Int("scale.pools", 100, "pools")
	pods  = flag.Int("scale.pods", 50, "pods of each pool")
)

const (
	namespace = "llm"
	system    = "kvasir-system"
	operator  = "kvasir-operator"
	// patience bounds work that should take a minute. The machine can be very busy.
	patience = 10 * time.Minute
	// quiet is how long nothing must have been written to call it the end, and atRest how long it is watched then.
	// Conditions are reported when they have lasted 10 s.
	quiet, atRest = 15 * time.Second, 30 * time.Second
)

// Bounds for 100 pools of 50 pods. Two minutes on two cores are 240 s of processor time, for everything: the API server
// and etcd take most of it. Where a machine has more to do than this test, time on the clock says nothing.
const (
	mostTime    = 240 * time.Second
	mostOwnTime = 60 * time.Second
	mostMemory  = 200 << 20
)

// world is a cluster with an operator.
type world struct {
	*testing.T
	cluster *kube.Cluster
	admin   client.Client
	set     kubernetes.Interface
	dir     string
	manager *exec.Cmd
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if _, err := kube.Assets(); err != nil {
		t.Skip(err)
	}
	ctrl.SetLogger(logr.Discard())
	w := &world{T: t, dir: t.TempDir()}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", w.file("manager"), "github.com/kvasir-dev/kvasir/cmd/manager")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the operator: %v\n%s", err, out)
	}
	var err error
	w.cluster, err = kube.Start(kube.Options{})
	w.must(err)
	t.Cleanup(func() { w.check(w.cluster.Stop()) })
	config := rest.CopyConfig(w.cluster.Config)
	config.QPS = -1
	scheme := runtime.NewScheme()
	w.must(clientgoscheme.AddToScheme(scheme))
	w.must(v1alpha1.AddToScheme(scheme))
	w.admin, err = client.New(config, client.Options{Scheme: scheme})
	w.must(err)
	w.set, err = kubernetes.NewForConfig(config)
	w.must(err)
	_, err = w.cluster.Kubectl(t.Context(), nil, "apply", "--server-side", "-k", filepath.Join(kube.Root(), "config", "default"))
	w.must(err)
	w.must(w.admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// check is must where the test might have ended, or in another goroutine.
func (w *world) check(err error) {
	if err != nil {
		w.Error(err)
	}
}

func (w *world) file(name string) string { return filepath.Join(w.dir, name) }

// startManager runs the operator as it runs in a cluster: with its own rights, and leader election.
func (w *world) startManager() {
	w.Helper()
	kubeconfig, err := w.cluster.ServiceAccount(system, operator)
	w.must(err)
	w.must(os.WriteFile(w.file("token"), []byte("the operator's"), 0o600))
	log, err := os.Create(w.file("manager.log"))
	w.must(err)
	w.manager = exec.Command(w.file("manager"),
		"--kubeconfig="+kubeconfig, "--leader-election-namespace="+system, "--picker-image=picker", "--reporter-image=reporter",
		"--service-account="+system+"/"+operator, "--token-file="+w.file("token"), "--health-address="+net.JoinHostPort(kube.Loopback(), "0"), "--metrics-address=0")
	w.manager.Stdout, w.manager.Stderr = log, log
	w.must(w.manager.Start())
	w.Cleanup(func() {
		_ = w.manager.Process.Kill()
		_ = w.manager.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(w.file("manager.log")); err == nil && w.Failed() {
			w.Logf("the operator's log ends with:\n%s", text[max(0, len(text)-4000):])
		}
	})
}

func pool(name string, replicas int) *v1alpha1.InferencePool {
	return &v1alpha1.InferencePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.InferencePoolSpec{
			Model: v1alpha1.Model{Name: "model"}, Replicas: ptr.To(int32(replicas)),
			Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				ServiceAccountName: "default", // which the API server would fill in, were its admission of service accounts on
				Containers:         []corev1.Container{{Name: "vllm", Image: "vllm", Command: []string{"vllm", "serve"}, Args: []string{"model"}}},
			}},
		},
	}
}

// settled counts the pools that say that all is well with all of their pods.
func (w *world) settled() (n int) {
	w.Helper()
	var list v1alpha1.InferencePoolList
	w.must(w.admin.List(w.Context(), &list, client.InNamespace(namespace)))
	for i := range list.Items {
		s := &list.Items[i].Status
		want := int32(*pods)
		well := ptr.Deref(s.ReadyReplicas, 0) == want && ptr.Deref(s.UpdatedReplicas, 0) == want && ptr.Deref(s.Endpoints.Synced, 0) == want
		for _, kind := range []string{
			v1alpha1.ConditionAccepted, v1alpha1.ConditionReady, v1alpha1.ConditionUpToDate, v1alpha1.ConditionScaled,
			v1alpha1.ConditionPodsHealthy, v1alpha1.ConditionEventsSynced, v1alpha1.ConditionPickerAvailable,
		} {
			well = well && meta.IsStatusConditionTrue(s.Conditions, kind)
		}
		if well {
			n++
		}
	}
	return n
}

// ofWrites are the API server's counters of requests that write, without those by which programs keep their leases.
var ofWrites = regexp.MustCompile(`(?m)^apiserver_request_total\{[^}]*resource="([a-z]+)"[^}]*verb="(POST|PUT|PATCH|APPLY|DELETE)"[^}]*\} (\S+)$`)

// writes that the API server has been asked for so far, successful or not, by verb and resource.
func (w *world) writes() map[string]int {
	w.Helper()
	raw, err := w.set.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(w.Context())
	w.must(err)
	all := map[string]int{}
	for _, m := range ofWrites.FindAllStringSubmatch(string(raw), -1) {
		if m[1] == "leases" {
			continue
		}
		n, err := strconv.ParseFloat(m[3], 64)
		w.must(err)
		all[m[2]+" "+m[1]] += int(n)
	}
	return all
}

// more is what has been written since.
func more(before, after map[string]int) map[string]int {
	out := map[string]int{}
	for what, n := range after {
		if n > before[what] {
			out[what] = n - before[what]
		}
	}
	return out
}

// usage is what the programs have used.
func (w *world) usage() (manager, all kube.Used) {
	w.Helper()
	manager, err := kube.Usage(w.manager.Process.Pid)
	w.must(err)
	all = manager
	for _, name := range []string{"etcd", "kube-apiserver"} {
		pid, err := w.cluster.Process(name)
		w.must(err)
		used, err := kube.Usage(pid)
		w.must(err)
		all.CPU += used.CPU
	}
	return manager, all
}

// TestManyPools has the operator make many pools at once, and sees what that takes, and that it then rests.
func TestManyPools(t *testing.T) {
	w := newWorld(t)
	ctx, stop := context.WithCancel(t.Context())
	k := startKubelet(ctx, w)
	p := startPickers(ctx, w, k)
	t.Cleanup(func() { stop(); k.done.Wait(); p.done.Wait() })
	w.startManager()
	_, before := w.usage()
	began := time.Now()
	for i := range *pools {
		w.must(w.admin.Create(ctx, pool(fmt.Sprintf("m%03d", i), *pods)))
	}
	for n, said := 0, time.Now(); n < *pools; time.Sleep(2 * time.Second) { // each look is work for the API server, too
		n = w.settled()
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			t.Logf("%s: %d pools, %d pods run", time.Since(began).Round(time.Second), n, k.running.Load())
		}
		if time.Since(began) > patience {
			t.Fatalf("%d of %d pools are well after %s, %d pods run", n, *pools, patience, k.running.Load())
		}
	}
	took := time.Since(began)
	manager, all := w.usage()
	t.Logf("%d pools of %d pods in %s: processor time %s, of the operator %s; its memory %d MiB, at most %d MiB", *pools, *pods,
		took.Round(100*time.Millisecond), (all.CPU - before.CPU).Round(100*time.Millisecond), manager.CPU.Round(100*time.Millisecond), manager.Memory>>20, manager.Peak>>20)
	t.Logf("written: %v", w.writes())
	if spent := all.CPU - before.CPU; spent > mostTime || manager.CPU > mostOwnTime {
		t.Errorf("it took %s of processor time, the operator %s; want at most %s and %s", spent, manager.CPU, mostTime, mostOwnTime)
	}

	w.waitForQuiet()
	wrote := w.writes()
	idle, _ := w.usage()
	time.Sleep(atRest)
	if late := more(wrote, w.writes()); len(late) > 0 {
		t.Errorf("at rest this was written in %s: %v", atRest, late)
	}
	manager, _ = w.usage()
	t.Logf("at rest the operator takes %.1f %% of a processor, and %d MiB", 100*float64(manager.CPU-idle.CPU)/float64(atRest), manager.Memory>>20)
	if manager.Peak > mostMemory {
		t.Errorf("the operator took %d MiB, want at most %d", manager.Peak>>20, mostMemory>>20)
	}
	if n := w.settled(); n != *pools {
		t.Errorf("%d of %d pools are well at the end", n, *pools)
	}
}

// waitForQuiet waits until nothing has been written for a while.
func (w *world) waitForQuiet() {
	w.Helper()
	before, since := w.writes(), time.Now()
	for end := time.Now().Add(patience); time.Since(since) < quiet; time.Sleep(time.Second) {
		now := w.writes()
		if late := more(before, now); len(late) > 0 {
			w.Logf("before it rests, after %s: %v", time.Since(since).Round(time.Second), late)
			before, since = now, time.Now()
			if since.After(end) {
				w.Fatalf("it never rests: %v", late)
			}
		}
	}
}

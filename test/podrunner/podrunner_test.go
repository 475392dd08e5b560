package podrunner

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/test/kube"
)

// webEnv turns the test's own program into a container's.
const webEnv = "PODRUNNER_WEB"

func TestMain(m *testing.M) {
	if os.Getenv(webEnv) != "" {
		web()
		return
	}
	os.Exit(func() int {
		if _, err := kube.Assets(); err == nil {
			if cluster, err = kube.Start(kube.Options{}); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			defer func() { _ = cluster.Stop() }()
		}
		return m.Run()
	}())
}

// cluster is one for all tests; nil where there are no programs for one.
var cluster *kube.Cluster

// web serves, and writes into its volume what happens to it: the hook, which takes a while, and the signal.
func web() {
	note := func(what string) {
		f, err := os.OpenFile(os.Getenv("NOTES"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			panic(err)
		}
		fmt.Fprintln(f, os.Getenv("NAME"), what)
		_ = f.Close()
	}
	http.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat(os.Getenv("NOTES") + ".unready"); err == nil {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	http.HandleFunc("/alive", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/stop", func(http.ResponseWriter, *http.Request) {
		note("hook begins")
		time.Sleep(300 * time.Millisecond)
		note("hook ends")
	})
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	go func() { _ = http.ListenAndServe(os.Args[1], nil) }()
	note("starts")
	<-end
	note("ends")
}

func webContainer(name, address, notes string) corev1.Container {
	return corev1.Container{
		Name: name, Image: "web", Args: []string{address},
		Env:            []corev1.EnvVar{{Name: webEnv, Value: "1"}, {Name: "NOTES", Value: notes}, {Name: "NAME", Value: name}},
		ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(8000)}}},
	}
}

func start(t *testing.T) (kubernetes.Interface, *Runner) {
	t.Helper()
	if cluster == nil {
		t.Skip("no API server: run `make kube`")
	}
	client, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Start(t.Context(), Options{
		Config: cluster.Config, Namespace: "default", Nodes: []string{"here"}, Programs: map[string]string{"web": os.Args[0]},
		Dir: t.TempDir(), Subnet: 77,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return client, r
}

// until waits for a pod to be as a test wants it, and returns it; nil when it is gone.
func until(t *testing.T, c kubernetes.Interface, name, what string, is func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		p, err := c.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			p = nil
		case err != nil:
			t.Fatal(err)
		}
		if is(p) {
			return p
		}
		if time.Now().After(end) {
			t.Fatalf("%s is not %s: %+v", name, what, p)
		}
	}
}

func isReady(p *corev1.Pod) bool {
	if p == nil {
		return false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func TestALife(t *testing.T) {
	c, r := start(t)
	notes := filepath.Join(t.TempDir(), "notes")
	if err := os.WriteFile(notes+".unready", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	main := webContainer("main", ":8000", notes)
	main.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/stop", Port: intstr.FromInt32(8000)}}}
	beside := webContainer("beside", "127.0.0.1:8001", notes)
	beside.ReadinessProbe, beside.RestartPolicy = nil, ptr.To(corev1.ContainerRestartPolicyAlways)
	_, err := c.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{beside}, Containers: []corev1.Container{main},
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "x/warm"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := until(t, c, "p", "running", func(p *corev1.Pod) bool { return p.Status.PodIP != "" && p.Status.Phase == corev1.PodRunning })
	of := netip.MustParseAddr(kube.Address(77, 0, 0))
	if subnet := netip.PrefixFrom(of, of.BitLen()/2); isReady(p) || !subnet.Contains(netip.MustParseAddr(p.Status.PodIP)) {
		t.Errorf("ready %v at %s before its probe", isReady(p), p.Status.PodIP)
	}
	if err := os.Remove(notes + ".unready"); err != nil {
		t.Fatal(err)
	}
	until(t, c, "p", "probed", func(p *corev1.Pod) bool {
		if isReady(p) {
			t.Fatal("ready before its gate")
		}
		return p.Status.ContainerStatuses[0].Ready
	})
	gate := []byte(`{"status":{"conditions":[{"type":"x/warm","status":"True"}]}}`)
	if _, err := c.CoreV1().Pods("default").Patch(t.Context(), "p", types.StrategicMergePatchType, gate, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	p = until(t, c, "p", "ready", isReady)

	if err := os.WriteFile(notes+".unready", nil, 0o600); err != nil { // it stays unready for as long as it takes to be seen
		t.Fatal(err)
	}
	if err := r.Kill(p.UID, "main"); err != nil {
		t.Fatal(err)
	}
	p = until(t, c, "p", "restarted", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount > 0 })
	if isReady(p) {
		t.Error("ready before it has answered its probe again")
	}
	if err := os.Remove(notes + ".unready"); err != nil {
		t.Fatal(err)
	}
	p = until(t, c, "p", "ready again", isReady)
	if n := p.Status.ContainerStatuses[0].RestartCount; n != 1 {
		t.Errorf("%d restarts", n)
	}

	if err := c.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](20)}); err != nil {
		t.Fatal(err)
	}
	until(t, c, "p", "gone", func(p *corev1.Pod) bool { return p == nil })
	text, err := os.ReadFile(notes)
	if err != nil {
		t.Fatal(err)
	}
	const want = "main starts\nmain hook begins\nmain hook ends\nmain ends\nbeside ends\n"
	if _, end, ok := strings.Cut(string(text), "main starts\n"); !ok || !strings.HasSuffix(end, want) {
		t.Errorf("what happened:\n%swant at the end:\n%s", text, want)
	}
}

func TestGraceIsTheLimit(t *testing.T) {
	c, _ := start(t)
	notes := filepath.Join(t.TempDir(), "notes")
	main := webContainer("main", ":8000", notes)
	main.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/stop", Port: intstr.FromInt32(8000)}}}
	_, err := c.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.PodSpec{Containers: []corev1.Container{main}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	q := until(t, c, "q", "ready", isReady)
	// Deleted by force while the hook runs: the process must not outlive the pod for long.
	if err := c.CoreV1().Pods("default").Delete(t.Context(), "q", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.CoreV1().Pods("default").Delete(t.Context(), "q", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for get(ctx, q.Status.PodIP, 8000, "/ready") == nil {
		if ctx.Err() != nil {
			t.Fatal("the process goes on")
		}
	}
}

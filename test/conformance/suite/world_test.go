package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/gateway-api-inference-extension/conformance"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	confsuite "sigs.k8s.io/gateway-api/conformance/utils/suite"

	"github.com/kvasir-dev/kvasir/test/kube"
	"github.com/kvasir-dev/kvasir/test/manifests"
	"github.com/kvasir-dev/kvasir/test/podrunner"
)

const (
	// patience is the limit for operations that should take seconds.
	patience = 2 * time.Minute
	// istiodPort is where Istio's control plane configures gateways.
	istiodPort = 15010
	// gatewayLabel is on the pods and the Service of a Gateway.
	gatewayLabel = "gateway.networking.k8s.io/gateway-name"
	// class is the GatewayClass.
	class = "istio"
)

// world is a cluster with Istio.
type world struct {
	*testing.T
	dir     string
	cluster *kube.Cluster
	set     kubernetes.Interface
	client  client.Client
	options confsuite.ConformanceOptions
	runner  *podrunner.Runner

	mu   sync.Mutex // guards what follows
	pods int        // that have an address
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, dir: t.TempDir()}
	var definitions []string
	for module, file := range map[string]string{
		"sigs.k8s.io/gateway-api":                     "config/crd/standard",
		"sigs.k8s.io/gateway-api-inference-extension": "config/crd/bases",
		"istio.io/api":                                "kubernetes/customresourcedefinitions.gen.yaml",
	} {
		files, err := manifests.Files(t.Context(), module, file)
		w.must(err)
		definitions = append(definitions, files...)
	}
	var err error
	w.cluster, err = kube.Start(kube.Options{ControllerManager: true, Definitions: definitions})
	w.must(err)
	t.Cleanup(func() {
		if err := w.cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("KUBECONFIG", w.cluster.Kubeconfig())
	t.Setenv("DIR", w.dir)
	w.options = conformance.DefaultOptions(t)
	w.options.GatewayClassName = class
	w.options.TimeoutConfig.MaxTimeToConsistency = time.Minute // all is on one machine
	w.client = w.options.Client
	w.set = w.options.Clientset
	w.startPods()
	w.startIstiod()
	gateways, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.runGateways(gateways)
	}()
	t.Cleanup(func() { stop(); <-done })
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// bin is where the programs are that Makefile has built.
func (w *world) bin(name string) string {
	w.Helper()
	dir := os.Getenv("KVASIR_BIN")
	if dir == "" {
		w.Fatal("KVASIR_BIN names no folder: run make conformance")
	}
	return filepath.Join(dir, name)
}

// images of the suite and of the test, and their roles.
var images = map[string]string{
	"gcr.io/k8s-staging-gateway-api/echo-basic:v20251106-v1.3.0-263-g47c3435c": "echo",
	"registry.k8s.io/gateway-api-inference-extension/lwepp:v1.6.0":             "filter",
	"gateway": "gateway",
}

// startPods runs the containers of all pods as processes.
func (w *world) startPods() {
	programs := map[string]string{}
	for image := range images {
		programs[image] = os.Args[0]
	}
	var err error
	w.runner, err = podrunner.Start(context.Background(), podrunner.Options{
		Config: w.cluster.Config, Nodes: []string{"node"}, Programs: programs, Dir: filepath.Join(w.dir, "pods"),
		Address: func(*corev1.Pod) string {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.pods++
			return fmt.Sprintf("10.9.1.%d", w.pods)
		},
		Rewrite: func(pod *corev1.Pod, container string, args []string) []string {
			for _, c := range pod.Spec.Containers {
				if c.Name == container {
					return append([]string{images[c.Image]}, arguments(images[c.Image], args)...)
				}
			}
			return args
		},
	})
	w.must(err)
	w.Cleanup(w.runner.Stop)
}

// arguments are those of our program where the suite has its own picker's.
func arguments(role string, args []string) []string {
	if role != "filter" {
		return args
	}
	given := map[string]string{}
	for i := 0; i+1 < len(args); i += 2 {
		given[args[i]] = args[i+1]
	}
	return []string{"--gateway-pool", given["--pool-namespace"] + "/" + given["--pool-name"], "--key-file", os.Getenv("DIR") + "/key"}
}

// startIstiod starts Istio's control plane.
func (w *world) startIstiod() {
	w.Helper()
	mesh := filepath.Join(w.dir, "mesh.yaml")
	// Envoy of its own project lacks the filters of Istio's metrics, and has no certificate of a mesh.
	w.must(os.WriteFile(mesh, []byte("enableAutoMtls: false\ndefaultProviders: {}\n"), 0o600))
	w.must(os.WriteFile(filepath.Join(w.dir, "key"), []byte(strings.Repeat("k", 32)), 0o600))
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "istio-system"}}
	_, err := w.set.CoreV1().Namespaces().Create(w.Context(), system, metav1.CreateOptions{})
	w.must(err)
	log, err := os.Create(filepath.Join(w.dir, "istiod.log"))
	w.must(err)
	istiod := exec.Command(w.bin("istiod"), "discovery", "--kubeconfig", w.cluster.Kubeconfig(), "--registries", "Kubernetes",
		"--meshConfig", mesh,
		"--grpcAddr", fmt.Sprintf("127.0.0.1:%d", istiodPort), "--httpAddr", "127.0.0.1:15080", "--httpsAddr", "", "--secureGRPCAddr", "",
		"--monitoringAddr", "127.0.0.1:15014", "--ctrlz_port", "0", "--namespace", "istio-system")
	istiod.Dir, istiod.Stdout, istiod.Stderr = w.dir, log, log
	istiod.Env = append(os.Environ(), "ENABLE_GATEWAY_API_INFERENCE_EXTENSION=true",
		"PILOT_ENABLE_ALPN_FILTER=false", "PILOT_ENABLE_METADATA_EXCHANGE=false",
		"PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER=false", "ENABLE_CA_SERVER=false", "POD_NAME=istiod", "POD_NAMESPACE=istio-system",
		"INJECTION_WEBHOOK_CONFIG_NAME=", "VALIDATION_WEBHOOK_CONFIG_NAME=", "KUBECONFIG="+w.cluster.Kubeconfig())
	w.must(istiod.Start())
	ended := make(chan error, 1)
	go func() { ended <- istiod.Wait() }()
	w.Cleanup(func() {
		_ = istiod.Process.Kill()
		<-ended
		if w.Failed() {
			text, _ := os.ReadFile(log.Name())
			w.Logf("istiod:\n%s", text[max(0, len(text)-8000):])
		}
	})
	w.until("Istio's control plane answers", func() bool {
		select {
		case err := <-ended:
			ended <- err
			text, _ := os.ReadFile(log.Name())
			w.Fatalf("istiod ended: %v\n%s", err, text)
		default:
		}
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", istiodPort))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// runGateways does what Istio's deployment controller and a cloud do for a Gateway: a pod, a Service and a load balancer.
func (w *world) runGateways(ctx context.Context) {
	known := map[types.UID]bool{}
	for ctx.Err() == nil {
		var all gatewayv1.GatewayList
		if err := w.client.List(ctx, &all); err == nil {
			for _, g := range all.Items {
				if g.Spec.GatewayClassName != class || known[g.UID] {
					continue
				}
				if err := w.deploy(ctx, &g, len(known)); err != nil {
					w.Logf("deploying Gateway %s: %v", g.Name, err)
					continue
				}
				known[g.UID] = true
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (w *world) deploy(ctx context.Context, g *gatewayv1.Gateway, i int) error {
	name, port, address := g.Name+"-istio", 18000+i, fmt.Sprintf("10.9.255.%d", i+1)
	owner := metav1.OwnerReference{APIVersion: gatewayv1.GroupVersion.String(), Kind: "Gateway", Name: g.Name, UID: g.UID}
	own := metav1.ObjectMeta{Name: name, Namespace: g.Namespace, Labels: map[string]string{gatewayLabel: g.Name},
		OwnerReferences: []metav1.OwnerReference{owner}}
	_, err := w.set.CoreV1().Pods(g.Namespace).Create(ctx, &corev1.Pod{ObjectMeta: own, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "envoy", Image: "gateway", Env: []corev1.EnvVar{
			{Name: "POD_NAME", Value: name}, {Name: "NAMESPACE", Value: g.Namespace}, {Name: "GATEWAY", Value: g.Name}},
	}}}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	protocol := "http"
	_, err = w.set.CoreV1().Services(g.Namespace).Create(ctx, &corev1.Service{ObjectMeta: own, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{gatewayLabel: g.Name},
		Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt(port), AppProtocol: &protocol}},
	}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	patch, _ := json.Marshal(map[string]any{"status": corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{
		Ingress: []corev1.LoadBalancerIngress{{IP: address}}}}})
	_, err = w.set.CoreV1().Services(g.Namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return err
	}
	pod := ""
	for pod == "" {
		p, err := w.set.CoreV1().Pods(g.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		pod = p.Status.PodIP
	}
	l, err := net.Listen("tcp", address+":80")
	if err != nil {
		return err
	}
	go forward(ctx, l, fmt.Sprintf("%s:%d", pod, port))
	return nil
}

// dumpGateways keeps the configuration that each gateway has when a test fails, in the folder KVASIR_OUT: whether its listener has
// ext_proc, and which endpoints its clusters have.
func (w *world) dumpGateways(t *testing.T) {
	dir := os.Getenv("KVASIR_OUT")
	if dir == "" {
		return
	}
	pods, err := w.set.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{LabelSelector: gatewayLabel})
	if err != nil {
		t.Logf("The configuration of the gateways is lost: %v", err)
		return
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		text, err := configDump(pod.Status.PodIP)
		file := filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "-")+"-"+pod.Name+".json")
		if err := errors.Join(err, os.MkdirAll(dir, 0o755), os.WriteFile(file, text, 0o600)); err != nil {
			t.Logf("The configuration of %s is lost: %v", pod.Name, err)
			continue
		}
		t.Logf("The configuration of %s is in %s", pod.Name, file)
	}
}

func configDump(ip string) ([]byte, error) {
	r, err := (&http.Client{Timeout: patience}).Get("http://" + ip + ":15000/config_dump?include_eds")
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Body.Close() }()
	return io.ReadAll(r.Body)
}

func (w *world) until(what string, is func() bool) {
	w.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// apply takes YAML.
func (w *world) apply(manifest string) {
	w.Helper()
	if _, err := w.cluster.Kubectl(w.Context(), strings.NewReader(manifest), "apply", "--server-side", "-f", "-"); err != nil {
		w.Fatal(err)
	}
}

package lifecycle

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/decisionlog"
	"github.com/kvasir-dev/kvasir/internal/status"
	"github.com/kvasir-dev/kvasir/test/kube"
)

// configured is a pool on two islands that sets what its pickers can do besides picking.
const configured = `
apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: m}
spec:
  model: {name: m}
  replicas: 2
  placement:
    islands:
    - {name: here, minReplicas: 1, maxReplicas: 1, latencyMilliseconds: 50}
    - {name: away, minReplicas: 1, maxReplicas: 1}
  picker:
    replicas: 2
    indexMemory: 64Mi
    maxRequestBody: 64Ki
    island: here
    compatibilityMetrics: Enabled
    profiling: Enabled
    decisionLog: {size: 8Mi}
    usageRecords: {file: {size: 8Mi}}
    tracing:
      endpoint: https://ADDRESS
      headersSecretRef: {name: collector, key: headers}
      caSecretRef: {name: collector, key: authority}
  template:
    spec:
      serviceAccountName: default
      containers:
      - name: vllm
        image: vllmsim
        args: [--host, 127.0.0.1, --served-model-name, m, --num-gpu-blocks, "4000"]
        readinessProbe: {httpGet: {path: /health, port: 8000}}
---
apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: refused}
spec:
  model: {name: other}
  selector: {matchLabels: {app: none}}
  engine: {apiKey: {name: collector, key: absent}}
  picker: {replicas: 1, indexMemory: 64Mi}
---
apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: near}
spec:
  targetRefs: [{name: m}]
  strategy: {type: RoundRobin}
  guards: {islandCrossing: Never}
  decisions: {logPercent: 100}
`

// metricsReader is a service account that is allowed to read the metrics of pools.
const metricsReader = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules:
- {apiGroups: [kvasir.dev], resources: [inferencepools/metrics], verbs: [get]}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader}]
`

// createReader creates the metrics reader, and writes its token for observe.
func (w *world) createReader() {
	w.Helper()
	w.apply(metricsReader)
	w.token(namespace, "reader", "", "reader.token")
}

// TestWhatAPoolSetsTakesEffect: settings of the pool and its policy, from their fields through the operator to what the pickers
// that it makes do.
func TestWhatAPoolSetsTakesEffect(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	spans := newCollector(w)
	w.must(w.admin.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "collector"},
		StringData: map[string]string{"headers": "x-key=secret", "authority": spans.authority},
	}))
	w.apply(strings.Replace(configured, "ADDRESS", spans.address, 1))
	w.until("serving", func(p *v1alpha1.InferencePool) bool { return settled(2)(p) && len(w.proxies()) == 2 })
	affected := func(p *v1alpha1.InferencePool) bool { return status.PolicyAffected.In(p.Status.Conditions) != nil }
	if c := status.PolicyAffected.In(w.until("affected by the policy", affected).Status.Conditions); strings.Contains(c.Message, "no effect") {
		t.Errorf("PolicyAffected: %s", c.Message)
	}
	w.createReader()

	pickers := w.pickerPods()
	for _, p := range pickers {
		for i := range 8 {
			if code := w.complete(p, fmt.Sprintf("prompt %d", i)); code != http.StatusOK {
				t.Errorf("a request to %s was answered with %d", p.Name, code)
			}
		}
		if code := w.complete(p, strings.Repeat("x", 65<<10)); code != http.StatusRequestEntityTooLarge {
			t.Errorf("a body above maxRequestBody was answered with %d", code)
		}
		w.checkLog(p)
		code, metrics := w.observe(p, "/metrics", true)
		if compatible := strings.Contains(metrics, "\ninference_pool_ready_pods{"); code != http.StatusOK || !compatible {
			t.Errorf("metrics of %s: status %d, with the names of inference gateways: %t", p.Name, code, compatible)
		}
		code, profile := w.observe(p, "/debug/pprof/goroutine?debug=1", true)
		if code != http.StatusOK || !strings.Contains(profile, "goroutine profile:") {
			t.Errorf("a profile of %s: status %d", p.Name, code)
		}
		if code, _ := w.observe(p, "/debug/pprof/goroutine?debug=1", false); code != http.StatusUnauthorized {
			t.Errorf("a profile of %s without a token: status %d", p.Name, code)
		}
	}
	w.eventually("a condition for what only the picker of a pool can see", func() bool {
		p := &v1alpha1.InferencePool{}
		w.must(w.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "refused"}, p))
		c := status.Accepted.In(p.Status.Conditions)
		return c != nil && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "entry absent of Secret llm/collector")
	})
	for _, p := range pickers {
		w.eventually("spans of "+p.Name, func() bool { return spans.received(p.Name) })
	}
}

// checkLog reads the decisions that a picker has logged: one for each of its requests. All requests stayed on its island.
func (w *world) checkLog(picker *corev1.Pod) {
	w.Helper()
	near := w.podsOf(v1alpha1.LabelIsland + "=here")
	var log string
	w.eventually("a line for each decision", func() bool {
		_, log = w.observe(picker, "/decision-log", true)
		return strings.Count(log, "\n") >= 8
	})
	w.eventually("a record of use for each request", func() bool {
		_, records := w.observe(picker, "/usage-log", true)
		return strings.Count(records, `"outcome":"completed","status":200,"prompt_tokens":`) == 8 && strings.Count(records, `"reason":"too_large"`) == 1
	})
	for line := range strings.Lines(log) {
		var r decisionlog.Record
		w.must(json.Unmarshal([]byte(line), &r))
		pod, _, _ := strings.Cut(r.Endpoint, "/")
		if r.Outcome == "completed" && !slices.ContainsFunc(near, func(p corev1.Pod) bool { return p.Name == pod }) {
			w.Errorf("%s has sent a request to %s, which is on another island", picker.Name, pod)
		}
	}
}

// dialling is a pool whose engines connect to its picker.
const dialling = `
apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: m}
spec:
  model: {name: m}
  replicas: 2
  engine: {events: {source: Listen}, ports: {events: 6001}}
  picker: {replicas: 1, indexMemory: 64Mi}
  template:
    spec:
      serviceAccountName: default
      containers:
      - name: vllm
        image: vllmsim
        args: [--host, 127.0.0.1, --served-model-name, m, --num-gpu-blocks, "4000"]
        readinessProbe: {httpGet: {path: /health, port: 8000}}
---
apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: logged}
spec:
  targetRefs: [{name: m}]
  decisions: {logPercent: 100}
`

// TestEnginesConnectToThePickerThroughItsService: engines with the flags of the operator reach the picker at the port of its Service,
// and a picker that takes its place knows what they hold.
func TestEnginesConnectToThePickerThroughItsService(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.service = newServiceProxy(w, "m-picker", 6001)
	w.apply(dialling)
	synced := func(p *v1alpha1.InferencePool) bool {
		c := status.EventsSynced.In(p.Status.Conditions)
		return settled(2)(p) && c != nil && c.Status == metav1.ConditionTrue && len(w.proxies()) == 1
	}
	w.until("served with events", synced)
	w.createReader()
	prompt := make([]int, 160)
	for i := range prompt {
		prompt[i] = 100 + i
	}
	first := w.pickerPods()[0]
	w.askUntilConfirmed(first, prompt)

	w.must(w.admin.Delete(t.Context(), first))
	w.eventually("another picker", func() bool {
		now := w.pickerPods()
		return len(now) == 1 && now[0].UID != first.UID && ready(now[0])
	})
	w.until("served with events again", synced)
	w.askUntilConfirmed(w.pickerPods()[0], prompt)
}

// askUntilConfirmed sends a prompt until the picker logs that an engine had announced its blocks.
func (w *world) askUntilConfirmed(picker *corev1.Pod, prompt []int) {
	w.Helper()
	w.eventually("a match that an engine has announced, at "+picker.Name, func() bool {
		w.complete(picker, prompt)
		_, log := w.observe(picker, "/decision-log", true)
		for line := range strings.Lines(log) {
			var r decisionlog.Record
			w.must(json.Unmarshal([]byte(line), &r))
			if len(r.Candidates) > 0 && r.Candidates[0].Confirmed >= 144 {
				return true
			}
		}
		return false
	})
}

// complete sends a request to a picker's proxy and returns the status of the answer; 0 for none.
func (w *world) complete(picker *corev1.Pod, prompt any) int {
	w.Helper()
	body, err := json.Marshal(map[string]any{"model": poolName, "max_tokens": 1, "prompt": prompt})
	w.must(err)
	ctx, cancel := context.WithTimeout(w.Context(), 30*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+net.JoinHostPort(picker.Status.PodIP, "8080")+"/v1/completions", bytes.NewReader(body))
	w.must(err)
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}

// observe gets a document from a picker's metrics port, with the reader's token or without.
func (w *world) observe(picker *corev1.Pod, path string, authorized bool) (code int, text string) {
	w.Helper()
	r, err := http.NewRequestWithContext(w.Context(), http.MethodGet, "https://"+net.JoinHostPort(picker.Status.PodIP, "9090")+path, nil)
	w.must(err)
	if authorized {
		token, err := os.ReadFile(w.file("reader.token"))
		w.must(err)
		r.Header.Set("Authorization", "Bearer "+string(token))
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the picker is known by its address
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(body)
}

// pickerPods are the pods of the pickers that are not being deleted.
func (w *world) pickerPods() []*corev1.Pod {
	w.Helper()
	var all []*corev1.Pod
	for _, p := range w.podsOf("app.kubernetes.io/component=picker,app.kubernetes.io/instance=" + poolName) {
		if p.DeletionTimestamp.IsZero() {
			all = append(all, &p)
		}
	}
	return all
}

func (w *world) podsOf(selector string) []corev1.Pod {
	w.Helper()
	pods, err := w.set.CoreV1().Pods(namespace).List(w.Context(), metav1.ListOptions{LabelSelector: selector})
	w.must(err)
	return pods.Items
}

// eventually waits until something is so.
func (w *world) eventually(what string, is func() bool) {
	w.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("not in %s: %s", patience, what)
		}
	}
}

// serviceProxy takes the place of kube-proxy for one port of a Service: it forwards the connections of engines to a ready pod
// that the Service selects, at the port that the Service names, from the address of the engine's pod.
type serviceProxy struct {
	*world
	name string
	port int32

	ctx         context.Context // ends all connections
	connections sync.WaitGroup
	pods        atomic.Int32 // that have an address to connect to
}

func newServiceProxy(w *world, name string, port int32) *serviceProxy {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	f := &serviceProxy{world: w, name: name, port: port, ctx: ctx}
	w.Cleanup(func() {
		cancel()
		f.connections.Wait()
	})
	return f
}

// rewrite has an engine connect to an address of its own, in place of the Service. Its own address is behind --host.
func (f *serviceProxy) rewrite(args []string) []string {
	pod := args[slices.Index(args, "--host")+1]
	address := kube.Address(f.subnet, 201, int(f.pods.Add(1)))
	listener, err := new(net.ListenConfig).Listen(f.ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(int(f.port))))
	if err != nil {
		f.Errorf("listening in place of a Service: %v", err)
		return args
	}
	context.AfterFunc(f.ctx, func() { _ = listener.Close() })
	f.connections.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			f.connections.Go(func() { f.forward(from, pod) })
		}
	})
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], f.name+"."+namespace+".svc:", net.JoinHostPort(address, ""))
	}
	return args
}

// forward copies a connection to a pod behind the Service, in both directions; without such a pod, it is closed.
func (f *serviceProxy) forward(from net.Conn, pod string) {
	defer from.Close()
	target := f.behind()
	if target == "" {
		return
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(pod)}}
	to, err := dialer.DialContext(f.ctx, "tcp", target)
	if err != nil {
		return
	}
	stop := context.AfterFunc(f.ctx, func() { _ = from.Close() })
	defer stop()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(from, to)
		_ = from.Close()
	})
	_, _ = io.Copy(to, from)
	_ = to.Close()
	back.Wait()
}

// behind is the address of a ready pod for the port of the Service; empty without one. There are no EndpointSlices to ask: the API
// server refuses loopback addresses in them.
func (f *serviceProxy) behind() string {
	s, err := f.set.CoreV1().Services(namespace).Get(f.ctx, f.name, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	at := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == f.port })
	if at < 0 {
		return ""
	}
	selector := labels.SelectorFromSet(s.Spec.Selector).String()
	pods, err := f.set.CoreV1().Pods(namespace).List(f.ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return ""
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		for _, port := range p.Spec.Containers[0].Ports {
			if ready(p) && p.DeletionTimestamp.IsZero() && port.Name == s.Spec.Ports[at].TargetPort.String() {
				return net.JoinHostPort(p.Status.PodIP, strconv.Itoa(int(port.ContainerPort)))
			}
		}
	}
	return ""
}

// spanCollector is an OpenTelemetry collector that wants TLS and a key.
type spanCollector struct {
	collector.UnimplementedTraceServiceServer

	address, authority string

	mu      sync.Mutex
	pickers map[string]bool // guarded by mu; pods that have sent a span with the key
}

func newCollector(w *world) *spanCollector {
	w.Helper()
	host := kube.Address(w.subnet, 202, 1)
	certificate, err := certs.SelfSigned([]string{host}, time.Now())
	w.must(err)
	listener, err := new(net.ListenConfig).Listen(w.Context(), "tcp", net.JoinHostPort(host, "0"))
	w.must(err)
	c := &spanCollector{
		address: listener.Addr().String(), pickers: map[string]bool{},
		authority: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]})),
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(certificate)))
	collector.RegisterTraceServiceServer(server, c)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	w.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			w.Errorf("serving the collector: %v", err)
		}
	})
	return c
}

// Export takes spans.
func (c *spanCollector) Export(
	ctx context.Context, in *collector.ExportTraceServiceRequest,
) (*collector.ExportTraceServiceResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, spans := range in.GetResourceSpans() {
		attributes := map[string]string{}
		for _, a := range spans.GetResource().GetAttributes() {
			attributes[a.GetKey()] = a.GetValue().GetStringValue()
		}
		if slices.Contains(md.Get("x-key"), "secret") && attributes["k8s.namespace.name"] == namespace {
			c.pickers[attributes["k8s.pod.name"]] = true
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// received reports whether spans of a pod have arrived, with the key.
func (c *spanCollector) received(pod string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pickers[pod]
}

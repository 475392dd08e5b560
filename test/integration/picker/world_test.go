package picker_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/freeport"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
	"github.com/kvasir-dev/kvasir/test/kube"
)

const (
	namespace = "default"
	poolName  = "m"
	operator  = "operator"
	monitor   = "monitor"
)

// wire is a TCP connection to the API server that can be cut.
type wire struct {
	target   string
	listener net.Listener

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

func newWire(target string) *wire {
	l, err := net.Listen("tcp", net.JoinHostPort(kube.Loopback(), "0"))
	Expect(err).NotTo(HaveOccurred())
	w := &wire{target: target, listener: l, conns: map[net.Conn]bool{}}
	var running sync.WaitGroup
	running.Go(func() { w.accept(&running) })
	DeferCleanup(func() {
		_ = l.Close()
		w.set(true)
		running.Wait()
	})
	return w
}

func (w *wire) accept(running *sync.WaitGroup) {
	for {
		c, err := w.listener.Accept()
		if err != nil {
			return
		}
		running.Go(func() { w.carry(c) })
	}
}

func (w *wire) carry(c net.Conn) {
	defer c.Close()
	to, err := net.Dial("tcp", w.target)
	if err != nil {
		return
	}
	defer to.Close()
	w.mu.Lock()
	if w.cut {
		w.mu.Unlock()
		return
	}
	w.conns[c], w.conns[to] = true, true
	w.mu.Unlock()
	go func() {
		_, _ = io.Copy(to, c)
		_ = to.Close()
		_ = c.Close()
	}()
	_, _ = io.Copy(c, to)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
	delete(w.conns, to)
}

// set cuts the wire, or mends it.
func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	if cut {
		for c := range w.conns {
			_ = c.Close()
		}
	}
}

// logs of a process that goes on writing.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// world is a pool with engines, and one replica of its picker.
type world struct {
	client  client.Client
	core    *kubernetes.Clientset
	wire    *wire
	port    int // of all engines
	engines map[string]*vllmsim.Engine
	proxy   string
	health  string
	metrics string
	sync    string
	ca      string // file
	token   string // of the picker, a file
	logs    *logs
	source  string // the flag that names the pool
}

func newWorld(ctx context.Context) *world {
	log.SetLogger(GinkgoLogr)
	Expect(v1alpha1.AddToScheme(scheme.Scheme)).To(Succeed())
	w := &world{engines: map[string]*vllmsim.Engine{}, logs: &logs{}, source: "--pool"}
	var err error
	w.client, err = client.New(cluster.Config, client.Options{})
	Expect(err).NotTo(HaveOccurred())
	w.core, err = kubernetes.NewForConfig(cluster.Config)
	Expect(err).NotTo(HaveOccurred())
	w.port = freePort()
	w.give(ctx)
	return w
}

func freePort() int {
	GinkgoHelper()
	port, err := freeport.Consecutive(kube.Loopback(), 1)
	Expect(err).NotTo(HaveOccurred())
	return port
}

func (w *world) create(ctx context.Context, objects ...client.Object) {
	for _, o := range objects {
		o.SetNamespace(namespace)
		Expect(w.client.Create(ctx, o)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) {
			Expect(client.IgnoreNotFound(w.client.Delete(ctx, o, client.GracePeriodSeconds(0)))).To(Succeed())
		})
	}
}

// give the picker the rights of the API's page, and no more.
func (w *world) give(ctx context.Context) {
	read := []string{"get", "list", "watch"}
	name := metav1.ObjectMeta{Name: poolName + "-picker"}
	w.create(ctx,
		&corev1.ServiceAccount{ObjectMeta: name},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: operator}},
		&rbacv1.Role{ObjectMeta: name, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"inferencepools", "routingpolicies"}, Verbs: read},
			{APIGroups: []string{"inference.networking.k8s.io"}, Resources: []string{"inferencepools"}, Verbs: read},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: read},
			{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"localsubjectaccessreviews"}, Verbs: []string{"create"}},
			{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{poolName + "-key"}, Verbs: []string{"get"}},
		}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: monitor}},
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: monitor}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"inferencepools/metrics"}, Verbs: []string{"get"}},
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: monitor}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: monitor},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: monitor, Namespace: namespace}},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name.Name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name.Name, Namespace: namespace}},
		},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: poolName + "-key"}, Data: map[string][]byte{"root": bytes.Repeat([]byte{7}, 32)}},
	)
}

// tokenOf a service account, for the API server if there is no audience.
func (w *world) tokenOf(ctx context.Context, account string, audiences ...string) string {
	r, err := w.core.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return r.Status.Token
}

// pod makes a ready pod with an engine at an address of its own.
func (w *world) pod(ctx context.Context, name, ip string) *corev1.Pod {
	e, err := vllmsim.Start(vllmsim.Config{Host: ip, Port: w.port, ServedModelNames: []string{"m"}, SpeedUp: 10})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { _ = e.Close() })
	w.engines[name] = e
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "m"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "vllm", Image: "vllm"}}},
	}
	w.create(ctx, p)
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	Expect(w.client.Status().Update(ctx, p)).To(Succeed())
	return p
}

// label sets a label of a pod, or takes it away if the value is empty.
func (w *world) label(ctx context.Context, p *corev1.Pod, key, value string) {
	quoted := strconv.Quote(value)
	if value == "" {
		quoted = "null"
	}
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, key, quoted)
	Expect(w.client.Patch(ctx, p, client.RawPatch(types.MergePatchType, []byte(patch)))).To(Succeed())
}

// start the picker's process, with a service account's token and by the wire.
func (w *world) start(ctx context.Context, arguments ...string) {
	dir := GinkgoT().TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		Expect(os.WriteFile(path, content, 0o600)).To(Succeed())
		return path
	}
	api := cluster.Config.Host
	if at, err := url.Parse(api); err == nil && at.Host != "" {
		api = at.Host
	}
	w.wire = newWire(api)
	server := "https://" + w.wire.listener.Addr().String()
	token := w.tokenOf(ctx, poolName+"-picker")
	w.token, w.ca = file("token", []byte(token)), file("ca.crt", cluster.Config.CAData)
	config := kubeconfig(server, token)
	Expect(clientcmd.WriteToFile(*config, filepath.Join(dir, "kubeconfig"))).To(Succeed())

	var authority certs.Authority
	var leaf certs.Pair
	_, _, err := authority.Renew(&leaf, []string{"m-picker"}, time.Now())
	Expect(err).NotTo(HaveOccurred())
	w.ca = file("pickers.crt", authority.Trusted())

	address := func() string { return net.JoinHostPort(kube.Loopback(), strconv.Itoa(freePort())) }
	proxy, health, metrics := address(), address(), address()
	w.proxy, w.health, w.metrics, w.sync = "http://"+proxy, "http://"+health, "https://"+metrics, address()
	picker := exec.Command(binary, append([]string{
		w.source, namespace + "/" + poolName, "--kubeconfig", filepath.Join(dir, "kubeconfig"), "--name", "picker-0",
		"--proxy-address", proxy, "--health-address", health, "--metrics-address", metrics, "--ext-proc-address", "", "--lame-duck", "0s",
		"--report-address", w.sync, "--report-cert", file("tls.crt", leaf.Cert), "--report-key", file("tls.key", leaf.Key),
		"--report-keys", server + "/openid/v1/jwks", "--report-keys-token", w.token, "--report-keys-ca", file("api.crt", cluster.Config.CAData),
		"--operator", namespace + "/" + operator,
	}, arguments...)...)
	picker.Stdout, picker.Stderr = w.logs, w.logs
	Expect(picker.Start()).To(Succeed())
	DeferCleanup(func() {
		_ = picker.Process.Signal(syscall.SIGTERM)
		_ = picker.Wait()
		if CurrentSpecReport().Failed() {
			GinkgoWriter.Println(w.logs.String())
		}
	})
}

func kubeconfig(server, token string) *api.Config {
	c := api.NewConfig()
	c.Clusters["c"] = &api.Cluster{Server: server, CertificateAuthorityData: cluster.Config.CAData}
	c.AuthInfos["u"] = &api.AuthInfo{Token: token}
	c.Contexts["x"] = &api.Context{Cluster: "c", AuthInfo: "u"}
	c.CurrentContext = "x"
	return c
}

func (w *world) ready() int {
	r, err := http.Get(w.health + "/readyz")
	if err != nil {
		return 0
	}
	defer r.Body.Close()
	return r.StatusCode
}

// ask sends a request and reports which pod has answered, or the status.
func (w *world) ask(n int) string { return w.askFor("m", n) }

// askFor is ask with the name of a model.
func (w *world) askFor(model string, n int) string {
	body := fmt.Sprintf(`{"model":%q,"max_tokens":1,"prompt":[%d%s]}`, model, n, strings.Repeat(","+strconv.Itoa(n), 40))
	r, err := http.Post(w.proxy+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	_, _ = io.Copy(io.Discard, r.Body)
	if r.StatusCode != http.StatusOK {
		return r.Status
	}
	return r.Header.Get("X-Kvasir-Endpoint") + r.Header.Get("X-Kvasir-Strategy")
}

// scrape requests metrics with a token and returns the status.
func (w *world) scrape(token string) int {
	trusted := x509.NewCertPool()
	text, err := os.ReadFile(w.ca)
	Expect(err).NotTo(HaveOccurred())
	trusted.AppendCertsFromPEM(text)
	c := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: trusted, ServerName: "m-picker", MinVersion: tls.VersionTLS12},
	}}
	r, err := http.NewRequest(http.MethodGet, w.metrics+"/metrics", http.NoBody)
	Expect(err).NotTo(HaveOccurred())
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := c.Do(r)
	Expect(err).NotTo(HaveOccurred())
	defer resp.Body.Close()
	return resp.StatusCode
}

// listen listens to the picker as the operator does.
func (w *world) listen(token string) *rpc.Pickers {
	pickers := rpc.NewPickers(rpc.PickersOptions{Dial: func(string) (rpc.DialOptions, error) {
		credentials, err := rpc.ClientTLS(rpc.Files{CA: w.ca}, "m-picker")
		return rpc.DialOptions{Credentials: credentials, Token: func() ([]byte, error) { return []byte(token), nil }}, err
	}})
	DeferCleanup(pickers.Close)
	pickers.Set(namespace+"/"+poolName, []rpc.Replica{{Name: "picker-0", Address: w.sync, Ready: true}})
	return pickers
}

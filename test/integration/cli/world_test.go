package cli_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/cli/fleet"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
	"github.com/kvasir-dev/kvasir/test/kube"
)

const (
	namespace  = "llm"
	poolName   = "m"
	patience   = 30 * time.Second
	enginePort = 18431
	proxyPort  = "18432"
)

// Addresses of the pods, all of this machine.
var pickerIP, engineA, engineB = kube.Address(0, 0, 9), kube.Address(0, 0, 2), kube.Address(0, 0, 3)

// cli runs the program as an administrator would, in the pool's namespace.
func cli(ctx context.Context, input string, arguments ...string) (status int, out, errs string) {
	return cliWith(ctx, cluster.Kubeconfig(), input, append(arguments, "-n", namespace)...)
}

func cliWith(ctx context.Context, config, input string, arguments ...string) (status int, out, errs string) {
	cmd := exec.CommandContext(ctx, filepath.Join(programs, "kubectl-kvasir"), arguments...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+config)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		Expect(err).NotTo(HaveOccurred())
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// expect runs the program and wants it to succeed.
func expect(ctx context.Context, arguments ...string) string {
	GinkgoHelper()
	status, out, errs := cli(ctx, "", arguments...)
	Expect(status).To(Equal(0), "%v: %s%s", arguments, out, errs)
	return out
}

// refused runs the program and wants it to fail with these words.
func refused(ctx context.Context, words string, arguments ...string) {
	GinkgoHelper()
	status, out, errs := cli(ctx, "", arguments...)
	Expect(status).To(Equal(1), "%v: %s%s", arguments, out, errs)
	Expect(errs).To(ContainSubstring(words))
}

// world is a pool with two engines and one picker.
type world struct {
	client  client.Client
	core    *kubernetes.Clientset
	kubelet *kubelet
	pool    *v1alpha1.InferencePool
}

func newWorld(ctx context.Context) *world {
	c, err := fleet.NewClient(cluster.Config)
	Expect(err).NotTo(HaveOccurred())
	core, err := kubernetes.NewForConfig(cluster.Config)
	Expect(err).NotTo(HaveOccurred())
	w := &world{client: c, core: core}
	Expect(client.IgnoreAlreadyExists(c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))).To(Succeed())
	w.kubelet = startKubelet(ctx, c)
	w.pool = &v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Name: poolName}}
	w.pool.Spec.Model.Name = "m"
	w.pool.Spec.Selector.MatchLabels = map[string]v1alpha1.LabelValue{"app": "m"}
	w.pool.Spec.Engine.Ports.HTTP = enginePort
	w.pool.Spec.Engine.Events.Source = v1alpha1.EventsNone
	w.create(ctx, w.pool)
	w.engine(ctx, "engine-a", engineA)
	w.engine(ctx, "engine-b", engineB)
	return w
}

func (w *world) create(ctx context.Context, objects ...client.Object) {
	GinkgoHelper()
	for _, o := range objects {
		o.SetNamespace(namespace)
		Expect(w.client.Create(ctx, o)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) {
			Expect(client.IgnoreNotFound(w.client.Delete(ctx, o, client.GracePeriodSeconds(0)))).To(Succeed())
		})
	}
}

// pod makes a ready pod on the node.
func (w *world) pod(ctx context.Context, name, ip string, labels map[string]string) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "main", Image: "main"}}},
	}
	w.create(ctx, p)
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
	}
	Expect(w.client.Status().Update(ctx, p)).To(Succeed())
	w.kubelet.add(name, ip)
}

func (w *world) engine(ctx context.Context, name, ip string) {
	e, err := vllmsim.Start(vllmsim.Config{Host: ip, Port: enginePort, ServedModelNames: []string{"m"}, SpeedUp: 10})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { _ = e.Close() })
	w.pod(ctx, name, ip, map[string]string{"app": "m"})
}

// status of the pool, as the operator would write it.
func (w *world) status(ctx context.Context, change func(*v1alpha1.InferencePoolStatus)) {
	GinkgoHelper()
	Expect(w.client.Get(ctx, client.ObjectKeyFromObject(w.pool), w.pool)).To(Succeed())
	s := &w.pool.Status
	s.ObservedGeneration = w.pool.Generation
	s.DesiredReplicas, s.UpdatedReplicas, s.ReadyReplicas = ptr.To[int32](2), ptr.To[int32](2), ptr.To[int32](2)
	s.Conditions = []metav1.Condition{condition(v1alpha1.ConditionReady, "True", "Serving", "2 of 2 endpoints"), condition(v1alpha1.ConditionUpToDate, "True", "UpToDate", "all")}
	if change != nil {
		change(s)
	}
	Expect(w.client.Status().Update(ctx, w.pool)).To(Succeed())
}

func condition(kind, status, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionStatus(status), Reason: reason, Message: message, LastTransitionTime: metav1.Now()}
}

// startPicker runs the pool's picker, with the rights, the certificate and the Service that the operator gives it.
func (w *world) startPicker(ctx context.Context) {
	name := resources.PickerName(poolName)
	meta := metav1.ObjectMeta{Name: name}
	read := []string{"get", "list", "watch"}
	var authority certs.Authority
	var leaf certs.Pair
	_, _, err := authority.Renew(&leaf, []string{resources.Host(name, namespace)}, time.Now())
	Expect(err).NotTo(HaveOccurred())
	labels := map[string]string{"app.kubernetes.io/instance": poolName}
	w.create(ctx,
		&corev1.ServiceAccount{ObjectMeta: meta},
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"inferencepools", "routingpolicies"}, Verbs: read},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: read},
			{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"localsubjectaccessreviews"}, Verbs: []string{"create"}},
			{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{poolName + "-key"}, Verbs: []string{"get"}},
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: namespace}},
		},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: poolName + "-key"}, Data: map[string][]byte{"root": bytes.Repeat([]byte{7}, 32)}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: resources.CAName(poolName)}, Data: map[string]string{"ca.crt": string(authority.Trusted())}},
		&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}}},
	)
	w.pod(ctx, name+"-0", pickerIP, labels)
	token, err := w.core.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	w.launch(token.Status.Token, leaf)
}

func (w *world) launch(token string, leaf certs.Pair) {
	dir := GinkgoT().TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		Expect(os.WriteFile(path, content, 0o600)).To(Succeed())
		return path
	}
	own := file("token", []byte(token))
	picker := exec.Command(filepath.Join(programs, "picker"),
		"--pool", namespace+"/"+poolName, "--kubeconfig", w.kubeconfig(dir, token), "--name", "m-picker-0",
		"--proxy-address", net.JoinHostPort(pickerIP, proxyPort), "--health-address", net.JoinHostPort(pickerIP, "9003"),
		"--metrics-address", net.JoinHostPort(pickerIP, "9090"),
		"--ext-proc-address", "", "--lame-duck", "0s", "--report-address", net.JoinHostPort(pickerIP, "9004"),
		"--report-cert", file("tls.crt", leaf.Cert), "--report-key", file("tls.key", leaf.Key),
		"--report-keys", apiServer()+"/openid/v1/jwks", "--report-keys-token", own, "--report-keys-ca", file("api.crt", cluster.Config.CAData),
	)
	var logs bytes.Buffer
	picker.Stdout, picker.Stderr = &logs, &logs
	Expect(picker.Start()).To(Succeed())
	DeferCleanup(func() {
		_ = picker.Process.Signal(syscall.SIGTERM)
		_ = picker.Wait()
		if CurrentSpecReport().Failed() {
			GinkgoWriter.Println(logs.String())
		}
	})
	Eventually(func() int {
		r, err := http.Get("http://" + net.JoinHostPort(pickerIP, "9003") + "/readyz")
		if err != nil {
			return 0
		}
		defer r.Body.Close()
		return r.StatusCode
	}, patience).Should(Equal(http.StatusOK))
}

// apiServer is its URL.
func apiServer() string {
	return "https://" + strings.TrimSuffix(strings.TrimPrefix(cluster.Config.Host, "https://"), "/")
}

// kubeconfig is a file with which the holder of a token reaches the cluster.
func (w *world) kubeconfig(dir, token string) string {
	c := api.NewConfig()
	c.Clusters["c"] = &api.Cluster{Server: apiServer(), CertificateAuthorityData: cluster.Config.CAData}
	c.AuthInfos["u"] = &api.AuthInfo{Token: token}
	c.Contexts["x"] = &api.Context{Cluster: "c", AuthInfo: "u"}
	c.CurrentContext = "x"
	path := filepath.Join(dir, "kubeconfig")
	Expect(clientcmd.WriteToFile(*c, path)).To(Succeed())
	return path
}

// viewer makes the account whose tokens pickers accept, as the docs say.
func (w *world) viewer(ctx context.Context) {
	const name = "kvasir-viewer"
	for _, arguments := range [][]string{
		{"create", "serviceaccount", name},
		{"create", "role", name, "--verb=get", "--resource=inferencepools.kvasir.dev/metrics"},
		{"create", "rolebinding", name, "--role=" + name, "--serviceaccount=" + namespace + ":" + name},
	} {
		_, err := cluster.Kubectl(ctx, nil, append([]string{"-n", namespace}, arguments...)...)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) {
			_, err := cluster.Kubectl(ctx, nil, "-n", namespace, "delete", arguments[1], name)
			Expect(err).NotTo(HaveOccurred())
		})
	}
}

// ask sends a request of so many tokens through the picker.
func (w *world) ask(first, tokens int) {
	GinkgoHelper()
	body := fmt.Sprintf(`{"model":"m","max_tokens":1,"prompt":[%d%s]}`, first, strings.Repeat(",7", tokens-1))
	r, err := http.Post("http://"+net.JoinHostPort(pickerIP, proxyPort)+"/v1/completions", "application/json", strings.NewReader(body))
	Expect(err).NotTo(HaveOccurred())
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	Expect(err).NotTo(HaveOccurred())
	Expect(r.StatusCode).To(Equal(http.StatusOK), string(text))
}

// operator makes the Deployment of an operator that runs, and its rights.
func (w *world) operator(ctx context.Context) {
	const name, system = "kvasir", "kube-system"
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{ServiceAccountName: name, Containers: []corev1.Container{{
				Name: "manager", Image: "kvasir/manager:dev", Args: []string{"--picker-image=kvasir/picker:dev", "--reporter-image=kvasir/reporter:dev"},
			}}},
		}},
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: system}},
	}
	for _, o := range []client.Object{d, binding} {
		Expect(w.client.Create(ctx, o)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(w.client.Delete(ctx, o)).To(Succeed()) })
	}
	d.Status = appsv1.DeploymentStatus{Replicas: 1, ReadyReplicas: 1}
	Expect(w.client.Status().Update(ctx, d)).To(Succeed())
}

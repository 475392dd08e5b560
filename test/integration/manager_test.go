package integration

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/freeport"
	"github.com/kvasir-dev/kvasir/test/kube"
)

// manager is a running replica of the operator.
type manager struct {
	cmd     *exec.Cmd
	log     *gbytes.Buffer
	health  string
	metrics string
	ended   chan error
}

// startManager runs a replica as the operator's service account, with the rights of config/rbac.
func startManager(args ...string) *manager {
	GinkgoHelper()
	return startManagerOf(cluster, append([]string{"--leader-election-namespace=" + system}, args...)...)
}

// startManagerOf runs a replica on a cluster.
func startManagerOf(cluster *kube.Cluster, args ...string) *manager {
	GinkgoHelper()
	kubeconfig, err := cluster.ServiceAccount(system, operator)
	Expect(err).NotTo(HaveOccurred())
	m := &manager{log: gbytes.NewBuffer(), health: freeAddress(), metrics: freeAddress(), ended: make(chan error, 1)}
	m.cmd = exec.Command(program, append([]string{
		"--kubeconfig=" + kubeconfig, "--picker-image=kvasir", "--reporter-image=kvasir",
		"--service-account=" + system + "/" + operator,
		"--health-address=" + m.health, "--metrics-address=" + m.metrics, "--log-level=trace",
	}, args...)...)
	m.cmd.Stdout, m.cmd.Stderr = GinkgoWriter, io.MultiWriter(GinkgoWriter, m.log)
	Expect(m.cmd.Start()).To(Succeed())
	go func() { m.ended <- m.cmd.Wait() }()
	DeferCleanup(func() { _ = m.cmd.Process.Kill() })
	return m
}

// stop asks it to end, and expects that it does so in peace.
func (m *manager) stop() {
	GinkgoHelper()
	Expect(m.cmd.Process.Signal(syscall.SIGTERM)).To(Succeed())
	Eventually(m.ended).Should(Receive(BeNil()), "it ends without an error")
	m.ended <- nil
}

// expectNoSecrets looks in the log for what is in any Secret, as it is and as the API server spells it.
func (m *manager) expectNoSecrets() {
	GinkgoHelper()
	all := &corev1.SecretList{}
	Expect(admin.List(context.Background(), all)).To(Succeed())
	log, sought := m.log.Contents(), 0
	for i := range all.Items {
		for key, value := range all.Items[i].Data {
			value = bytes.TrimSpace(value)
			if len(value) < 16 { // might stand there for something else
				continue
			}
			for _, spelt := range [][]byte{value, []byte(base64.StdEncoding.EncodeToString(value)), []byte(strings.Trim(strconv.Quote(string(value)), `"`))} {
				Expect(bytes.Contains(log, spelt)).To(BeFalse(), "the log has %s of the Secret %s/%s", key, all.Items[i].Namespace, all.Items[i].Name)
			}
			sought++
		}
	}
	Expect(sought).To(BeNumerically(">=", 3), "a pool has a key root, and an authority with its key")
}

func (m *manager) ready() int {
	response, err := http.Get("http://" + m.health + "/readyz")
	if err != nil {
		return 0
	}
	defer func() { _ = response.Body.Close() }()
	return response.StatusCode
}

// ask for the metrics with a token, or none.
func (m *manager) ask(ctx context.Context, token string) (int, string) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+m.metrics+"/metrics", nil)
	Expect(err).NotTo(HaveOccurred())
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // signed by itself
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(body)
}

func freeAddress() string {
	GinkgoHelper()
	all, err := freeport.Addresses(kube.Loopback(), 1)
	Expect(err).NotTo(HaveOccurred())
	return all[0]
}

// leader is the holder of the Lease.
func leader(ctx context.Context) func(g Gomega) string {
	return func(g Gomega) string {
		lease := &coordinationv1.Lease{}
		g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: system, Name: "manager.kvasir.dev"}, lease)).To(Succeed())
		if lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
}

// reason of a condition of a policy at its first target.
func reason(ctx context.Context, ns, policy, condition string) func(g Gomega) string {
	return func(g Gomega) string {
		p := &v1alpha1.RoutingPolicy{}
		g.Expect(admin.Get(ctx, client.ObjectKey{Namespace: ns, Name: policy}, p)).To(Succeed())
		if len(p.Status.Ancestors) == 0 {
			return ""
		}
		c := meta.FindStatusCondition(p.Status.Ancestors[0].Conditions, condition)
		if c == nil {
			return ""
		}
		return c.Reason
	}
}

func smallPool(ns, name string) *v1alpha1.InferencePool {
	return &v1alpha1.InferencePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: v1alpha1.InferencePoolSpec{
			Model:    v1alpha1.Model{Name: "model"},
			Selector: v1alpha1.PodSelector{MatchLabels: map[string]v1alpha1.LabelValue{"app": v1alpha1.LabelValue(name)}},
		},
	}
}

func smallPolicy(ns, name, pool string) *v1alpha1.RoutingPolicy {
	return &v1alpha1.RoutingPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       v1alpha1.RoutingPolicySpec{TargetRefs: []v1alpha1.PolicyTarget{{Name: pool}}},
	}
}

var _ = Describe("The operator", func() {
	It("has one replica that leads, and another that takes over at once", func(ctx SpecContext) {
		ns := namespace(ctx)
		first := startManager()
		Eventually(first.ready).Should(Equal(http.StatusOK))
		Eventually(leader(ctx)).ShouldNot(BeEmpty())
		one := leader(ctx)(NewWithT(GinkgoT()))

		By("standing by, ready and with filled caches")
		second := startManager()
		Eventually(second.ready).Should(Equal(http.StatusOK))
		Consistently(leader(ctx)).WithTimeout(time.Second).Should(Equal(one))

		By("acting on what is there")
		Expect(admin.Create(ctx, smallPool(ns, "m"))).To(Succeed())
		Expect(admin.Create(ctx, smallPolicy(ns, "p", "m"))).To(Succeed())
		Eventually(reason(ctx, ns, "p", v1alpha1.ConditionAccepted)).Should(Equal("Accepted"))

		By("leaving the Lease to the other when it ends")
		first.stop()
		Eventually(leader(ctx)).Should(And(Not(BeEmpty()), Not(Equal(one))))
		Expect(admin.Create(ctx, smallPolicy(ns, "q", "m"))).To(Succeed())
		Eventually(reason(ctx, ns, "q", v1alpha1.ConditionAccepted)).Should(Equal("Conflicted"))
		second.stop()
	})

	It("shows its metrics to users that are allowed to see them", func(ctx SpecContext) {
		m := startManager("--leader-election=false")
		Eventually(m.ready).Should(Equal(http.StatusOK))
		reader := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace(ctx), Name: "reader"}}
		Expect(admin.Create(ctx, reader)).To(Succeed())
		request := &authenticationv1.TokenRequest{}
		Expect(admin.SubResource("token").Create(ctx, reader, request)).To(Succeed())

		status := func(token string) func() int {
			return func() int { code, _ := m.ask(ctx, token); return code }
		}
		Eventually(status("")).Should(Equal(http.StatusUnauthorized), "nobody")
		Expect(status(request.Status.Token)()).To(Equal(http.StatusForbidden), "somebody")

		Expect(admin.Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: reader.Namespace},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "kvasir-metrics-reader"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: reader.Namespace, Name: reader.Name}},
		})).To(Succeed())
		Eventually(func() string {
			status, body := m.ask(ctx, request.Status.Token)
			return fmt.Sprint(status, body)
		}).Should(And(HavePrefix("200"), ContainSubstring("controller_runtime_reconcile_total")))
		m.stop()
	})
})

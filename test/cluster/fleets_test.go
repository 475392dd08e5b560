package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/internal/certs"
)

// models is the namespace of testdata/fleet.yaml.
const models = "models"

// fleets: several models at one address, with pickers that they share.
func fleets() {
	Context("with four models at one address", Ordered, func() {
		var f *world
		BeforeAll(func(ctx SpecContext) {
			w.kubectl(ctx, "apply", "-f", "testdata/fleet.yaml")
			DeferCleanup(func(ctx SpecContext) {
				f.empty(ctx, models)
				w.kubectl(ctx, "delete", "namespace", models, "--ignore-not-found", "--timeout=3m")
			})
			f = w.in(models)
			f.servesAll(ctx)
		})

		It("routes by model, keeps sessions on their side of a canary, and gives tenants the models that they are allowed", func(ctx SpecContext) {
			for _, model := range []string{"stable", "next", "small"} {
				Expect(f.request(ctx, model, nil)).To(HaveField("Pool", model))
			}
			sides := map[string]int{}
			for session := range 30 {
				first := ""
				for turn := range 3 {
					a := f.request(ctx, "chat", map[string]string{"X-Session-Id": fmt.Sprint("s", session)})
					Expect(a.Status).To(Equal(http.StatusOK), a.Body)
					Expect(a.Route).To(HavePrefix(models+"/chat rule=0"), "%+v", a)
					if turn == 0 {
						first = a.Pool
						sides[a.Pool]++
					}
					Expect(a.Pool).To(Equal(first), "turn %d of session %d has changed its side", turn, session)
				}
			}
			Expect(sides).To(HaveKey("stable"))
			Expect(sides).To(HaveKey("next"))
			Expect(sides).To(HaveLen(2))
			narrow := map[string]string{"X-Team": "narrow"}
			Expect(f.request(ctx, "small", narrow)).To(HaveField("Status", http.StatusOK))
			Expect(f.request(ctx, "chat", narrow)).To(HaveField("Status", http.StatusForbidden))
			Expect(f.request(ctx, "gone", nil)).To(HaveField("Status", http.StatusNotFound))
			explained := f.did(ctx, "explain", "stable", "-f", "testdata/question.json")
			Expect(explained).To(ContainSubstring("models/chat"))
		})

		It("loses nothing when its pickers are rolled out, and when one of them is deleted", func(ctx SpecContext) {
			Expect(f.underFleetLoad(ctx, "chat", func() {
				w.kubectl(ctx, "rollout", "restart", "deployment/default-fleet", "-n", models)
				w.kubectl(ctx, "rollout", "status", "deployment/default-fleet", "-n", models, "--timeout=4m")
				one := f.ready(ctx, pickers)[0].Name
				w.kubectl(ctx, "delete", "pod", one, "-n", models, "--timeout=3m")
				f.servesAll(ctx)
			})).To(BeEmpty())
		})

		It("loses nothing when one of its pools is scaled and rolled out", func(ctx SpecContext) {
			Expect(f.underFleetLoad(ctx, "chat", func() {
				w.kubectl(ctx, "scale", "kvpool/stable", "--replicas=4", "-n", models)
				f.hasReady(ctx, "stable", 4)
				w.kubectl(ctx, "scale", "kvpool/stable", "--replicas=2", "-n", models)
				f.hasReady(ctx, "stable", 2)
				w.kubectl(ctx, "patch", "kvpool/next", "-n", models, "--type=merge",
					"-p", `{"spec": {"template": {"metadata": {"annotations": {"example.com/edition": "2"}}}}}`)
				f.did(ctx, "rollout", "status", "next", "--timeout=4m")
				f.hasReady(ctx, "next", 1)
			})).To(BeEmpty())
		})

		It("falls back when the pools of a route are gone, and returns", func(ctx SpecContext) {
			Expect(f.underFleetLoad(ctx, "chat", func() {
				for _, pool := range []string{"stable", "next"} {
					w.kubectl(ctx, "scale", "kvpool/"+pool, "--replicas=0", "-n", models)
				}
				Eventually(func() answered { return f.request(ctx, "chat", nil) }).Should(And(HaveField("Pool", "small"),
					HaveField("Route", ContainSubstring("fallback 1 of 1"))))
				w.kubectl(ctx, "scale", "kvpool/stable", "--replicas=2", "-n", models)
				w.kubectl(ctx, "scale", "kvpool/next", "--replicas=1", "-n", models)
				f.hasReady(ctx, "stable", 2)
				f.hasReady(ctx, "next", 1)
				Eventually(func() string { return f.request(ctx, "chat", nil).Pool }).Should(BeElementOf("stable", "next"))
			})).To(BeEmpty())
		})

		It("falls back when all engines of a pool are killed, at the requests that they have begun to answer", func(ctx SpecContext) {
			failures := f.underFleetLoad(ctx, "chat", func() {
				pods := f.engines(ctx, "stable")
				Expect(pods).To(HaveLen(2))
				sessions := 0
				ask := func() answered { // each session has a side of its own
					sessions++
					return f.request(ctx, "chat", map[string]string{"X-Session-Id": fmt.Sprint("k", sessions)})
				}
				// The kubelet starts an engine again at once, and after the second kill only some seconds later.
				Eventually(func() answered {
					for i := range pods {
						for _, pid := range f.processes(&pods[i], "--served-model-name=") {
							_ = syscall.Kill(pid, syscall.SIGKILL) // it can have ended meanwhile
						}
					}
					return ask()
				}).WithPolling(100 * time.Millisecond).Should(And(HaveField("Pool", "small"), HaveField("Route", ContainSubstring("fallback 1 of 1, down"))))
				f.hasReady(ctx, "stable", 2)
				Eventually(func() string { return ask().Pool }).Should(Equal("stable"))
			})
			Expect(len(failures)).To(BeNumerically("<=", clients))
			Expect(slices.DeleteFunc(failures, func(f string) bool { return strings.Contains(f, begun) })).To(BeEmpty(), "they could be sent to another pool")
		})

		It("wakes a model that sleeps by its first request, which is answered", func(ctx SpecContext) {
			Expect(f.engines(ctx, "cold")).To(BeEmpty())
			Expect(f.request(ctx, "cold", nil)).To(And(HaveField("Status", http.StatusOK), HaveField("Pool", "cold")))
		})

		It("serves clients over TLS, with HTTP/2, by a certificate of a Secret", func(ctx SpecContext) {
			trusted := f.certificate(ctx, "fleet-tls")
			w.kubectl(ctx, "patch", "kvfleet/default", "-n", models, "--type=merge", "-p", `{"spec": {"proxyTLS": {"secretRef": {"name": "fleet-tls"}}}}`)
			DeferCleanup(func(ctx SpecContext) {
				w.kubectl(ctx, "patch", "kvfleet/default", "-n", models, "--type=merge", "-p", `{"spec": {"proxyTLS": null}}`)
				w.kubectl(ctx, "rollout", "status", "deployment/default-fleet", "-n", models, "--timeout=4m")
				Eventually(func() error { // the Service has its port again
					_, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", f.fleetService(ctx)+":80")
					return err
				}).Should(Succeed())
			})
			Eventually(func() string {
				return w.kubectl(ctx, "get", "kvfleet/default", "-n", models, "-o", "jsonpath={.status.address}")
			}).Should(Equal("https://default-fleet.models.svc"))
			w.kubectl(ctx, "rollout", "status", "deployment/default-fleet", "-n", models, "--timeout=4m")
			transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: trusted},
				DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, network, f.fleetService(ctx)+":443")
				}}
			defer transport.CloseIdleConnections()
			secure := &http.Client{Transport: transport, Timeout: time.Minute}
			Eventually(func(g Gomega) {
				answer, err := secure.Post("https://default-fleet.models.svc/v1/completions", "application/json",
					strings.NewReader(`{"model": "chat", "prompt": "Once upon a time", "max_tokens": 3}`))
				g.Expect(err).NotTo(HaveOccurred())
				defer answer.Body.Close()
				g.Expect(answer.StatusCode).To(Equal(http.StatusOK))
				g.Expect(answer.ProtoMajor).To(Equal(2))
			}).Should(Succeed())
		})

		It("moves a pool to pickers of its own and back", func(ctx SpecContext) {
			Expect(f.underFleetLoad(ctx, "chat", func() {
				w.kubectl(ctx, "patch", "kvpool/small", "-n", models, "--type=merge", "-p",
					`{"spec": {"picker": {"mode": "Managed", "replicas": 1, "indexMemory": "64Mi", "resources": {"requests": {"cpu": "20m", "memory": "128Mi"}}}}}`)
				Eventually(func() string {
					out, _ := w.program(ctx, filepath.Join("kube", "kubectl"), "get", "deployment/small-picker", "-n", models, "-o", "jsonpath={.status.readyReplicas}")
					return out
				}).Should(Equal("1"))
				w.kubectl(ctx, "patch", "kvpool/small", "-n", models, "--type=merge", "-p", `{"spec": {"picker": {"mode": "Fleet"}}}`)
				Eventually(func() string {
					out, _ := w.program(ctx, filepath.Join("kube", "kubectl"), "get", "deployment/small-picker", "-n", models, "--ignore-not-found", "-o", "name")
					return out
				}).Should(BeEmpty())
				Expect(f.request(ctx, "small", nil)).To(HaveField("Pool", "small"))
			})).To(BeEmpty())
		})
	})
}

// certificate makes one for the fleet's Service, puts it into a Secret, and returns what trusts it alone.
func (w *world) certificate(ctx context.Context, secret string) *x509.CertPool {
	GinkgoHelper()
	made, err := certs.SelfSigned([]string{"default-fleet." + w.namespace + ".svc"}, time.Now())
	Expect(err).NotTo(HaveOccurred())
	key, err := x509.MarshalPKCS8PrivateKey(made.PrivateKey)
	Expect(err).NotTo(HaveOccurred())
	dir := GinkgoT().TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	Expect(os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: made.Certificate[0]}), 0o600)).To(Succeed())
	Expect(os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600)).To(Succeed())
	w.kubectl(ctx, "create", "secret", "tls", secret, "--cert="+certFile, "--key="+keyFile, "-n", w.namespace)
	pool := x509.NewCertPool()
	pool.AddCert(made.Leaf)
	return pool
}

// answered is what a client sees of an answer.
type answered struct {
	Status            int
	Pool, Route, Body string
}

// request asks for a model at the address of the fleet.
func (w *world) request(ctx context.Context, model string, header map[string]string) (a answered) {
	GinkgoHelper()
	body, err := json.Marshal(map[string]any{"model": model, "prompt": secretText, "max_tokens": 3})
	Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+w.fleetService(ctx)+"/v1/completions", strings.NewReader(string(body)))
	Expect(err).NotTo(HaveOccurred())
	r.Header.Set("Content-Type", "application/json")
	for name, value := range header {
		r.Header.Set(name, value)
	}
	answer, err := newLoad("").http.Do(r)
	Expect(err).NotTo(HaveOccurred())
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	Expect(err).NotTo(HaveOccurred())
	a = answered{Status: answer.StatusCode, Route: answer.Header.Get("X-Kvasir-Route"), Body: string(text)}
	// The pods of a pool have its name, and more after a hyphen, which the names of these pools do not have.
	a.Pool, _, _ = strings.Cut(answer.Header.Get("X-Kvasir-Endpoint"), "-")
	return a
}

func (w *world) fleetService(ctx context.Context) string {
	GinkgoHelper()
	var s corev1.Service
	Expect(w.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: "default-fleet"}, &s)).To(Succeed())
	return s.Spec.ClusterIP
}

// underFleetLoad asks the fleet for a model while something is done.
func (w *world) underFleetLoad(ctx context.Context, model string, do func()) []string {
	GinkgoHelper()
	l := startLoad(ctx, "http://"+w.fleetService(ctx), model)
	defer l.stop()
	pause(ctx, 2*time.Second)
	do()
	pause(ctx, 5*time.Second)
	return l.end()
}

// servesAll waits until the fleet's pickers are ready, know the caches of all pods, and serve all pools.
func (w *world) servesAll(ctx context.Context) {
	GinkgoHelper()
	w.kubectl(ctx, "wait", "-n", w.namespace, "kvfleet/default", "--for=condition=Available", "--timeout=4m")
	for pool, n := range map[string]int{"stable": 2, "next": 1, "small": 1} {
		w.hasReady(ctx, pool, n)
	}
	Eventually(func() int { return len(w.ready(ctx, pickers)) }).Should(Equal(2))
}

// hasReady waits until a pool has n pods that all serve, and whose caches the pickers know.
func (w *world) hasReady(ctx context.Context, pool string, n int) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		pods := w.engines(ctx, pool)
		g.Expect(pods).To(HaveLen(n))
		for i := range pods {
			g.Expect(serves(&pods[i])).To(BeTrue(), pods[i].Name)
		}
		out, err := w.program(ctx, filepath.Join("kube", "kubectl"), "get", "kvpool/"+pool, "-n", w.namespace, "-o", "jsonpath={.status.endpoints.synced}")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(Equal(fmt.Sprint(n)))
	}).Should(Succeed())
}

// engines are the pods of a pool.
func (w *world) engines(ctx context.Context, pool string) []corev1.Pod {
	GinkgoHelper()
	var list corev1.PodList
	Expect(w.List(ctx, &list, client.InNamespace(w.namespace), client.MatchingLabels{"kvasir.dev/pool": pool})).To(Succeed())
	return list.Items
}

package lifecycle

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/status"
	"github.com/kvasir-dev/kvasir/test/certstest"
)

// securedPool is a pool whose clients speak TLS, and whose tenants are named by their certificates.
const securedPool = `
apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: m}
spec:
  model: {name: m}
  replicas: 1
  picker:
    replicas: 1
    indexMemory: 64Mi
    proxyTLS: {secretRef: {name: chat-tls}, clientCASecretRef: {name: clients, key: ca.crt}, clientCertificates: Optional}
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
metadata: {name: tenants}
spec:
  targetRefs: [{name: m}]
  admission:
    tenants: {identification: ClientCertificate, secretRefs: [{name: tenants}], classes: [{name: default}]}
---
apiVersion: v1
kind: Secret
metadata: {name: tenants}
stringData: {acme: '{"certificates": ["DNS:acme.example"]}'}
`

// TestClientsSpeakTLSWithThePool: without the Secret of their certificate, pickers become ready, refuse clients, and a condition names it;
// with it, they serve clients over TLS, and know tenants by their certificates.
func TestClientsSpeakTLSWithThePool(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	ca, clients := certstest.New(t), certstest.New(t)
	w.apply(securedPool)
	accepted := func(is metav1.ConditionStatus, message string) func(*v1alpha1.InferencePool) bool {
		return func(p *v1alpha1.InferencePool) bool {
			c := status.Accepted.In(p.Status.Conditions)
			return c != nil && c.Status == is && strings.Contains(c.Message, message)
		}
	}
	w.until("without its Secret", accepted(metav1.ConditionFalse, "Secret chat-tls of picker.proxyTLS.secretRef is not there"))
	w.eventually("a picker is ready", func() bool { return len(w.proxies()) == 1 })
	if _, err := w.secureGet(ca); err == nil {
		t.Error("a picker without a certificate serves a client")
	}
	if answer := w.plainGet(); answer != http.StatusBadRequest {
		t.Errorf("a client without TLS gets status %d", answer)
	}

	cert, key := certstest.PEM(t, ca.Server())
	w.must(w.admin.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "chat-tls"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key}}))
	w.must(w.admin.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "clients"},
		Data: map[string][]byte{"ca.crt": clients.PEM()}}))
	w.until("with its Secrets", accepted(metav1.ConditionTrue, ""))
	for _, p := range w.pickerPods() { // the kubelet of this test mounts only when a pod starts
		w.must(w.admin.Delete(t.Context(), p))
	}
	w.eventually("a client is served", func() bool {
		code, err := w.secureGet(ca, *clients.Issue(&x509.Certificate{DNSNames: []string{"acme.example"}}))
		return err == nil && code == http.StatusOK
	})
	for name, own := range map[string][]tls.Certificate{
		"without a certificate":       nil,
		"with one that no tenant has": {*clients.Issue(&x509.Certificate{DNSNames: []string{"other.example"}})},
		"with one without a name":     {*clients.Issue(&x509.Certificate{})},
	} {
		if code, err := w.secureGet(ca, own...); err != nil || code != http.StatusUnauthorized {
			t.Errorf("a client %s gets status %d, %v", name, code, err)
		}
	}
	if _, err := w.secureGet(ca, *ca.Issue(&x509.Certificate{DNSNames: []string{"acme.example"}})); err == nil {
		t.Error("a client is served with a certificate of another authority")
	}
}

// secureGet lists the models over TLS.
func (w *world) secureGet(ca *certstest.CA, own ...tls.Certificate) (code int, err error) {
	w.Helper()
	all := w.proxies()
	if len(all) == 0 {
		return 0, fmt.Errorf("no picker is ready")
	}
	config := &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"}
	if len(own) > 0 { // shown even to a server that names other authorities
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own[0], nil }
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport, Timeout: patience}).Get("https://" + all[0] + "/v1/models")
	if err != nil {
		return 0, err
	}
	_ = answer.Body.Close()
	return answer.StatusCode, nil
}

// plainGet does so without TLS; 0 without an answer.
func (w *world) plainGet() (code int) {
	w.Helper()
	c, err := net.Dial("tcp", w.proxies()[0])
	w.must(err)
	defer c.Close()
	w.must(c.SetDeadline(time.Now().Add(patience)))
	_, err = fmt.Fprint(c, "GET /v1/models HTTP/1.0\r\n\r\n")
	w.must(err)
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}

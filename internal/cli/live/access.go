package live

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/cli/fleet"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// DefaultAccount is the service account in a pool's namespace, or in the operator's, whose tokens are shown to its pickers.
const DefaultAccount = "kvasir-viewer"

// Access reaches the pickers of pools in a cluster.
type Access struct {
	Client client.Client
	Config *rest.Config
	Dial   Dial
	// Account is the service account whose tokens authenticate at pickers. It is in the pool's namespace, or in the operator's.
	Account string

	mu     sync.Mutex // guards tokens
	tokens map[string]token
}

// token of a service account, and until when it is shown.
type token struct {
	text  string
	until time.Time
}

// Pods are a pool's pickers, by name; those that are ready if any is.
func (a *Access) Pods(ctx context.Context, pool *v1alpha1.InferencePool) ([]corev1.Pod, error) {
	name := resources.PickerName(pool.Name)
	if e := pool.Spec.Picker.External; e.ServiceName != "" {
		name = e.ServiceName
	}
	service := &corev1.Service{}
	if err := a.Client.Get(ctx, types.NamespacedName{Namespace: pool.Namespace, Name: name}, service); err != nil {
		return nil, fmt.Errorf("looking for the pickers of pool %s: %w", pool.Name, err)
	}
	if len(service.Spec.Selector) == 0 {
		return nil, fmt.Errorf("the Service %s selects no pods: name a picker by --picker URL", name)
	}
	var list corev1.PodList
	if err := a.Client.List(ctx, &list, client.InNamespace(pool.Namespace), client.MatchingLabels(service.Spec.Selector)); err != nil {
		return nil, fmt.Errorf("listing the pickers of pool %s: %w", pool.Name, err)
	}
	pods := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil })
	if ready := slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return !config.PodReady(&p) }); len(ready) > 0 {
		pods = ready
	}
	slices.SortFunc(pods, func(x, y corev1.Pod) int { return strings.Compare(x.Name, y.Name) })
	return pods, nil
}

// ErrNoPicker means that no picker of a pool can be queried.
var ErrNoPicker = errors.New("no picker of the pool runs")

// Pickers connects to the pool's pickers. Faults of single pickers are returned by the queries to them.
func (a *Access) Pickers(ctx context.Context, pool *v1alpha1.InferencePool) ([]*Picker, error) {
	pods, err := a.Pods(ctx, pool)
	if err != nil {
		return nil, err
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("pool %s: %w", pool.Name, ErrNoPicker)
	}
	roots, err := a.roots(ctx, pool)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: resources.Host(resources.PickerName(pool.Name),
		pool.Namespace)}
	var all []*Picker
	for i := range pods {
		all = append(all, a.picker(&pods[i], config))
	}
	return all, nil
}

// roots are the CAs of the pool's pickers; nil for those of the machine.
func (a *Access) roots(ctx context.Context, pool *v1alpha1.InferencePool) (*x509.CertPool, error) {
	m := &corev1.ConfigMap{}
	err := a.Client.Get(ctx, types.NamespacedName{Namespace: pool.Namespace, Name: resources.CAName(pool.Name)}, m)
	if apierrors.IsNotFound(err) {
		return nil, nil // nil is a pool of certificates
	}
	if err != nil {
		return nil, fmt.Errorf("reading the CA of the pickers: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(m.Data["ca.crt"])) {
		return nil, fmt.Errorf("the ConfigMap %s has no certificate in ca.crt", m.Name)
	}
	return roots, nil
}

// picker of a pod. It uses TLS and sends a token, unless the picker uses no TLS, which then requires no token either.
func (a *Access) picker(pod *corev1.Pod, config *tls.Config) *Picker {
	name := client.ObjectKeyFromObject(pod)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return a.Dial(ctx, name, resources.MetricsPort)
	}
	door := &door{dial: dial, config: config}
	p := &Picker{
		Name: pod.Name, base: url.URL{Scheme: "http", Host: pod.Name},
		client: &http.Client{Transport: &http.Transport{DialContext: door.open, ResponseHeaderTimeout: timeout}},
	}
	p.door = door
	p.token = func(ctx context.Context) (string, error) {
		if plain, err := door.plain(ctx); err != nil || plain {
			return "", err
		}
		return a.token(ctx, pod.Namespace)
	}
	return p
}

// door detects whether a picker uses TLS, and then connects in the same way.
type door struct {
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	config *tls.Config

	mu      sync.Mutex // guards what is below
	known   bool
	inClear bool
	failure error
	leaf    *x509.Certificate
}

func (d *door) open(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	known, inClear := d.known, d.inClear
	d.mu.Unlock()
	if known && inClear {
		return conn, nil
	}
	secure := tls.Client(conn, d.config)
	err = secure.HandshakeContext(ctx)
	d.look(secure, err)
	var record tls.RecordHeaderError
	switch {
	case err == nil:
		d.learn(false)
		return secure, nil
	case errors.As(err, &record) && !known:
		d.learn(true)
		_ = conn.Close() // it has taken our hello for a request
		return d.dial(ctx, network, address)
	}
	return nil, errors.Join(err, conn.Close())
}

// look remembers the picker's certificate, or why it was rejected.
func (d *door) look(conn *tls.Conn, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failure = err
	if chain := conn.ConnectionState().PeerCertificates; len(chain) > 0 {
		d.leaf = chain[0]
	}
}

// errUnreached means that nothing is known of a picker's certificate.
var errUnreached = errors.New("the picker could not be reached")

// Certificate is the one that the picker has shown last; nil if it uses no TLS. The error is why it was rejected, or
// reports that no connection has shown yet whether the picker uses TLS.
func (p *Picker) Certificate() (*x509.Certificate, error) {
	if p.door == nil {
		return nil, nil // there is none
	}
	p.door.mu.Lock()
	defer p.door.mu.Unlock()
	switch {
	case p.door.inClear:
		return nil, nil // there is none
	case p.door.leaf == nil && p.door.failure == nil:
		return nil, errUnreached
	}
	return p.door.leaf, p.door.failure
}

func (d *door) learn(inClear bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known, d.inClear = true, inClear
}

// plain reports whether the picker uses no TLS.
func (d *door) plain(ctx context.Context) (bool, error) {
	d.mu.Lock()
	known, inClear := d.known, d.inClear
	d.mu.Unlock()
	if known {
		return inClear, nil
	}
	conn, err := d.open(ctx, "tcp", "")
	if err != nil {
		return false, err
	}
	_ = conn.Close() // it was only there to detect TLS
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.inClear, nil
}

// tokenLife is the lifetime of requested tokens; a token is not used in the last tokenSpare of it.
const (
	tokenLife  = 10 * time.Minute
	tokenSpare = time.Minute
)

// token is the user's own if it is a service account's, else a new one of the account in the pool's namespace, or in the
// operator's.
func (a *Access) token(ctx context.Context, namespace string) (string, error) {
	if own := ownToken(a.Config); own != "" {
		return own, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if t, ok := a.tokens[namespace]; ok && time.Now().Before(t.until) {
		return t.text, nil
	}
	text, err := a.newToken(ctx, namespace)
	if apierrors.IsNotFound(err) {
		// The operator's account is installed with it; a user without the right to find it or to create its tokens needs
		// one for the pool's namespace.
		operators, _ := fleet.Operators(ctx, a.Client)
		for i := range operators {
			if other, failed := a.newToken(ctx, operators[i].Namespace); failed == nil {
				text, err = other, nil
				break
			}
		}
	}
	switch {
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("no service account %s in namespace %s to create a token for pickers. %s", a.Account, namespace,
			Cure(namespace, a.Account))
	case apierrors.IsForbidden(err):
		return "", fmt.Errorf("creating a token of service account %s for pickers is forbidden: %w", a.Account, err)
	case err != nil:
		return "", fmt.Errorf("asking for a token of the service account %s: %w", a.Account, err)
	}
	if a.tokens == nil {
		a.tokens = map[string]token{}
	}
	a.tokens[namespace] = token{text, time.Now().Add(tokenLife - tokenSpare)}
	return text, nil
}

// newToken makes one of the account in a namespace.
func (a *Access) newToken(ctx context.Context, namespace string) (string, error) {
	spec := authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(tokenLife / time.Second))}
	request := &authenticationv1.TokenRequest{Spec: spec}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: a.Account}}
	err := a.Client.SubResource("token").Create(ctx, account, request)
	return request.Status.Token, err
}

// Cure is how to make an account that pickers answer.
func Cure(namespace, account string) string {
	return fmt.Sprintf(`Make one with
  kubectl -n %[1]s create serviceaccount %[2]s
  kubectl -n %[1]s create role %[2]s --verb=get --resource=inferencepools.kvasir.dev/metrics
  kubectl -n %[1]s create rolebinding %[2]s --role=%[2]s --serviceaccount=%[1]s:%[2]s
or name another by --service-account`, namespace, account)
}

// ownToken is the token of a service account with which we reach the API server ourselves.
func ownToken(config *rest.Config) string {
	text := config.BearerToken
	if text == "" && config.BearerTokenFile != "" {
		if raw, err := os.ReadFile(config.BearerTokenFile); err == nil {
			text = strings.TrimSpace(string(raw))
		}
	}
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return ""
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Subject string `json:"sub"`
	}
	if err != nil || json.Unmarshal(raw, &claims) != nil || !strings.HasPrefix(claims.Subject, "system:serviceaccount:") {
		return ""
	}
	return text
}

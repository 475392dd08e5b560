package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/rpc"
)

const (
	// grantLife is how long an answer of the API server counts, refusals shorter.
	grantLife, refusalLife = time.Minute, 10 * time.Second
	// maxGrants bounds the accounts that are remembered.
	maxGrants = 1024
	// reviewTimeout bounds a question to the API server.
	reviewTimeout = 5 * time.Second
)

// errNobody means that there are no keys to check tokens with.
var errNobody = errors.New("no token is known here")

// guard shows metrics to service accounts that are allowed to get inferencepools/metrics of the pool, or of all pools of a fleet's
// namespace. Tokens are checked here,
// rights by the API server; while it is away what it has granted before stays so. The zero guard rejects every request.
type guard struct {
	tokens rpc.Tokens
	review func(ctx context.Context, account string) (bool, error)
	now    func() time.Time
	log    logr.Logger

	mu     sync.Mutex // guards grants
	grants map[string]grant
}

type grant struct {
	allowed bool
	until   time.Time
}

// newGuard makes what guards the metrics; nil where they are open.
func newGuard(o *options, config *rest.Config, reporters rpc.Authenticator, log logr.Logger) (*guard, error) {
	if config == nil || o.metricsOpen {
		return nil, nil // every request is allowed
	}
	tokens, ok := reporters.(rpc.Tokens)
	if !ok || o.reports.keysToken == "" {
		logging.Warn(log, "Metrics endpoint closed: neither --report-keys with --report-keys-token nor --metrics-open configured")
		return &guard{}, nil
	}
	own, err := os.ReadFile(o.reports.keysToken)
	if err != nil {
		return nil, fmt.Errorf("reading the picker's own token: %w", err)
	}
	// Tokens for the API server are accepted here, so that clients need no separate token.
	if tokens.Audience, err = rpc.AudienceOf(string(own)); err != nil {
		return nil, err
	}
	client, err := authorizationclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the API server: %w", err)
	}
	return &guard{tokens: tokens, review: reviewer(client, o.source.measured()), now: time.Now, log: log, grants: map[string]grant{}}, nil
}

// reviewer asks the API server whether an account is allowed to see the metrics of a pool; without a name, of all of the namespace.
func reviewer(
	client authorizationclient.LocalSubjectAccessReviewsGetter, pool types.NamespacedName,
) func(context.Context, string) (bool, error) {
	return func(ctx context.Context, account string) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
		defer cancel()
		namespace, _, _ := strings.Cut(strings.TrimPrefix(account, accountPrefix), ":")
		r, err := client.LocalSubjectAccessReviews(pool.Namespace).Create(ctx, &authorizationv1.LocalSubjectAccessReview{
			ObjectMeta: metav1.ObjectMeta{Namespace: pool.Namespace},
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User:   account,
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: pool.Namespace, Verb: "get", Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version,
					Resource: "inferencepools", Subresource: "metrics", Name: pool.Name,
				},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return false, err
		}
		return r.Status.Allowed, nil
	}
}

// accountPrefix is how the names of service accounts begin.
const accountPrefix = "system:serviceaccount:"

// protect passes authorized requests to h; 401 for unknown clients, 403 for clients without the right, 503 while the right
// cannot be checked. Without a guard all requests are authorized that are for an own name, or one of names.
func (g *guard) protect(h http.Handler, names []string) http.Handler {
	if g == nil {
		return withoutRebinding(h, names)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "bearer") || token == "" {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a service account's token is needed", http.StatusUnauthorized)
			return
		}
		account, err := "", errNobody
		if g.review != nil {
			_, account, err = g.tokens.Check(r.Context(), token)
		}
		if err != nil || !strings.HasPrefix(account, accountPrefix) {
			w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
			http.Error(w, "the token is not valid here", http.StatusUnauthorized)
			return
		}
		allowed, err := g.allows(r.Context(), account)
		switch {
		case err != nil:
			g.log.V(1).Info("Checking access to metrics failed", "reason", err.Error())
			http.Error(w, "authorization check unavailable", http.StatusServiceUnavailable)
		case !allowed:
			http.Error(w, "the account is not allowed to get inferencepools/metrics of the pool", http.StatusForbidden)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// allows reports whether an account is allowed to see the metrics.
func (g *guard) allows(ctx context.Context, account string) (bool, error) {
	now := g.now()
	g.mu.Lock()
	known, ok := g.grants[account]
	g.mu.Unlock()
	if ok && now.Before(known.until) {
		return known.allowed, nil
	}
	allowed, err := g.review(ctx, account)
	if err != nil {
		if ok && known.allowed {
			return true, nil
		}
		return false, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.grants) >= maxGrants && !ok {
		g.forgetOne()
	}
	life := refusalLife
	if allowed {
		life = grantLife
	}
	g.grants[account] = grant{allowed, now.Add(life)}
	return allowed, nil
}

// forgetOne forgets a refusal, or else a grant, whose time ends first: so refused accounts, however many, do not make others wait for the
// API server. g.mu is held.
func (g *guard) forgetOne() {
	first := ""
	for account, one := range g.grants {
		if before, known := g.grants[first]; !known || one.allowed != before.allowed && before.allowed ||
			one.allowed == before.allowed && one.until.Before(before.until) {
			first = account
		}
	}
	delete(g.grants, first)
}

// metricsTLS is that of the metrics in a cluster, where tokens are shown: with the certificate for reporters; nil for none.
func (o *options) metricsTLS() (*tls.Config, error) {
	if !o.source.inCluster() || o.metricsOpen || o.reports.tls.Cert == "" {
		return nil, nil // nil is a configuration
	}
	source := certs.NewSource(certs.Files{Cert: o.reports.tls.Cert, Key: o.reports.tls.Key})
	if _, _, err := source.Load(); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, _, err := source.Load()
		return cert, err
	}}, nil
}

// Package oidc checks tokens that an issuer of OpenID Connect has signed, and finds the tenants that they name.
package oidc

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/hosts"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

const (
	// maxToken bounds a token in bytes. leeway is how far clocks can differ.
	maxToken, leeway = 16 << 10, 30 * time.Second
	// rememberedFor is how long a token that was checked is not checked again, and maxRemembered how many such tokens there are.
	rememberedFor, maxRemembered = time.Minute, 4096
	// refusedFor is how long a token that was refused is not checked again: each pool of a picker is asked about it, and what is refused
	// because it is not good yet can be good soon. maxRefused is how many such tokens there are.
	refusedFor, maxRefused = time.Second, 512
	// maxTried is how many keys a token is tried with, which need not name one.
	maxTried = 4
)

// algorithms of signatures: those with a public key. Neither none nor HMAC is among them, so that no key can be taken for a secret.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// Checker checks the tokens of one issuer. It is safe for concurrent use, and never waits for the issuer.
type Checker struct {
	issuer tenant.Issuer
	keys   *keys
	now    func() time.Time

	mu sync.Mutex // guards what follows
	// remembered are the tokens that were good, refused those that were not: they do not displace each other.
	remembered, refused map[[sha256.Size]byte]verdict
}

// verdict is the tenant of a token that was checked; empty for one that was refused.
type verdict struct {
	tenant string
	until  time.Time
	// fetches of keys before: keys that were removed end what they have signed.
	fetches uint64
}

// holds reports whether a verdict is still good. The zero verdict is not.
func (v *verdict) holds(now time.Time, fetches uint64) bool {
	return now.Before(v.until) && v.fetches == fetches
}

var _ tenant.TokenChecker = (*Checker)(nil)

// Tenant returns the tenant that a token names, if the issuer has signed it, and it is for us, and good now.
func (c *Checker) Tenant(token string) (name string, ok bool) {
	if token == "" || len(token) > maxToken {
		return "", false
	}
	now, sum, fetches := c.now(), sha256.Sum256([]byte(token)), c.keys.fetches.Load()
	c.mu.Lock()
	good, bad := c.remembered[sum], c.refused[sum]
	c.mu.Unlock()
	switch {
	case good.holds(now, fetches):
		return good.tenant, true
	case bad.holds(now, fetches):
		return "", false
	}
	name, expires, err := c.check(token, now)
	if err != nil {
		c.remember(c.refused, maxRefused, sum, verdict{"", now.Add(refusedFor), fetches}, now)
		return "", false
	}
	c.remember(c.remembered, maxRemembered, sum, verdict{name, earlier(expires, now.Add(rememberedFor)), fetches}, now)
	return name, true
}

// remember keeps a verdict in one of the checker's maps, which has at most so many.
func (c *Checker) remember(all map[[sha256.Size]byte]verdict, most int, sum [sha256.Size]byte, v verdict, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(all) >= most {
		maps.DeleteFunc(all, func(_ [sha256.Size]byte, one verdict) bool { return !now.Before(one.until) })
	}
	if len(all) >= most {
		clear(all)
	}
	all[sum] = v
}

// check returns the tenant of a token and when the token expires.
func (c *Checker) check(text string, now time.Time) (name string, expires time.Time, err error) {
	token, err := jwt.ParseSigned(text, algorithms)
	if err != nil {
		return "", time.Time{}, errors.New("the token cannot be read")
	}
	if len(token.Headers) != 1 {
		return "", time.Time{}, errors.New("the token must have exactly one signature")
	}
	var claims jwt.Claims
	var all map[string]any
	header := &token.Headers[0]
	signed := slices.ContainsFunc(c.keys.find(header.KeyID, now), func(key jose.JSONWebKey) bool {
		return (key.Algorithm == "" || key.Algorithm == header.Algorithm) && token.Claims(key.Key, &claims, &all) == nil
	})
	if !signed {
		return "", time.Time{}, errors.New("the token is signed by an unknown key")
	}
	if claims.Expiry == nil {
		return "", time.Time{}, errors.New("the token has no expiry")
	}
	expected := jwt.Expected{Issuer: c.issuer.URL, AnyAudience: c.issuer.Audiences, Time: now}
	if c.issuer.URL == "" || len(c.issuer.Audiences) == 0 {
		return "", time.Time{}, errors.New("no issuer or audience is configured")
	}
	if err := claims.ValidateWithLeeway(expected, leeway); err != nil {
		return "", time.Time{}, err
	}
	name, _ = all[c.issuer.Claim].(string)
	if name == "" || len(name) > tenant.MaxName {
		return "", time.Time{}, errors.New("the token names no tenant")
	}
	return name, claims.Expiry.Time().Add(leeway), nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// maxCheckers is how many issuers are known at once, unless policies have more now; others are those of policies that have changed.
const maxCheckers = 64

// Registry has the checkers of issuers, which keep their keys while policies change. It is safe for concurrent use.
type Registry struct {
	client *http.Client
	log    logr.Logger
	now    func() time.Time

	mu   sync.Mutex // guards what follows
	all  map[string]*Checker
	used []string // the keys of all, the last used one last
}

// NewRegistry asks issuers with a client of its own, which trusts the system's authorities, and connects to no metadata service.
func NewRegistry(log logr.Logger) *Registry {
	dialer := net.Dialer{Timeout: fetchTimeout, Control: hosts.Control}
	return newRegistry(&http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, DisableKeepAlives: true, ForceAttemptHTTP2: true,
	}}, log, time.Now)
}

func newRegistry(client *http.Client, log logr.Logger, now func() time.Time) *Registry {
	own := *client
	own.Timeout = fetchTimeout
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return errors.New("the issuer redirects") }
	return &Registry{client: &own, log: log, now: now, all: map[string]*Checker{}}
}

// clientOf returns the client for issuers whose certificates these authorities sign, in PEM, besides those of the system.
func (r *Registry) clientOf(authorities string) *http.Client {
	transport, ok := r.client.Transport.(*http.Transport)
	if authorities == "" || !ok {
		return r.client
	}
	own := *r.client
	transport = transport.Clone()
	if transport.TLSClientConfig == nil {
		transport.TLSClientConfig = &tls.Config{}
	}
	// A policy is applied only if they can be read.
	if parsed, err := certs.ParseAuthorities(authorities); err == nil {
		transport.TLSClientConfig.RootCAs = parsed.Pool()
	}
	own.Transport = transport
	return &own
}

// Checkers returns those of the issuers that there are now. It waits for the keys of those that are new, for fetchTimeout at most for all
// of them together, so that no token is refused because they are not there yet.
func (r *Registry) Checkers(issuers []tenant.Issuer) []tenant.TokenChecker {
	all, made := r.find(issuers)
	var pending []chan struct{}
	for _, c := range made {
		if done := c.keys.start(); done != nil {
			pending = append(pending, done)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	for _, done := range pending {
		select {
		case <-done:
		case <-ctx.Done():
			return all
		}
	}
	return all
}

// find returns the checkers of issuers, and which of them were made for it. Of others, the registry keeps those that were used last.
func (r *Registry) find(issuers []tenant.Issuer) (all []tenant.TokenChecker, made []*Checker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := map[string]bool{}
	for _, issuer := range issuers {
		text, err := json.Marshal(issuer)
		if err != nil {
			panic(err) // strings
		}
		key := string(text)
		c := r.all[key]
		if c == nil {
			at := source{client: r.clientOf(issuer.Authorities), issuer: issuer.URL, url: issuer.KeysURL}
			c = &Checker{issuer: issuer, now: r.now, remembered: map[[sha256.Size]byte]verdict{}, refused: map[[sha256.Size]byte]verdict{},
				keys: &keys{source: at, log: r.log.WithValues("issuer", issuer.URL), now: r.now}}
			r.all[key] = c
			made = append(made, c)
		}
		all, now[key] = append(all, c), true
	}
	r.used = slices.DeleteFunc(r.used, func(key string) bool { return now[key] })
	for len(r.used) > 0 && len(r.used)+len(now) > maxCheckers {
		delete(r.all, r.used[0])
		r.used = r.used[1:]
	}
	r.used = append(r.used, slices.Sorted(maps.Keys(now))...)
	return all, made
}

// Problems are those of issuers whose keys cannot be fetched, in short sentences.
func (r *Registry) Problems() (all []string) {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range r.used {
		if c := r.all[key]; c != nil {
			if why := c.keys.problem(); why != "" {
				all = append(all, "Keys of the issuer "+c.issuer.URL+" cannot be fetched: "+why)
			}
		}
	}
	return all
}

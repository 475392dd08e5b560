package oidc

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/tenant"
)

const patience = 20 * time.Second

// issuer is a provider whose answers a test chooses.
type issuer struct {
	t       *testing.T
	server  *httptest.Server
	fetches atomic.Int64

	mu   sync.Mutex // guards what follows
	keys map[string]crypto.Signer
	// answer takes the place of the key set, and document that of the configuration; nil for what belongs there.
	answer, document http.HandlerFunc
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{t: t, keys: map[string]crypto.Signer{}}
	i.server = httptest.NewTLSServer(http.HandlerFunc(i.serve))
	t.Cleanup(i.server.Close)
	i.add("first")
	return i
}

// add makes a key, on the curve P-256.
func (i *issuer) add(id string) {
	i.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys[id] = key
}

func (i *issuer) answers(f http.HandlerFunc) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.answer = f
}

func (i *issuer) set() (set jose.JSONWebKeySet) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for id, key := range i.keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: id, Use: "sig"})
	}
	return set
}

func (i *issuer) serve(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	answer, document := i.answer, i.document
	i.mu.Unlock()
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		if document != nil {
			document(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": i.server.URL, "jwks_uri": i.server.URL + "/keys"})
	case "/keys":
		i.fetches.Add(1)
		if answer != nil {
			answer(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(i.set())
	default:
		http.NotFound(w, r)
	}
}

// token signs claims with a key.
func (i *issuer) token(id string, claims map[string]any) string {
	i.t.Helper()
	i.mu.Lock()
	key := i.keys[id]
	i.mu.Unlock()
	return signed(i.t, jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: id}}, claims)
}

func signed(t *testing.T, key jose.SigningKey, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(key, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// clock is the time of a test.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// claims are those of a good token, with others in place of some; nil removes one.
func (i *issuer) claims(now time.Time, other map[string]any) map[string]any {
	all := map[string]any{"iss": i.server.URL, "aud": "kvasir", "sub": "acme", "exp": now.Add(time.Hour).Unix(), "iat": now.Unix()}
	for name, value := range other {
		if value == nil {
			delete(all, name)
		} else {
			all[name] = value
		}
	}
	return all
}

// checker checks tokens of an issuer for the audience kvasir.
func (i *issuer) checker(c *clock) (*Registry, *Checker) {
	i.t.Helper()
	r := newRegistry(i.server.Client(), logr.Discard(), c.now)
	return r, r.Checkers([]tenant.Issuer{{URL: i.server.URL, Audiences: []string{"other", "kvasir"}, Claim: "sub"}})[0].(*Checker)
}

func start() *clock { return &clock{at: time.Unix(1_800_000_000, 0)} }

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func (i *issuer) wants(c *Checker, token, want string) {
	i.t.Helper()
	if name, ok := c.Tenant(token); name != want || ok != (want != "") {
		i.t.Errorf("tenant %q, %v; want %q", name, ok, want)
	}
}

func TestTokensNameTenants(t *testing.T) {
	i, c := newIssuer(t), start()
	_, checker := i.checker(c)
	now := c.now()
	other := newIssuer(t)
	for name, tc := range map[string]struct {
		token string
		want  string
	}{
		"a good one":               {i.token("first", i.claims(now, nil)), "acme"},
		"for several":              {i.token("first", i.claims(now, map[string]any{"aud": []string{"x", "kvasir"}})), "acme"},
		"for others":               {i.token("first", i.claims(now, map[string]any{"aud": "x"})), ""},
		"for no audience":          {i.token("first", i.claims(now, map[string]any{"aud": nil})), ""},
		"of another issuer":        {i.token("first", i.claims(now, map[string]any{"iss": "https://other.example"})), ""},
		"of no issuer":             {i.token("first", i.claims(now, map[string]any{"iss": nil})), ""},
		"signed by another issuer": {other.token("first", i.claims(now, nil)), ""},
		"expired":                  {i.token("first", i.claims(now, map[string]any{"exp": now.Add(-time.Minute).Unix()})), ""},
		"just expired":             {i.token("first", i.claims(now, map[string]any{"exp": now.Add(-leeway / 2).Unix()})), "acme"},
		"without an end":           {i.token("first", i.claims(now, map[string]any{"exp": nil})), ""},
		"not good yet":             {i.token("first", i.claims(now, map[string]any{"nbf": now.Add(time.Minute).Unix()})), ""},
		"issued later":             {i.token("first", i.claims(now, map[string]any{"iat": now.Add(time.Hour).Unix()})), ""},
		"without a tenant":         {i.token("first", i.claims(now, map[string]any{"sub": nil})), ""},
		"with an empty tenant":     {i.token("first", i.claims(now, map[string]any{"sub": ""})), ""},
		"with a number":            {i.token("first", i.claims(now, map[string]any{"sub": 7})), ""},
		"with a long tenant":       {i.token("first", i.claims(now, map[string]any{"sub": strings.Repeat("x", tenant.MaxName+1)})), ""},
		"too long":                 {i.token("first", i.claims(now, map[string]any{"more": strings.Repeat("x", maxToken)})), ""},
		"none":                     {"", ""},
		"no token":                 {"a.b.c", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // the second time by memory
				got, ok := checker.Tenant(tc.token)
				if got != tc.want || ok != (tc.want != "") {
					t.Errorf("tenant %q, %v; want %q", got, ok, tc.want)
				}
			}
		})
	}
}

// TestAlgorithmsAreNotConfused: no signature, and one whose secret is the public key, in each form that it is known in.
func TestAlgorithmsAreNotConfused(t *testing.T) {
	i, c := newIssuer(t), start()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	i.keys["rsa"] = key
	i.mu.Unlock()
	_, checker := i.checker(c)
	good := signed(t, jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: key, KeyID: "rsa"}}, i.claims(c.now(), nil))
	i.wants(checker, good, "acme")
	payload := strings.Split(good, ".")[1]
	encode := base64.RawURLEncoding.EncodeToString
	for _, alg := range []string{"none", "None", "NONE", ""} {
		header := encode(fmt.Appendf(nil, `{"alg":%q,"kid":"rsa","typ":"JWT"}`, alg))
		for _, signature := range []string{"", encode([]byte("x")), strings.Split(good, ".")[2]} {
			i.wants(checker, header+"."+payload+"."+signature, "")
		}
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	jwk, err := json.Marshal(jose.JSONWebKey{Key: key.Public(), KeyID: "rsa", Use: "sig"})
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range [][]byte{der, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), jwk, key.N.Bytes()} {
		for len(secret) < 64 {
			secret = append(secret, 0)
		}
		for _, alg := range []jose.SignatureAlgorithm{jose.HS256, jose.HS384, jose.HS512} {
			i.wants(checker, signed(t, jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: secret, KeyID: "rsa"}}, i.claims(c.now(), nil)), "")
		}
	}
}

// TestASecretInTheKeySetIsNoKey: a symmetric key that an issuer publishes signs no token.
func TestASecretInTheKeySetIsNoKey(t *testing.T) {
	i, c := newIssuer(t), start()
	secret := make([]byte, 64)
	i.answers(func(w http.ResponseWriter, _ *http.Request) {
		set := i.set()
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: secret, KeyID: "shared", Use: "sig", Algorithm: "HS256"})
		_ = json.NewEncoder(w).Encode(set)
	})
	_, checker := i.checker(c)
	i.wants(checker, i.token("first", i.claims(c.now(), nil)), "acme")
	i.wants(checker, signed(t, jose.SigningKey{Algorithm: jose.HS256, Key: jose.JSONWebKey{Key: secret, KeyID: "shared"}}, i.claims(c.now(), nil)), "")
}

// TestKeysRotate: tokens of a new key are known soon after the first one was shown, and those of a removed one no more.
func TestKeysRotate(t *testing.T) {
	i, c := newIssuer(t), start()
	_, checker := i.checker(c)
	before := i.token("first", i.claims(c.now(), nil))
	i.wants(checker, before, "acme")
	i.add("second")
	after := i.token("second", i.claims(c.now(), map[string]any{"sub": "other"}))
	i.wants(checker, after, "") // an attempt was made just now
	c.pass(keysPause)
	eventually(t, "the new key is known", func() bool { _, ok := checker.Tenant(after); return ok })
	i.wants(checker, before, "acme")

	i.mu.Lock()
	delete(i.keys, "first")
	i.mu.Unlock()
	c.pass(keysAge + time.Second)
	eventually(t, "the old key is forgotten", func() bool { _, ok := checker.Tenant(before); return !ok })
	i.wants(checker, after, "other")
}

// TestUnknownKeysDoNotAskTheIssuerAgainAndAgain: one attempt in keysPause, however many tokens there are.
func TestUnknownKeysDoNotAskTheIssuerAgainAndAgain(t *testing.T) {
	i, c := newIssuer(t), start()
	_, checker := i.checker(c)
	other := newIssuer(t)
	const pauses = 5
	for n := range pauses {
		c.pass(keysPause)
		for m := range 100 {
			id := fmt.Sprint("unknown-", n, "-", m)
			other.add(id)
			i.wants(checker, other.token(id, i.claims(c.now(), nil)), "")
		}
		eventually(t, "the attempt ends", func() bool {
			checker.keys.mu.Lock()
			defer checker.keys.mu.Unlock()
			return checker.keys.fetching == nil
		})
	}
	if n := i.fetches.Load(); n > pauses+1 {
		t.Errorf("the issuer was asked %d times", n)
	}
}

// TestKeysStayWhileTheIssuerIsDown, or answers nonsense; the problem shows, and ends.
func TestKeysStayWhileTheIssuerIsDown(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"an error":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		"no JSON":    func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"no keys":    func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"keys":[]}`)) },
		"a redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) },
		"an endless set": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"keys":[` + strings.Repeat(" ", 2*maxDocument)))
		},
		"a broken answer": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"too many keys":   func(w http.ResponseWriter, _ *http.Request) { many(w, maxKeys+1) },
		"keys without use": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"keys":[{"kty":"oct","k":"AAAA"},{"kty":"x"},7]}`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			i, c := newIssuer(t), start()
			r, checker := i.checker(c)
			i.answers(answer)
			c.pass(keysAge + time.Second)
			token := i.token("first", i.claims(c.now(), nil))
			i.wants(checker, token, "acme")
			eventually(t, "the problem shows", func() bool { return len(r.Problems()) == 1 })
			c.pass(2 * time.Minute)
			i.wants(checker, token, "acme")
			i.answers(nil)
			eventually(t, "the problem ends", func() bool {
				c.pass(keysPause)
				_, _ = checker.Tenant("x." + token)
				i.wants(checker, i.token("first", i.claims(c.now(), nil)), "acme")
				return len(r.Problems()) == 0
			})
		})
	}
}

func many(w http.ResponseWriter, n int) {
	var set jose.JSONWebKeySet
	for m := range n {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			panic(err)
		}
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: fmt.Sprint(m), Use: "sig"})
	}
	_ = json.NewEncoder(w).Encode(set)
}

// TestASlowIssuerDelaysNoRequest, and one attempt is under way at a time.
func TestASlowIssuerDelaysNoRequest(t *testing.T) {
	i, c := newIssuer(t), start()
	_, checker := i.checker(c)
	hold := make(chan struct{})
	i.answers(func(http.ResponseWriter, *http.Request) { <-hold })
	before := i.fetches.Load()
	c.pass(keysAge + time.Second)
	token := i.token("first", i.claims(c.now(), nil))
	for range 50 {
		i.wants(checker, token, "acme")
		i.wants(checker, "x"+token, "")
		c.pass(time.Second)
	}
	eventually(t, "the issuer is asked", func() bool { return i.fetches.Load() > before })
	if n := i.fetches.Load() - before; n != 1 {
		t.Errorf("%d attempts are under way", n)
	}
	close(hold)
}

// TestTheFirstKeysAreWaitedFor, so that the first tokens are known; those of a second policy with the same issuer are there.
func TestTheFirstKeysAreWaitedFor(t *testing.T) {
	i, c := newIssuer(t), start()
	r, checker := i.checker(c)
	i.wants(checker, i.token("first", i.claims(c.now(), nil)), "acme")
	if again := r.Checkers([]tenant.Issuer{checker.issuer}); again[0] != checker || i.fetches.Load() != 1 {
		t.Errorf("the issuer was asked %d times", i.fetches.Load())
	}
	for n := range 2 * maxCheckers {
		_, _ = r.find([]tenant.Issuer{{URL: fmt.Sprint(n)}})
	}
	if len(r.all) > maxCheckers || len(r.used) > maxCheckers {
		t.Errorf("%d checkers are kept", len(r.all))
	}
}

// TestTheConfigurationIsTheIssuersOwn: what it says of another issuer, or of keys without TLS, is not used.
func TestTheConfigurationIsTheIssuersOwn(t *testing.T) {
	for name, document := range map[string]string{
		"another issuer": `{"issuer":"https://other.example","jwks_uri":"URL/keys"}`,
		"plain keys":     `{"issuer":"URL","jwks_uri":"http://127.0.0.1/keys"}`,
		"a file":         `{"issuer":"URL","jwks_uri":"file:///etc/passwd"}`,
		"no keys":        `{"issuer":"URL"}`,
	} {
		t.Run(name, func(t *testing.T) {
			i, c := newIssuer(t), start()
			i.document = func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte(strings.ReplaceAll(document, "URL", i.server.URL)))
			}
			r, checker := i.checker(c)
			i.wants(checker, i.token("first", i.claims(c.now(), nil)), "")
			if len(r.Problems()) != 1 || i.fetches.Load() != 0 {
				t.Errorf("problems %q; %d fetches", r.Problems(), i.fetches.Load())
			}
		})
	}
}

// TestRememberedTokensAreBounded, and end with the token.
func TestRememberedTokensAreBounded(t *testing.T) {
	i, c := newIssuer(t), start()
	_, checker := i.checker(c)
	short := i.token("first", i.claims(c.now(), map[string]any{"exp": c.now().Add(time.Second).Unix()}))
	i.wants(checker, short, "acme")
	c.pass(leeway + 2*time.Second)
	i.wants(checker, short, "")
	for n := range 3 * maxRemembered {
		checker.remember(checker.remembered, maxRemembered, [32]byte{byte(n), byte(n >> 8)}, verdict{"a", c.now().Add(time.Hour), 1}, c.now())
	}
	if n := len(checker.remembered); n > maxRemembered {
		t.Errorf("%d tokens are remembered", n)
	}
}

// TestARefusedTokenIsCheckedOnce, because a picker asks about it for each of its pools: the check of a signature makes
// many objects, and what is remembered none. One that is not good yet is known when it is.
func TestARefusedTokenIsCheckedOnce(t *testing.T) {
	i, c := newIssuer(t), start()
	_, checker := i.checker(c)
	for name, claims := range map[string]map[string]any{
		"for others": {"aud": "x"}, "expired": {"exp": c.now().Add(-time.Hour).Unix()}, "without a tenant": {"sub": nil},
		"expired since": {"exp": c.now().Add(time.Second).Unix()},
	} {
		token := i.token("first", i.claims(c.now(), claims))
		if name == "expired since" {
			i.wants(checker, token, "acme")
			c.pass(leeway + 2*time.Second)
		}
		i.wants(checker, token, "")
		if n := testing.AllocsPerRun(100, func() { _, _ = checker.Tenant(token) }); n > 5 {
			t.Errorf("%s: a token that was refused makes %v objects", name, n)
		}
	}
	forged := i.token("first", i.claims(c.now(), nil))
	forged = forged[:len(forged)-8] + "AAAAAAAA"
	i.wants(checker, forged, "")
	if n := testing.AllocsPerRun(100, func() { _, _ = checker.Tenant(forged) }); n > 5 {
		t.Errorf("a forged token that was refused makes %v objects", n)
	}
	early := i.token("first", i.claims(c.now(), map[string]any{"nbf": c.now().Add(leeway + time.Second).Unix()}))
	i.wants(checker, early, "")
	c.pass(2 * time.Second)
	i.wants(checker, early, "acme")
	for n := range 3 * maxRefused {
		i.wants(checker, fmt.Sprint("x.y.", n), "")
	}
	if n := len(checker.refused); n > maxRefused {
		t.Errorf("%d refused tokens are remembered", n)
	}
	i.wants(checker, early, "acme")
}

package rpc

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/metadata"
)

// signer makes tokens as an API server does.
type signer struct {
	t   *testing.T
	key crypto.Signer
	alg jose.SignatureAlgorithm
	id  string
}

func newSigner(t *testing.T, id string) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &signer{t, key, jose.ES256, id}
}

// sign makes a token of claims.
func (s *signer) sign(claims map[string]any) string {
	s.t.Helper()
	o := (&jose.SignerOptions{}).WithType("JWT")
	j, err := jose.NewSigner(jose.SigningKey{Algorithm: s.alg, Key: jose.JSONWebKey{Key: s.key, KeyID: s.id}}, o)
	if err != nil {
		s.t.Fatal(err)
	}
	text, err := jwt.Signed(j).Claims(claims).Serialize()
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}

func set(t *testing.T, signers ...*signer) []byte {
	t.Helper()
	var s jose.JSONWebKeySet
	for _, one := range signers {
		s.Keys = append(s.Keys, jose.JSONWebKey{Key: one.key.Public(), KeyID: one.id, Use: "sig", Algorithm: string(one.alg)})
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

var testNow = time.Unix(1_800_000_000, 0)

// goodClaims are those of a token of pod uid-1.
func goodClaims() map[string]any {
	return map[string]any{
		"iss": "https://cluster", "aud": []string{Audience}, "sub": "system:serviceaccount:llm:default",
		"exp": testNow.Add(time.Hour).Unix(), "nbf": testNow.Add(-time.Minute).Unix(), "iat": testNow.Add(-time.Minute).Unix(),
		"kubernetes.io": map[string]any{
			"namespace": "llm", "pod": map[string]any{"name": "pod-1", "uid": "uid-1"},
			"serviceaccount": map[string]any{"name": "default", "uid": "sa"},
		},
	}
}

func call(token string) context.Context {
	return metadata.NewIncomingContext(context.Background(), metadata.Pairs("authorization", "Bearer "+token))
}

func TestTokensAreChecked(t *testing.T) {
	ec := newSigner(t, "k1")
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rsaSigner := &signer{t, key, jose.RS256, "k2"}
	tokens := Tokens{
		Issuer: "https://cluster", Audience: Audience, Now: func() time.Time { return testNow },
		Keys: &Keys{Fetch: func(context.Context) ([]byte, error) { return set(t, ec, rsaSigner), nil }},
	}
	with := func(name string, value any) map[string]any {
		c := maps.Clone(goodClaims())
		if c[name] = value; value == nil {
			delete(c, name)
		}
		return c
	}
	for name, tc := range map[string]struct {
		token string
		wrong string // part of the error; empty for none
	}{
		"as the API server makes them":       {token: ec.sign(goodClaims())},
		"with an RSA key":                    {token: rsaSigner.sign(goodClaims())},
		"one audience of several":            {token: ec.sign(with("aud", []string{"x", Audience}))},
		"another audience":                   {token: ec.sign(with("aud", []string{"kubernetes"})), wrong: "aud"},
		"no audience":                        {token: ec.sign(with("aud", nil)), wrong: "aud"},
		"another issuer":                     {token: ec.sign(with("iss", "https://other")), wrong: "iss"},
		"expired":                            {token: ec.sign(with("exp", testNow.Add(-time.Minute).Unix())), wrong: "expired"},
		"no expiry":                          {token: ec.sign(with("exp", nil)), wrong: "expiry"},
		"not valid yet":                      {token: ec.sign(with("nbf", testNow.Add(time.Hour).Unix())), wrong: "not valid yet"},
		"bound to no pod":                    {token: ec.sign(with("kubernetes.io", map[string]any{"namespace": "llm"})), wrong: "bound to no pod"},
		"a key of that id, which is another": {token: newSigner(t, "k1").sign(goodClaims()), wrong: "unknown key"},
		"a key that is not known":            {token: newSigner(t, "k9").sign(goodClaims()), wrong: "unknown key"},
		"no token":                           {token: "x.y.z", wrong: "cannot be read"},
		"signed with nothing":                {token: unsigned(t, goodClaims()), wrong: "cannot be read"},
		"signed with the public key":         {token: confused(t, ec, goodClaims()), wrong: "cannot be read"},
		"empty":                              {token: "", wrong: "no token"},
		"huge":                               {token: strings.Repeat("x", maxToken+1), wrong: "no token"},
	} {
		t.Run(name, func(t *testing.T) {
			who, err := tokens.Authenticate(call(tc.token))
			switch {
			case tc.wrong == "" && err != nil:
				t.Fatal(err)
			case tc.wrong != "" && (err == nil || !strings.Contains(err.Error(), tc.wrong)):
				t.Fatalf("error %v, want one with %q", err, tc.wrong)
			case err != nil:
				return
			}
			if !who.Is("uid-1") || !who.Is("llm/pod-1") || who.Is("uid-2") || who.Is("llm/pod-2") || who.Is("") || who.Any {
				t.Errorf("the token is of %+v", who)
			}
			if !who.Expires.Equal(testNow.Add(time.Hour)) {
				t.Errorf("expires %s", who.Expires)
			}
		})
	}
	if _, err := tokens.Authenticate(context.Background()); err == nil {
		t.Error("a call without a token was taken")
	}
}

// unsigned is a token with the algorithm none.
func unsigned(t *testing.T, claims map[string]any) string {
	t.Helper()
	body := strings.Split(newSigner(t, "k1").sign(claims), ".")[1]
	return "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0." + body + "."
}

// confused is a token whose symmetric signature is made with the public key.
func confused(t *testing.T, s *signer, claims map[string]any) string {
	t.Helper()
	public, err := json.Marshal(jose.JSONWebKey{Key: s.key.Public(), KeyID: s.id})
	if err != nil {
		t.Fatal(err)
	}
	j, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: public}, (&jose.SignerOptions{}).WithHeader("kid", s.id))
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.Signed(j).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestKeysAreKeptWhileTheyCannotBeFetched(t *testing.T) {
	old, next := newSigner(t, "old"), newSigner(t, "new")
	now, fetches := testNow, 0
	text, failure := set(t, old), error(nil)
	keys := &Keys{Now: func() time.Time { return now }, Fetch: func(context.Context) ([]byte, error) {
		fetches++
		return text, failure
	}}
	known := func(id string) bool { return len(keys.find(context.Background(), id)) == 1 }
	if !known("old") || fetches != 1 || !known("old") || fetches != 1 {
		t.Fatalf("fetched %d times, want once", fetches)
	}
	// The API server is away.
	failure = errors.New("away")
	now = now.Add(3 * time.Hour)
	if !known("old") || fetches != 2 {
		t.Errorf("the key was lost, or not asked for again: fetched %d times", fetches)
	}
	if known("new"); fetches != 2 {
		t.Errorf("an unknown id makes it ask %d times within the pause", fetches-2)
	}
	// It is back, with another key.
	failure, text = nil, set(t, next)
	now = now.Add(keysPause)
	if !known("new") || known("old") {
		t.Error("the keys were not replaced")
	}
	text = []byte("rubbish")
	now = now.Add(2 * keysAge)
	if !known("new") {
		t.Error("rubbish replaced the keys")
	}
	text = []byte(`{"keys":[]}`)
	now = now.Add(2 * keysAge)
	if !known("new") {
		t.Error("an empty set replaced the keys")
	}
}

func TestAnOutageIsNoticed(t *testing.T) {
	s := newSigner(t, "k")
	now, fetches := testNow, 0
	var failure error
	keys := &Keys{Now: func() time.Time { return now }, Fetch: func(context.Context) ([]byte, error) {
		fetches++
		return set(t, s), failure
	}}
	if keys.unreachable(context.Background()) || fetches != 1 {
		t.Errorf("away although there are keys, or fetched %d times", fetches)
	}
	failure = errors.New("away")
	if keys.unreachable(context.Background()) || fetches != 1 {
		t.Errorf("asked again at once: fetched %d times", fetches)
	}
	now = now.Add(keysPause)
	if !keys.unreachable(context.Background()) || len(keys.find(context.Background(), "k")) != 1 {
		t.Error("the outage was not noticed, or the keys were lost")
	}
	failure, now = nil, now.Add(keysPause)
	if keys.unreachable(context.Background()) {
		t.Error("the end of the outage was not noticed")
	}
}

func TestPrivateAndSymmetricKeysAreNotTaken(t *testing.T) {
	s := newSigner(t, "k")
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: s.key, KeyID: "private"}, {Key: []byte("secret"), KeyID: "symmetric"}, {Key: s.key.Public(), KeyID: "enc", Use: "enc"},
		{Key: s.key.Public(), KeyID: "good"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	keys := &Keys{Fetch: func(context.Context) ([]byte, error) { return text, nil }}
	if got := len(keys.find(context.Background(), "")); got != 1 {
		t.Errorf("%d keys, want 1", got)
	}
}

func TestKeysComeFromServersAndFiles(t *testing.T) {
	s := newSigner(t, "k")
	var status atomic.Int32
	status.Store(http.StatusOK)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer own" {
			t.Errorf("asked with %q", r.Header.Get("Authorization"))
		}
		w.WriteHeader(int(status.Load()))
		_, _ = w.Write(set(t, s))
	}))
	defer server.Close()
	dir := t.TempDir()
	token, file := filepath.Join(dir, "token"), filepath.Join(dir, "keys")
	for name, text := range map[string][]byte{token: []byte("own\n"), file: set(t, s)} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, fetch := range map[string]func(context.Context) ([]byte, error){
		"server": KeysURL(server.Client(), server.URL, token), "file": KeysFile(file),
	} {
		if got := (&Keys{Fetch: fetch}).find(context.Background(), "k"); len(got) != 1 {
			t.Errorf("%s: %d keys", name, len(got))
		}
	}
	status.Store(http.StatusForbidden)
	if _, err := KeysURL(server.Client(), server.URL, token)(context.Background()); err == nil {
		t.Error("a refusal was taken for keys")
	}
	if issuer, err := IssuerOf(s.sign(goodClaims())); err != nil || issuer != "https://cluster" {
		t.Errorf("issuer %q, %v", issuer, err)
	}
	if _, err := IssuerOf("rubbish"); err == nil {
		t.Error("rubbish has an issuer")
	}
}

func TestSharedSecrets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := SharedSecret{Read: SecretFile(file)}
	write("0123456789abcdef\n")
	if who, err := s.Authenticate(call("0123456789abcdef")); err != nil || !who.Is("anything") {
		t.Errorf("%+v, %v", who, err)
	}
	for _, wrong := range []string{"0123456789abcdeg", "0123456789abcde", "x"} {
		if _, err := s.Authenticate(call(wrong)); err == nil {
			t.Errorf("%q was taken", wrong)
		}
	}
	write("fedcba9876543210")
	if _, err := s.Authenticate(call("fedcba9876543210")); err != nil {
		t.Errorf("a new secret: %v", err)
	}
	write("short")
	if _, err := s.Authenticate(call("short")); err == nil {
		t.Error("a short secret was taken")
	}
}

func FuzzTokens(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k"}}})
	if err != nil {
		f.Fatal(err)
	}
	tokens := Tokens{Issuer: "i", Audience: Audience, Keys: &Keys{Fetch: func(context.Context) ([]byte, error) { return keys, nil }}}
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Add("eyJhbGciOiJFUzI1NiIsImtpZCI6ImsifQ.e30.AAAA")
	f.Fuzz(func(t *testing.T, text string) {
		if who, err := tokens.Authenticate(call(text)); err == nil {
			t.Errorf("%q was taken for %+v", text, who)
		}
	})
}

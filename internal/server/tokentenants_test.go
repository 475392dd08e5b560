package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// TestTokensOfAnIssuerNameTenants: a picker finds the keys of an issuer by its configuration, knows tenants by their tokens, and goes on to
// know them when the issuer is gone.
func TestTokensOfAnIssuerNameTenants(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var idp *httptest.Server
	idp = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/keys" {
			_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Use: "sig"}}})
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": idp.URL, "jwks_uri": idp.URL + "/keys"})
	}))
	defer idp.Close()
	dir, trusted, e := t.TempDir(), filepath.Join(t.TempDir(), "ca.crt"), engine(t, "m")
	put(t, trusted, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: idp.Certificate().Raw})))
	t.Setenv("SSL_CERT_FILE", trusted)
	put(t, filepath.Join(dir, "all.yaml"), poolText("m", "m", "")+"---\n"+sliceText(t, "m", "pod", e)+"---\n"+strings.ReplaceAll(`
apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: m}
spec:
  targetRefs: [{name: m}]
  admission: {tenants: {identification: JWT, jwt: {issuer: "URL", audiences: [kvasir]}, classes: [{name: default}]}}
`, "URL", idp.URL))
	p := startProgram(t, dir)
	defer func() { _ = p.cmd.Process.Kill() }()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	status := func(audience, tenant string) int {
		t.Helper()
		token, err := jwt.Signed(signer).Claims(jwt.Claims{Issuer: idp.URL, Audience: jwt.Audience{audience}, Subject: tenant,
			Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour))}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.proxy+"/v1/completions",
			strings.NewReader(`{"model":"m","prompt":[1],"max_tokens":1}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := p.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer.StatusCode
	}
	if got := status("kvasir", "acme"); got != http.StatusOK {
		t.Errorf("a tenant gets status %d", got)
	}
	if got := status("others", "acme"); got != http.StatusUnauthorized {
		t.Errorf("a token for others gets status %d", got)
	}
	idp.Close()
	if got := status("kvasir", "late"); got != http.StatusOK {
		t.Errorf("a tenant gets status %d without the issuer", got)
	}
}

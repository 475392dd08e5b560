package oidc

import (
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// TestAnIssuerOfAnOwnAuthority: tokens of an issuer whose certificate an own authority has signed are good where a policy names the
// authority, and for that policy alone.
func TestAnIssuerOfAnOwnAuthority(t *testing.T) {
	i, c := newIssuer(t), start()
	authority := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.server.Certificate().Raw}))
	r := NewRegistry(logr.Discard())
	r.now = c.now
	of := func(authorities string) *Checker {
		return r.Checkers([]tenant.Issuer{{URL: i.server.URL, Audiences: []string{"kvasir"}, Claim: "sub", Authorities: authorities}})[0].(*Checker)
	}
	token := i.token("first", i.claims(c.now(), nil))
	i.wants(of(""), token, "")
	if why := strings.Join(r.Problems(), "\n"); !strings.Contains(why, "unknown authority") {
		t.Errorf("the problem is %q", why)
	}
	i.wants(of(authority), token, "acme")
	i.wants(of(""), token, "")
	other, err := certs.SelfSigned([]string{"127.0.0.1"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	i.wants(of(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate[0]}))), token, "")
}

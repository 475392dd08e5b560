package config

import (
	"encoding/pem"
	"strconv"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

func TestHowEnginesAreSpokenTo(t *testing.T) {
	cert, err := certs.SelfSigned([]string{"e.llm"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}))
	secret := func(text string) string {
		return "apiVersion: v1\nkind: Secret\nmetadata: {name: k}\nstringData: {ca.crt: " + strconv.Quote(text) + "}\n"
	}
	for spec, want := range map[string]endpoint.Wire{
		"engine: {}":                          {},
		"engine: {protocol: H2C}":             {H2C: true},
		"engine: {tls: {verification: None}}": {TLS: true, Unchecked: true},
		"engine: {tls: {serverName: e.llm}}":  {TLS: true, ServerName: "e.llm"},
		"engine: {tls: {serverName: e.llm, caSecretRef: {name: k, key: ca.crt}}}": {TLS: true, ServerName: "e.llm", CA: ca},
	} {
		s, problems := load(t, open(t, "pool.yaml", poolWith(spec), "slice.yaml", smallSlice, "secret.yaml", secret(ca)))
		if pool := only(t, s); len(problems) > 0 || pool.Wire != want || len(pool.Endpoints) == 0 || pool.Endpoints[0].Wire != want {
			t.Errorf("%s: %+v, problems %v", spec, pool.Wire, problems)
		}
	}

	// A Secret that is broken leaves what is in force, and a new one is in force at once.
	d := open(t, "pool.yaml", poolWith("engine: {tls: {serverName: e.llm, caSecretRef: {name: k, key: ca.crt}}}"), "secret.yaml", secret(ca))
	load(t, d)
	write(t, d.file("secret.yaml"), secret("none"))
	s, problems := load(t, d)
	wantProblem(t, problems, "spec.engine.tls.caSecretRef", "has no certificate")
	if only(t, s).Wire.CA != ca {
		t.Error("the pool has lost its CA")
	}
	write(t, d.file("secret.yaml"), secret(ca+ca))
	if s, problems = load(t, d); only(t, s).Wire.CA != ca+ca || len(problems) > 0 {
		t.Errorf("the new CA is not in force, problems %v", problems)
	}
}

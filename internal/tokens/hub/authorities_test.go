package hub

import (
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

func pemOf(certificate *x509.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw}))
}

// TestAHubOfAnOwnAuthority: a mirror whose certificate an own authority has signed is used where that is named, on itself and on the host
// of its large files; without it, nothing is, and the message says what to do.
func TestAHubOfAnOwnAuthority(t *testing.T) {
	w := newWorld(t)
	w.hub.Close()
	w.cdn.Close()
	w.hub, w.cdn = httptest.NewTLSServer(http.HandlerFunc(w.serve)), httptest.NewTLSServer(http.HandlerFunc(w.serveLarge))
	defer w.hub.Close()
	defer w.cdn.Close()
	named, err := certs.ParseAuthorities("An own authority\n" + pemOf(w.hub.Certificate()))
	if err != nil {
		t.Fatal(err)
	}
	h := open(t, w.hub.URL, t.TempDir(), func(c *Config) { c.Authorities = named })
	h.Keep([]modelfiles.Repository{model})
	has(t, h.await(model, "the files of the mirror", func(f Files) bool { return f.Err == nil && f.Dir != "" }).Dir, w.commits[first])

	stranger := open(t, w.hub.URL, t.TempDir(), nil)
	stranger.Keep([]modelfiles.Repository{model})
	stranger.await(model, "the authority is unknown", func(f Files) bool {
		return f.Dir == "" && f.Err != nil && strings.Contains(f.Err.Error(), "unknown authority") && strings.Contains(f.Err.Error(), "hub.caCertificates")
	})
	again, err := certs.ParseAuthorities(named.String())
	if err != nil || again.String() != named.String() || strings.Contains(named.String(), "own") {
		t.Errorf("the text is %q, and read again %v, %v", named, again, err)
	}
}

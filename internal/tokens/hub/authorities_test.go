package hub

import (
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
	named, err := ParseAuthorities("An own authority\n" + pemOf(w.hub.Certificate()))
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
	again, err := ParseAuthorities(named.String())
	if err != nil || again.String() != named.String() || strings.Contains(named.String(), "own") {
		t.Errorf("the text is %q, and read again %v, %v", named, again, err)
	}
}

// TestWhatIsNoAuthority: a mistake has a message that names it, and contains nothing of a private key.
func TestWhatIsNoAuthority(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	good := pemOf(server.Certificate())
	for name, tc := range map[string]struct{ text, want string }{
		"nothing":                     {"", "no certificate"},
		"a path":                      {"/etc/ssl/ca.pem", "no certificate"},
		"a private key":               {good + "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n", `"PRIVATE KEY"`},
		"a certificate that is none":  {"-----BEGIN CERTIFICATE-----\nc2VjcmV0\n-----END CERTIFICATE-----\n", "reading a certificate"},
		"one that was cut off":        {good + good[:len(good)/2], "damaged"},
		"more than an argument takes": {strings.Repeat(good, maxAuthorities/len(good)+1), "the limit is"},
	} {
		_, err := ParseAuthorities(tc.text)
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "c2VjcmV0") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

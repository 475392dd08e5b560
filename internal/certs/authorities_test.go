package certs

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestWhatIsNoAuthority: a mistake has a message that names it, and contains nothing of a private key.
func TestWhatIsNoAuthority(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	good := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
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

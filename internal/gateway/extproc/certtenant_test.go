package extproc

import (
	"testing"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// TestNoGatewayPassesTheNameOfACertificate: what a message calls so is a client's word.
func TestNoGatewayPassesTheNameOfACertificate(t *testing.T) {
	h := head{{Key: picker.CertificateHeader, Value: "CN:acme"}, {Key: "x", RawValue: []byte("y")}}
	if got := picker.HeaderOf(h.get, picker.CertificateHeader); got != "" {
		t.Errorf("the certificate is %q", got)
	}
	if got := picker.HeaderOf(h.get, "x"); got != "y" {
		t.Errorf("x is %q", got)
	}
}

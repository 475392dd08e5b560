package rpc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/events"
)

// authority is a CA.
type authority struct {
	t    *testing.T
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	n    int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.key, a.cert = a.make(&x509.Certificate{
		Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, "ca")
	return a
}

// make writes a certificate and its key to NAME.crt and NAME.key, signed by the authority, or by itself if there is
// none yet.
func (a *authority) make(c *x509.Certificate, name string) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	a.n++
	c.SerialNumber = big.NewInt(a.n)
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	a.write(name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, cert
}

func (a *authority) write(name string, text []byte) {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		a.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		a.t.Fatal(err)
	}
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) server(dns string) {
	a.make(&x509.Certificate{DNSNames: []string{dns}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, "server")
}

func (a *authority) client(pod string) {
	a.make(&x509.Certificate{Subject: pkix.Name{CommonName: pod}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, "client")
}

func (a *authority) serverFiles() Files {
	return Files{Cert: a.path("server.crt"), Key: a.path("server.key"), CA: a.path("ca.crt")}
}

func (a *authority) clientFiles() Files {
	return Files{Cert: a.path("client.crt"), Key: a.path("client.key"), CA: a.path("ca.crt")}
}

func TestAPodReportsOnlyForItself(t *testing.T) {
	a := newAuthority(t)
	a.server("pickers")
	credentials, err := ServerTLS(a.serverFiles(), true)
	if err != nil {
		t.Fatal(err)
	}
	p := startPicker(t, "127.0.0.1:0", ServerOptions{Auth: Certificate{}, Credentials: credentials})
	try := func(pod, serverName string) *reporter {
		t.Helper()
		a.client(pod)
		c, err := ClientTLS(a.clientFiles(), serverName)
		if err != nil {
			t.Fatal(err)
		}
		return startReporter(t, p.addr, DialOptions{Credentials: c})
	}
	said := func(r *reporter, what string) func() bool {
		return func() bool { return r.err() != nil && strings.Contains(r.err().Error(), what) }
	}
	r := try("uid-2", "pickers") // but it says that it is uid-1
	eventually(t, "another's report is refused", said(r, "PermissionDenied"))
	r.stop()
	r = try("uid-1", "someone")
	eventually(t, "the reporter does not believe it", said(r, "certificate is valid for pickers"))
	r.stop()
	if p.status().Messages != 0 || p.server.Refused().NotTheirOwn == 0 {
		t.Errorf("%d messages were taken", p.status().Messages)
	}
	r = try("uid-1", "pickers")
	e, tokens := chain(0, 3)
	r.mirror.Apply(batch(e), events.Position{})
	eventually(t, "its own report is taken", func() bool { return p.match(p.target.Roots[0], tokens) == 3 })
	r.stop()

	plain := startReporter(t, p.addr, DialOptions{})
	eventually(t, "plain text is refused", func() bool { return plain.err() != nil })
}

func TestCertificatesAreReadAgain(t *testing.T) {
	a := newAuthority(t)
	a.server("old")
	a.client("uid-1")
	credentials, err := ServerTLS(a.serverFiles(), true)
	if err != nil {
		t.Fatal(err)
	}
	p := startPicker(t, "127.0.0.1:0", ServerOptions{Auth: Certificate{}, Credentials: credentials})
	c, err := ClientTLS(a.clientFiles(), "new")
	if err != nil {
		t.Fatal(err)
	}
	r := startReporter(t, p.addr, DialOptions{Credentials: c})
	eventually(t, "the old certificate is not believed", func() bool { return r.err() != nil && strings.Contains(r.err().Error(), "valid for old") })
	a.server("new")
	eventually(t, "the new one is", func() bool { return p.status().Connected })

	// Another authority altogether: both sides read it without a restart.
	fresh := newAuthority(t)
	fresh.dir = a.dir
	fresh.key, fresh.cert = nil, nil
	fresh.key, fresh.cert = fresh.make(&x509.Certificate{Subject: pkix.Name{CommonName: "ca2"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, "ca")
	fresh.server("new")
	fresh.client("uid-1")
	p.server.Set("pool", nil)
	p.server.Set("pool", []Target{p.target})
	eventually(t, "connected with the new authority", func() bool { return p.status().Connected })

	// What cannot be read does not replace what could.
	a.write("server.crt", []byte("rubbish"))
	p.server.Set("pool", nil)
	p.server.Set("pool", []Target{p.target})
	eventually(t, "connected all the same", func() bool { return p.status().Connected })
}

func TestTLSNeedsItsFiles(t *testing.T) {
	a := newAuthority(t)
	a.server("x")
	for name, f := range map[string]Files{
		"nothing":         {},
		"no key":          {Cert: a.path("server.crt")},
		"no file":         {Cert: a.path("none"), Key: a.path("none")},
		"no CA":           {Cert: a.path("server.crt"), Key: a.path("server.key")},
		"a CA of rubbish": {Cert: a.path("server.crt"), Key: a.path("server.key"), CA: a.path("server.key")},
	} {
		if _, err := ServerTLS(f, true); err == nil {
			t.Errorf("a server with %s was made", name)
		}
	}
	if _, err := ClientTLS(Files{CA: a.path("none")}, "x"); err == nil {
		t.Error("a client without its CA was made")
	}
}

// Package certstest makes certificate authorities and certificates for tests.
package certstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA signs certificates. Its own is good for a day.
type CA struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New makes an authority.
func New(t testing.TB) *CA {
	t.Helper()
	ca := &CA{t: t, cert: &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority of a test"}, KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}}
	ca.key, ca.cert = ca.sign(ca.cert, nil)
	return ca
}

// Server makes a certificate for a server on this machine, also known by other names.
func (a *CA) Server(names ...string) *tls.Certificate {
	a.t.Helper()
	return a.Issue(&x509.Certificate{DNSNames: append([]string{"localhost"}, names...)})
}

// Issue signs a certificate, for servers and clients. What the template leaves out is filled in: it is good for an hour.
func (a *CA) Issue(template *x509.Certificate) *tls.Certificate {
	a.t.Helper()
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	key, cert := a.sign(template, a)
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

func (a *CA) sign(template *x509.Certificate, by *CA) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100)); err != nil {
		a.t.Fatal(err)
	}
	if template.NotBefore.IsZero() {
		template.NotBefore = time.Now().Add(-time.Hour)
	}
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, cert
}

// Pool trusts the authority.
func (a *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// PEM is the authority's certificate.
func (a *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// PEM returns a certificate and its key as files have them.
func PEM(t testing.TB, c *tls.Certificate) (cert, key []byte) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range c.Certificate {
		cert = append(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: one})...)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// Replace writes a file so that readers see the text before or this one, as a kubelet does for Secrets.
func Replace(t testing.TB, path string, text []byte) {
	t.Helper()
	next := path + ".next"
	if err := os.WriteFile(next, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

// Write writes a certificate and its key into a directory, as tls.crt and tls.key.
func Write(t testing.TB, dir string, c *tls.Certificate) (cert, key string) {
	t.Helper()
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	certText, keyText := PEM(t, c)
	Replace(t, cert, certText)
	Replace(t, key, keyText)
	return cert, key
}

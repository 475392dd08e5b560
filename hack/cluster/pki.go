//go:build linux

package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// certificateLife is longer than any cluster of this kind lives.
const certificateLife = 365 * 24 * time.Hour

// authority signs all certificates of the cluster.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes an authority; its files, and those of everything that it signs, are in dir.
func newAuthority(dir string) (*authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of the certificates: %w", err)
	}
	a := &authority{dir: dir}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "kvasir-cluster"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	var err error
	a.cert, a.key, err = a.sign("ca", template)
	return a, err
}

// sign writes NAME.crt and NAME.key. The first certificate signs itself.
func (a *authority) sign(name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making the key %s: %w", name, err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, nil, fmt.Errorf("making a serial number: %w", err)
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(certificateLife)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, fmt.Errorf("signing %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("signing %s: %w", name, err)
	}
	if err := a.writeKey(name+".key", key); err != nil {
		return nil, nil, err
	}
	return cert, key, a.write(name+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func (a *authority) write(name string, content []byte) error {
	if err := os.WriteFile(filepath.Join(a.dir, name), content, 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}

func (a *authority) writeKey(name string, key crypto.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return a.write(name, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// server signs a certificate for names and addresses.
func (a *authority) server(name string, subject pkix.Name, hosts ...string) error {
	template := &x509.Certificate{
		Subject: subject, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	_, _, err := a.sign(name, template)
	return err
}

// client signs a certificate for a user and writes NAME.kubeconfig with it.
func (a *authority) client(name, user string, groups ...string) error {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if _, _, err := a.sign(name, template); err != nil {
		return err
	}
	data := map[string]string{}
	for _, file := range []string{"ca.crt", name + ".crt", name + ".key"} {
		raw, err := os.ReadFile(filepath.Join(a.dir, file))
		if err != nil {
			return fmt.Errorf("reading %s: %w", file, err)
		}
		data[file] = base64.StdEncoding.EncodeToString(raw)
	}
	return a.write(name+".kubeconfig", fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- {name: kvasir, cluster: {server: "https://%s:6443", certificate-authority-data: %s}}
users:
- {name: %[3]s, user: {client-certificate-data: %[4]s, client-key-data: %[5]s}}
contexts:
- {name: kvasir, context: {cluster: kvasir, user: %[3]s}}
current-context: kvasir
`, nodes[0].address, data["ca.crt"], name, data[name+".crt"], data[name+".key"]))
}

// writePKI makes all certificates, keys and kubeconfigs of the cluster.
func writePKI(dir string) error {
	a, err := newAuthority(dir)
	if err != nil {
		return err
	}
	// Service accounts' tokens are signed as in most clusters, by RSA.
	account, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("making the key of service accounts: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(account.Public())
	if err != nil {
		return fmt.Errorf("writing the key of service accounts: %w", err)
	}
	steps := []func() error{
		func() error { return a.writeKey("sa.key", account) },
		func() error {
			return a.write("sa.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
		},
		func() error {
			return a.server("apiserver", pkix.Name{CommonName: "kube-apiserver"}, "kubernetes", "kubernetes.default", "kubernetes.default.svc",
				"kubernetes.default.svc.cluster.local", "localhost", apiService, "127.0.0.1", nodes[0].address)
		},
		func() error { return a.client("apiserver-kubelet", "kube-apiserver-kubelet-client", "system:masters") },
		func() error { return a.client("controller-manager", "system:kube-controller-manager") },
		func() error { return a.client("scheduler", "system:kube-scheduler") },
		func() error { return a.client("proxy", "system:kube-proxy") },
		func() error { return a.client("admin", "admin", "system:masters") },
	}
	for _, n := range nodes {
		user := "system:node:" + n.name
		steps = append(steps,
			func() error { return a.client(n.name, user, "system:nodes") },
			func() error {
				return a.server(n.name+"-serving", pkix.Name{CommonName: user, Organization: []string{"system:nodes"}}, n.name, n.address)
			})
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

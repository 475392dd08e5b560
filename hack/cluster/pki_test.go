//go:build linux

package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

func TestCertificatesAreForTheirUses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	if err := writePKI(dir); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil || !roots.AppendCertsFromPEM(ca) {
		t.Fatalf("the authority: %v", err)
	}
	verify := func(name, host string, usage x509.ExtKeyUsage) *x509.Certificate {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Errorf("%s for %s: %v", name, host, err)
		}
		return pair.Leaf
	}
	for _, host := range []string{"kubernetes.default.svc", apiService, nodes[0].address} {
		verify("apiserver", host, x509.ExtKeyUsageServerAuth)
	}
	for _, n := range nodes {
		verify(n.name+"-serving", n.address, x509.ExtKeyUsageServerAuth)
		if c := verify(n.name, "", x509.ExtKeyUsageClientAuth); c.Subject.CommonName != "system:node:"+n.name || c.Subject.Organization[0] != "system:nodes" {
			t.Errorf("the kubelet of %s is %s", n.name, c.Subject)
		}
	}
	config, err := clientcmd.LoadFromFile(filepath.Join(dir, "admin.kubeconfig"))
	if err != nil || config.Clusters["kvasir"].Server != "https://"+nodes[0].address+":6443" {
		t.Errorf("the kubeconfig: %v %+v", err, config)
	}
}

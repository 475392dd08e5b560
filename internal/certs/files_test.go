package certs_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/test/certstest"
)

// TestAChangeWithinTheSameTickIsSeen: the file has the time and the length of the one before.
func TestAChangeWithinTheSameTickIsSeen(t *testing.T) {
	dir := t.TempDir()
	ca := certstest.New(t)
	files := certs.Files{}
	files.Cert, files.Key = certstest.Write(t, dir, ca.Server("a.example"))
	source := certs.NewSource(files)
	first, _, err := source.Load()
	if err != nil {
		t.Fatal(err)
	}
	if same, _, _ := source.Load(); same != first {
		t.Error("files that are the same make another certificate")
	}
	before, err := os.Stat(files.Cert)
	if err != nil {
		t.Fatal(err)
	}
	for after := os.FileInfo(nil); after == nil || after.Size() != before.Size(); { // signatures differ in length
		certstest.Write(t, dir, ca.Server("b.example"))
		if after, err = os.Stat(files.Cert); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{files.Cert, files.Key} {
		if err := os.Chtimes(name, before.ModTime(), before.ModTime()); err != nil {
			t.Fatal(err)
		}
	}
	if second, _, err := source.Load(); err != nil || second == first {
		t.Errorf("the certificate is the one before, %v", err)
	}
}

// TestFilesThatDoNotChangeAreReadOnce, also if they cannot be read.
func TestFilesThatDoNotChangeAreReadOnce(t *testing.T) {
	dir := t.TempDir()
	files := certs.Files{}
	files.Cert, files.Key = certstest.Write(t, dir, certstest.New(t).Server())
	old := time.Now().Add(-time.Hour)
	for _, name := range []string{files.Cert, files.Key} {
		if err := os.Chtimes(name, old, old); err != nil {
			t.Fatal(err)
		}
	}
	source := certs.NewSource(files)
	first, _, err := source.Load()
	if err != nil {
		t.Fatal(err)
	}
	// The same time and length: it is not read.
	text, err := os.ReadFile(files.Cert)
	if err != nil {
		t.Fatal(err)
	}
	for i := range text {
		text[i] = 'x'
	}
	if err := os.WriteFile(files.Cert, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(files.Cert, old, old); err != nil {
		t.Fatal(err)
	}
	if same, _, err := source.Check(); same != first || err != nil {
		t.Errorf("a file of an hour ago was read again: %v", err)
	}
	if err := os.Chtimes(files.Cert, old.Add(time.Second), old.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if same, _, err := source.Check(); same != first || err == nil {
		t.Errorf("no error, or another certificate, of a file that is none")
	}
}

func TestTheNameOfACertificate(t *testing.T) {
	ca := certstest.New(t)
	spiffe := func(paths ...string) (all []*url.URL) {
		for _, path := range paths {
			all = append(all, &url.URL{Scheme: "spiffe", Host: "cluster.local", Path: path})
		}
		return all
	}
	for name, tc := range map[string]struct {
		cert x509.Certificate
		want string
	}{
		"a URI":                  {x509.Certificate{URIs: spiffe("/ns/a/sa/b")}, "URI:spiffe://cluster.local/ns/a/sa/b"},
		"a URI before all else":  {x509.Certificate{URIs: spiffe("/a"), DNSNames: []string{"b"}, Subject: pkix.Name{CommonName: "c"}}, "URI:spiffe://cluster.local/a"},
		"two URIs":               {x509.Certificate{URIs: spiffe("/a", "/b"), DNSNames: []string{"b"}}, ""},
		"a DNS name":             {x509.Certificate{DNSNames: []string{"Client.Example"}}, "DNS:client.example"},
		"a DNS name before a CN": {x509.Certificate{DNSNames: []string{"b"}, Subject: pkix.Name{CommonName: "c"}}, "DNS:b"},
		"two DNS names":          {x509.Certificate{DNSNames: []string{"a", "b"}, Subject: pkix.Name{CommonName: "c"}}, ""},
		"a common name":          {x509.Certificate{Subject: pkix.Name{CommonName: "DNS:b"}}, "CN:DNS:b"},
		"none":                   {x509.Certificate{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := certs.NameOf(ca.Issue(&tc.cert).Leaf)
			if got != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// Package certs provides the certificates of servers and clients: from files that are read again when they change, or made
// at the start.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
)

// Files of a side's TLS. They are read again when they have changed, at the next handshake.
type Files struct {
	// Cert and Key are the side's own; optional for a client.
	Cert, Key string
	// CA is what the other side's certificate must be signed by; optional for a server, which then asks for none.
	CA string
}

// Read reads the files. What is not named is nil.
func (f *Files) Read() (cert *tls.Certificate, ca *x509.CertPool, err error) {
	if f.Cert != "" || f.Key != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, nil, fmt.Errorf("reading the certificate: %w", err)
		}
		cert = &pair
	}
	if f.CA != "" {
		text, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, nil, fmt.Errorf("reading the CA: %w", err)
		}
		if ca = x509.NewCertPool(); !ca.AppendCertsFromPEM(text) {
			return nil, nil, fmt.Errorf("%s has no certificate", f.CA)
		}
	}
	return cert, ca, nil
}

// Source is what the files said when they were read last. It is safe for concurrent use.
type Source struct {
	files Files

	mu    sync.Mutex // guards what follows
	stamp string
	cert  *tls.Certificate
	ca    *x509.CertPool
}

// NewSource reads nothing yet.
func NewSource(f Files) *Source { return &Source{files: f} }

// Load reads the files if they have changed. What cannot be read is an error only at the first time.
func (s *Source) Load() (*tls.Certificate, *x509.CertPool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stamp := ""
	for _, name := range []string{s.files.Cert, s.files.Key, s.files.CA} {
		if info, err := os.Stat(name); err == nil {
			stamp += fmt.Sprint(info.ModTime().UnixNano(), "/", info.Size(), " ")
		}
	}
	if stamp != s.stamp || s.stamp == "" {
		cert, ca, err := s.files.Read()
		switch {
		case err == nil:
			s.stamp, s.cert, s.ca = stamp, cert, ca
		case s.stamp == "":
			return nil, nil, err
		}
	}
	return s.cert, s.ca, nil
}

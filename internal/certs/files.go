// Package certs provides the certificates of servers and clients: from files that are read again when they change, or made
// at the start.
package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
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
	texts, err := f.texts()
	if err != nil {
		return nil, nil, err
	}
	return f.parse(texts)
}

// texts are those of the certificate, the key and the CA; nil for what is not named.
func (f *Files) texts() (texts [3][]byte, err error) {
	own := f.Cert != "" || f.Key != ""
	for i, one := range []struct {
		name, what string
		wanted     bool
	}{{f.Cert, "certificate", own}, {f.Key, "certificate", own}, {f.CA, "CA", f.CA != ""}} {
		if !one.wanted {
			continue
		}
		if texts[i], err = os.ReadFile(one.name); err != nil {
			return texts, fmt.Errorf("reading the %s: %w", one.what, err)
		}
	}
	return texts, nil
}

// parse makes of the texts what TLS uses.
func (f *Files) parse(texts [3][]byte) (cert *tls.Certificate, ca *x509.CertPool, err error) {
	if f.Cert != "" || f.Key != "" {
		pair, err := tls.X509KeyPair(texts[0], texts[1])
		if err != nil {
			return nil, nil, fmt.Errorf("reading the certificate: %w", err)
		}
		cert = &pair
	}
	if f.CA != "" {
		if ca = x509.NewCertPool(); !ca.AppendCertsFromPEM(texts[2]) {
			return nil, nil, fmt.Errorf("%s has no certificate", f.CA)
		}
	}
	return cert, ca, nil
}

const (
	// retryEvery is how often files that could not be read are read again, as long as they do not change.
	retryEvery = time.Second
	// settledAfter is the age of a file above which another change has another time: file systems count in steps.
	settledAfter = time.Second
)

// Source is what the files said when they were read last. It is safe for concurrent use.
type Source struct {
	files Files

	mu    sync.Mutex // guards what follows
	stamp string     // of the files that texts are from; empty if it does not show each change
	texts [3][]byte
	cert  *tls.Certificate // of the texts, as ca; nil for both before the first reading that succeeded
	ca    *x509.CertPool
	// failed is why files of the stamp refused could not be read, at tried; nil if the last reading succeeded.
	failed  error
	refused string
	tried   time.Time
}

// NewSource reads nothing yet.
func NewSource(f Files) *Source { return &Source{files: f} }

// Load reads the files if they have changed. What cannot be read is an error only at the first time.
func (s *Source) Load() (*tls.Certificate, *x509.CertPool, error) {
	cert, ca, err := s.Check()
	if cert != nil || ca != nil {
		return cert, ca, nil
	}
	return nil, nil, err
}

// Check is Load with the error of files that have changed and cannot be read: what they said before stays in use. As long as they say the
// same, it returns the same pointers.
func (s *Source) Check() (*tls.Certificate, *x509.CertPool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	stamp, settled := s.files.stamp(now)
	if stamp == s.stamp && s.failed == nil || s.failed != nil && stamp == s.refused && now.Sub(s.tried) < retryEvery {
		return s.cert, s.ca, s.failed
	}
	texts, err := s.files.texts()
	if err == nil && (s.cert == nil && s.ca == nil || !slices.EqualFunc(texts[:], s.texts[:], bytes.Equal)) {
		var cert *tls.Certificate
		var ca *x509.CertPool
		if cert, ca, err = s.files.parse(texts); err == nil {
			s.texts, s.cert, s.ca = texts, cert, ca
		}
	}
	s.failed, s.refused, s.tried = err, stamp, now
	if s.stamp = ""; err == nil && settled {
		s.stamp = stamp
	}
	return s.cert, s.ca, err
}

// stamp is when the files were written, and how long they are. It is settled if a change from now on makes it another one.
func (f *Files) stamp(now time.Time) (stamp string, settled bool) {
	settled = true
	for _, name := range []string{f.Cert, f.Key, f.CA} {
		if info, err := os.Stat(name); err == nil {
			stamp += fmt.Sprint(info.ModTime().UnixNano(), "/", info.Size())
			settled = settled && now.Sub(info.ModTime()) > settledAfter
		}
		stamp += " "
	}
	return stamp, settled
}

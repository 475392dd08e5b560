package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/logging"
)

// A chain of a client has at most maxChain certificates and maxChainBytes bytes: the server keeps it as long as the connection.
const maxChain, maxChainBytes = 8, 32 << 10

// Server is the side of TLS that serves clients of HTTP/1.1 and HTTP/2 over TLS 1.2 or newer, with the certificate of files that are
// read again when they change. A connection keeps what its handshake has used. It is safe for concurrent use.
type Server struct {
	source   *Source
	required bool
	log      logr.Logger

	mu       sync.Mutex // guards what follows
	cert     *tls.Certificate
	ca       *x509.CertPool
	config   *tls.Config // made of these two
	failed   string      // the error that was logged last; empty while the files can be read
	failures uint64
}

// NewServer serves with the certificate of files. If they have a CA, a client can show a certificate, which must then be signed by it;
// with required, each client must. It reads nothing yet.
func NewServer(f Files, required bool, log logr.Logger) *Server {
	return &Server{source: NewSource(f), required: required, log: log}
}

// Config is what connections are served with. Handshakes fail as long as the files were never readable.
func (s *Server) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			config, _, err := s.load()
			if config == nil {
				return nil, err
			}
			return config, nil
		},
	}
}

// ServerState is what is known of the certificate in use.
type ServerState struct {
	// NotAfter is when it expires; zero without one.
	NotAfter time.Time
	// Failures counts the times that changed files could not be read, and Err is why they cannot be now; empty if they can.
	Failures uint64
	Err      string
}

// State reads the files if they have changed.
func (s *Server) State() ServerState {
	_, cert, err := s.load()
	s.mu.Lock()
	defer s.mu.Unlock()
	state := ServerState{Failures: s.failures}
	if cert != nil && cert.Leaf != nil {
		state.NotAfter = cert.Leaf.NotAfter
	}
	if err != nil {
		state.Err = err.Error()
	}
	return state
}

// load returns the present configuration and certificate, nil without one, and why the files cannot be read.
func (s *Server) load() (*tls.Config, *tls.Certificate, error) {
	cert, ca, err := s.source.Check()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.failed != err.Error() {
		s.failed = err.Error()
		s.failures++
		s.log.Error(err, "Reading the certificate failed", "inUse", cert != nil)
	}
	if err == nil {
		s.failed = ""
	}
	if cert != nil && (cert != s.cert || ca != s.ca) {
		s.cert, s.ca, s.config = cert, ca, s.configOf(cert, ca)
		s.report(cert)
	}
	return s.config, s.cert, err
}

// report logs a certificate that is used from now on.
func (s *Server) report(cert *tls.Certificate) {
	if cert.Leaf == nil {
		return
	}
	values := []any{"names", cert.Leaf.DNSNames, "notAfter", cert.Leaf.NotAfter.UTC().Format(time.RFC3339), "clientCA", s.ca != nil}
	if time.Now().After(cert.Leaf.NotAfter) {
		logging.Warn(s.log, "Certificate has expired", values...)
		return
	}
	s.log.Info("Certificate read", values...)
}

func (s *Server) configOf(cert *tls.Certificate, ca *x509.CertPool) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, Certificates: []tls.Certificate{*cert}}
	if ca == nil {
		return c
	}
	c.ClientCAs, c.ClientAuth = ca, tls.VerifyClientCertIfGiven
	if s.required {
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	// A resumed session would not check the client's certificate against the present CA.
	c.SessionTicketsDisabled = true
	c.VerifyPeerCertificate = checkChain
	return c
}

// checkChain refuses chains that take too much memory.
func checkChain(raw [][]byte, _ [][]*x509.Certificate) error {
	n := 0
	for _, one := range raw {
		n += len(one)
	}
	if len(raw) > maxChain || n > maxChainBytes {
		return fmt.Errorf("the client shows %d certificates of %d bytes; at most %d of %d are allowed", len(raw), n, maxChain, maxChainBytes)
	}
	return nil
}

// NameOf is the name by which a client's certificate names its owner, with its kind before it:
//
//	URI:spiffe://cluster.local/ns/a/sa/b  its URI, if it has exactly one
//	DNS:client.example.com                without a URI, its DNS name in lower case, if it has exactly one
//	CN:client                             without either, its common name
//
// A certificate with several URIs, or without a URI and with several DNS names, names no owner.
func NameOf(c *x509.Certificate) (string, error) {
	switch {
	case len(c.URIs) == 1:
		return "URI:" + c.URIs[0].String(), nil
	case len(c.URIs) > 1:
		return "", errors.New("the certificate has several URIs")
	case len(c.DNSNames) == 1:
		return "DNS:" + strings.ToLower(c.DNSNames[0]), nil
	case len(c.DNSNames) > 1:
		return "", errors.New("the certificate has several DNS names")
	case c.Subject.CommonName != "":
		return "CN:" + c.Subject.CommonName, nil
	}
	return "", errors.New("the certificate has no name")
}

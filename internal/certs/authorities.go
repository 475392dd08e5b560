package certs

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// maxAuthorities bounds the text of certificates, in bytes: it can become an argument of pickers, and Linux takes 128 KiB for one.
const maxAuthorities = 64 << 10

// Authorities are certificates that sign those of a server, besides the authorities of the system.
type Authorities struct {
	text string // PEM, without anything around the certificates
	pool *x509.CertPool
}

// ParseAuthorities reads certificates in PEM. Text between them is left out, as there is in many bundles; a private key is refused, since
// all of it can be read by those that can read the policy, or the programs' arguments.
func ParseAuthorities(text string) (*Authorities, error) {
	if len(text) > maxAuthorities {
		return nil, fmt.Errorf("the certificates have %d bytes, the limit is %d: name those that are needed, and no whole bundle", len(text), maxAuthorities)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("reading the system's authorities: %w", err)
	}
	var out strings.Builder
	block, rest := pem.Decode([]byte(text))
	for ; block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("a block of PEM is a %.40q, only certificates belong here", block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("reading a certificate: %w", err)
		}
		pool.AddCert(certificate)
		if err := pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes}); err != nil {
			return nil, fmt.Errorf("writing a certificate: %w", err)
		}
	}
	switch {
	case strings.Contains(string(rest), "-----BEGIN"):
		return nil, errors.New("a block of PEM is damaged: it has no end, or is no base64")
	case out.Len() == 0:
		return nil, errors.New("there is no certificate in PEM (-----BEGIN CERTIFICATE-----)")
	}
	return &Authorities{out.String(), pool}, nil
}

// String returns the certificates in PEM.
func (a *Authorities) String() string { return a.text }

// Pool returns the certificates, with those of the system.
func (a *Authorities) Pool() *x509.CertPool { return a.pool }

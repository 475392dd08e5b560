package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"
)

// Lives of what an authority makes. Everything is renewed when a third of its life is left, and a new CA is trusted for
// a day before anything is signed with it, so that no process has to restart and no connection is refused.
const (
	authorityLife = 5 * 365 * 24 * time.Hour
	leafLife      = 90 * 24 * time.Hour
	spread        = 24 * time.Hour
)

// Pair is a certificate and its key, PEM as in Secrets of type kubernetes.io/tls.
type Pair struct{ Cert, Key []byte }

func (p Pair) empty() bool { return len(p.Cert) == 0 }

// Authority is the CA of one pool: what signs now, and what will. The zero value has nothing yet.
type Authority struct {
	Current Pair
	// Next signs when it has been trusted for a day; empty most of the time.
	Next Pair
	// Past is the certificate of the CA before, trusted until it ends; empty most of the time.
	Past []byte
}

// Renew brings the authority and the certificate that it has signed up to date, and reports whether either has changed and
// when to check again. What cannot be read, or is for other names, is made again; a CA that cannot be read takes its
// certificate with it.
func (a *Authority) Renew(leaf *Pair, names []string, now time.Time) (changed bool, next time.Time, err error) {
	before := *a
	if err := a.renew(now); err != nil {
		return false, time.Time{}, err
	}
	ca, key, err := a.Current.parse()
	if err != nil {
		return false, time.Time{}, err
	}
	cert, _, err := leaf.parse()
	good := err == nil && cert.CheckSignatureFrom(ca) == nil && slices.Equal(cert.DNSNames, names) && now.Before(renewal(cert)) &&
		!now.Before(cert.NotBefore)
	if !good {
		made, err := sign(&x509.Certificate{
			Subject:     pkix.Name{Organization: []string{"Kvasir"}, CommonName: names[0]},
			NotBefore:   now.Add(-time.Hour),
			NotAfter:    now.Add(leafLife),
			KeyUsage:    x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			DNSNames:    names,
		}, ca, key)
		if err != nil {
			return false, time.Time{}, err
		}
		*leaf = made
		if cert, _, err = leaf.parse(); err != nil {
			return false, time.Time{}, err
		}
	}
	next = renewal(cert)
	for _, t := range []time.Time{renewal(ca), a.takeover()} {
		if !t.IsZero() && t.After(now) && t.Before(next) {
			next = t
		}
	}
	return !good || !a.equal(&before), next, nil
}

// renew makes the CA, its successor when it is time, and hands over a day later.
func (a *Authority) renew(now time.Time) error {
	ca, _, err := a.Current.parse()
	if err != nil || now.After(ca.NotAfter) {
		made, err := newCA(now)
		if err != nil {
			return err
		}
		*a = Authority{Current: made}
		return nil
	}
	if past, _ := parseCert(a.Past); past == nil || now.After(past.NotAfter) {
		a.Past = nil
	}
	if _, _, err := a.Next.parse(); err != nil {
		a.Next = Pair{}
	}
	if a.Next.empty() && !now.Before(renewal(ca)) {
		if a.Next, err = newCA(now); err != nil {
			return err
		}
	}
	if turn := a.takeover(); !turn.IsZero() && !now.Before(turn) {
		*a = Authority{Current: a.Next, Past: a.Current.Cert}
	}
	return nil
}

// takeover is when the successor takes over; zero without one.
func (a *Authority) takeover() time.Time {
	next, _, err := a.Next.parse()
	if err != nil {
		return time.Time{}
	}
	return next.NotBefore.Add(time.Hour + spread)
}

// Trusted are the certificates, in PEM, that clients of the authority's certificates must trust.
func (a *Authority) Trusted() []byte {
	return bytes.Join([][]byte{a.Current.Cert, a.Next.Cert, a.Past}, nil)
}

func (a *Authority) equal(b *Authority) bool {
	return bytes.Equal(a.Trusted(), b.Trusted()) && bytes.Equal(a.Current.Cert, b.Current.Cert)
}

// renewal is when two thirds of a certificate's life are over.
func renewal(c *x509.Certificate) time.Time {
	return c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3)
}

func newCA(now time.Time) (Pair, error) {
	return sign(&x509.Certificate{
		Subject:               pkix.Name{Organization: []string{"Kvasir"}, CommonName: "pool CA"},
		NotBefore:             now.Add(-time.Hour), // for clocks that are behind
		NotAfter:              now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}, nil, nil)
}

// sign makes a key and its certificate, signed by a CA, or by itself without one.
func sign(template, ca *x509.Certificate, caKey *ecdsa.PrivateKey) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("making a key: %w", err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return Pair{}, fmt.Errorf("making a serial number: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return Pair{}, fmt.Errorf("encoding a key: %w", err)
	}
	id := sha256.Sum256(public)
	template.SubjectKeyId = id[:20] // it distinguishes two CAs of one name
	if ca == nil {
		ca, caKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, caKey)
	if err != nil {
		return Pair{}, fmt.Errorf("signing a certificate: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encoding a key: %w", err)
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}, nil
}

// parse reads a pair and checks that the two belong together.
func (p *Pair) parse() (*x509.Certificate, *ecdsa.PrivateKey, error) {
	cert, err := parseCert(p.Cert)
	if err != nil {
		return nil, nil, err
	}
	block, _ := pem.Decode(p.Key)
	if block == nil {
		return nil, nil, errors.New("no key")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("reading a key: %w", err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, errors.New("the key is not the certificate's")
	}
	return cert, key, nil
}

func parseCert(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no certificate")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("reading a certificate: %w", err)
	}
	return cert, nil
}

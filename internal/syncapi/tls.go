package syncapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// Files of a side's TLS. They are read again when they have changed, at the next handshake.
type Files struct {
	// Cert and Key are the side's own; optional for a client.
	Cert, Key string
	// CA is what the other side's certificate must be signed by; optional for a server, which then asks for none.
	CA string
}

// loaded is what the files said when they were read last.
type loaded struct {
	files Files

	mu    sync.Mutex // guards what follows
	stamp string
	cert  *tls.Certificate
	ca    *x509.CertPool
}

// load reads the files if they have changed. What cannot be read is an error only at the first time.
func (l *loaded) load() (*tls.Certificate, *x509.CertPool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	stamp := ""
	for _, name := range []string{l.files.Cert, l.files.Key, l.files.CA} {
		if info, err := os.Stat(name); err == nil {
			stamp += fmt.Sprint(info.ModTime().UnixNano(), "/", info.Size(), " ")
		}
	}
	if stamp != l.stamp || l.stamp == "" {
		cert, ca, err := l.files.read()
		switch {
		case err == nil:
			l.stamp, l.cert, l.ca = stamp, cert, ca
		case l.stamp == "":
			return nil, nil, err
		}
	}
	return l.cert, l.ca, nil
}

func (f *Files) read() (cert *tls.Certificate, ca *x509.CertPool, err error) {
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

// ServerTLS are a picker's credentials. With a CA, clients may show a certificate, which must then be signed by it;
// with required they must.
func ServerTLS(f Files, required bool) (credentials.TransportCredentials, error) {
	l := &loaded{files: f}
	cert, ca, err := l.load()
	if err != nil {
		return nil, err
	}
	if cert == nil || required && ca == nil {
		return nil, errors.New("a certificate and its key are needed, and a CA where clients must have one too")
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			cert, ca, err := l.load()
			if err != nil {
				return nil, err
			}
			c := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2"}}
			if ca != nil {
				c.ClientCAs, c.ClientAuth = ca, tls.VerifyClientCertIfGiven
				if required {
					c.ClientAuth = tls.RequireAndVerifyClientCert
				}
			}
			return c, nil
		},
	}), nil
}

// ClientTLS are a reporter's credentials. serverName is what the picker's certificate must be for. Without a CA the
// system's are used.
func ClientTLS(f Files, serverName string) (credentials.TransportCredentials, error) {
	c := &clientTLS{loaded: &loaded{files: f}, serverName: serverName}
	_, err := c.now()
	return c, err
}

// clientTLS reads its files at each handshake.
type clientTLS struct {
	*loaded
	serverName string
}

func (c *clientTLS) now() (credentials.TransportCredentials, error) {
	cert, ca, err := c.load()
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: c.serverName, RootCAs: ca}
	if cert != nil {
		config.Certificates = []tls.Certificate{*cert}
	}
	return credentials.NewTLS(config), nil
}

// ClientHandshake implements credentials.TransportCredentials.
func (c *clientTLS) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	now, err := c.now()
	if err != nil {
		return nil, nil, err
	}
	return now.ClientHandshake(ctx, authority, raw)
}

// ServerHandshake implements credentials.TransportCredentials.
func (c *clientTLS) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a client's")
}

// Info implements credentials.TransportCredentials.
func (c *clientTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls", ServerName: c.serverName} //nolint:staticcheck // gRPC still takes the authority from here
}

// Clone implements credentials.TransportCredentials.
func (c *clientTLS) Clone() credentials.TransportCredentials {
	return &clientTLS{loaded: c.loaded, serverName: c.serverName}
}

// OverrideServerName implements credentials.TransportCredentials.
func (c *clientTLS) OverrideServerName(name string) error {
	c.serverName = name
	return nil
}

// tokenCall shows a token with every call.
type tokenCall struct {
	read     func() ([]byte, error)
	insecure bool
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (t tokenCall) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := t.read()
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + string(token)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (t tokenCall) RequireTransportSecurity() bool { return !t.insecure }

// handshakeTimeout bounds connecting to a picker.
const handshakeTimeout = 5 * time.Second

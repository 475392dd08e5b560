package rpc

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/kvasir-dev/kvasir/internal/certs"
)

// Files of a side's TLS.
type Files = certs.Files

// ServerTLS are a picker's credentials. With a CA, clients can show a certificate, which must then be signed by it;
// with required they must.
func ServerTLS(f Files, required bool) (credentials.TransportCredentials, error) {
	source := certs.NewSource(f)
	cert, ca, err := source.Load()
	if err != nil {
		return nil, err
	}
	if cert == nil || required && ca == nil {
		return nil, errors.New("a certificate and its key are required, and a CA if clients need certificates")
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			cert, ca, err := source.Load()
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
	c := &clientTLS{source: certs.NewSource(f), serverName: serverName}
	_, err := c.now()
	return c, err
}

// clientTLS reads its files at each handshake.
type clientTLS struct {
	source     *certs.Source
	serverName string
}

func (c *clientTLS) now() (credentials.TransportCredentials, error) {
	cert, ca, err := c.source.Load()
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
	//nolint:staticcheck // gRPC still takes the authority from here
	return credentials.ProtocolInfo{SecurityProtocol: "tls", ServerName: c.serverName}
}

// Clone implements credentials.TransportCredentials.
func (c *clientTLS) Clone() credentials.TransportCredentials {
	return &clientTLS{source: c.source, serverName: c.serverName}
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
	return map[string]string{"authorization": "Bearer " + string(bytes.TrimSpace(token))}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (t tokenCall) RequireTransportSecurity() bool { return !t.insecure }

// handshakeTimeout bounds connecting to a picker.
const handshakeTimeout = 5 * time.Second

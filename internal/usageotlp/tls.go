package usageotlp

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"google.golang.org/grpc/credentials"

	"github.com/kvasir-dev/kvasir/internal/logging"
)

// credentials are what gRPC verifies the collector by, and shows it, from the files that the environment names; nil for the SDK's
// own choice. The SDK's exporter by gRPC reads these files, but does not use them; by HTTP it does.
//
// A file that cannot be read is reported, and the system's authorities take its place, as with the SDK.
func (c *Config) credentials() credentials.TransportCredentials {
	if !strings.HasPrefix(strings.ToLower(c.destination()), "https://") {
		return nil
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if file := c.setting("CERTIFICATE"); file != "" {
		settings.RootCAs, err = authorities(file)
	}
	if cert, key := c.setting("CLIENT_CERTIFICATE"), c.setting("CLIENT_KEY"); cert != "" && key != "" {
		own, failed := tls.LoadX509KeyPair(cert, key)
		if failed == nil {
			settings.Certificates = []tls.Certificate{own}
		}
		err = errors.Join(err, failed)
	}
	if err != nil {
		logging.Warn(c.Log, "Reading the certificates for the export of usage records failed", "reason", err.Error())
	}
	return credentials.NewTLS(settings)
}

// destination is the URL of the collector.
func (c *Config) destination() string { return cmp.Or(c.Endpoint, c.setting("ENDPOINT")) }

// setting is a variable of the environment for logs, or that for all signals.
func (c *Config) setting(name string) string {
	return cmp.Or(c.Getenv("OTEL_EXPORTER_OTLP_LOGS_"+name), c.Getenv("OTEL_EXPORTER_OTLP_"+name))
}

// authorities are the certificates of a file.
func authorities(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: no certificate in PEM", file)
	}
	return pool, nil
}

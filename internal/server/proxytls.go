package server

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/gateway/accept"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/metrics"
)

// proxyTLSOptions are the flags about TLS for the clients of the proxy.
type proxyTLSOptions struct {
	files certs.Files
	// clients is what clients' certificates are for.
	clients string
}

// What clients' certificates are for.
const clientsOptional, clientsRequired = "optional", "required"

func (o *proxyTLSOptions) flags(f *flag.FlagSet) {
	f.StringVar(&o.files.Cert, "proxy-cert", "", "`file` with the certificate for clients, which then speak TLS; it is read again when it changes")
	f.StringVar(&o.files.Key, "proxy-key", "", "`file` with its key")
	f.StringVar(&o.files.CA, "proxy-client-ca", "", "`file` with the CA of clients' certificates; without it, clients are not asked for one")
	f.StringVar(&o.clients, "proxy-client-certs", clientsRequired, "with a CA of clients: required, or optional, which also serves clients without a certificate")
}

func (o *proxyTLSOptions) check() error {
	switch {
	case (o.files.Cert == "") != (o.files.Key == ""):
		return errors.New("--proxy-cert and --proxy-key need each other")
	case o.files.CA != "" && o.files.Cert == "":
		return errors.New("--proxy-client-ca needs --proxy-cert")
	case o.clients != clientsOptional && o.clients != clientsRequired:
		return fmt.Errorf("--proxy-client-certs %q: want required or optional", o.clients)
	}
	return nil
}

// proxyTLS is TLS for the clients of the proxy. The nil proxyTLS is none.
type proxyTLS struct {
	server     *certs.Server
	handshakes *accept.Handshakes
}

// newProxyTLS makes TLS as flags say; nil for none. In a cluster, files that cannot be read can come later: a pod starts before its Secret
// is there.
func newProxyTLS(o *options, log logr.Logger) (*proxyTLS, error) {
	if o.proxyTLS.files.Cert == "" || o.proxyAddress == "" {
		return nil, nil // plain text
	}
	server := certs.NewServer(o.proxyTLS.files, o.proxyTLS.clients == clientsRequired, log)
	if state := server.State(); state.Err != "" && !o.source.inCluster() {
		return nil, fmt.Errorf("--proxy-cert: %s", state.Err)
	}
	connections := log.V(1)
	return &proxyTLS{server: server, handshakes: &accept.Handshakes{Config: server.Config(), Failed: func(from net.Addr, err error) {
		if connections.Enabled() {
			logging.Warn(connections, "TLS handshake failed", "client", from.String(), "reason", err.Error())
		}
	}}}, nil
}

// of is what the port serves with; nil without TLS.
func (p *proxyTLS) of() *accept.Handshakes {
	if p == nil {
		return nil
	}
	return p.handshakes
}

// problems are those of the certificate, in short sentences.
func (p *proxyTLS) problems() []string {
	if p == nil {
		return nil
	}
	state := p.server.State()
	switch {
	case state.Err != "" && state.NotAfter.IsZero():
		return []string{"Clients are not served: " + state.Err}
	case state.Err != "":
		return []string{"The certificate for clients is not the present one of the files: " + state.Err}
	case time.Now().After(state.NotAfter):
		return []string{"The certificate for clients has expired at " + state.NotAfter.UTC().Format(time.RFC3339)}
	}
	return nil
}

// metrics returns what is exported; nil without TLS.
func (p *proxyTLS) metrics() func() metrics.TLS {
	if p == nil {
		return nil
	}
	return func() metrics.TLS {
		state := p.server.State()
		done, failed := p.handshakes.Counts()
		return metrics.TLS{Handshakes: done, FailedHandshakes: failed,
			NotAfter: state.NotAfter, Failures: state.Failures, Failing: state.Err != ""}
	}
}

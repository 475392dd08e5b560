package extproc

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/gateway/h2stream"
	"github.com/kvasir-dev/kvasir/internal/logging"
)

// ServeOptions bound what a server takes. Zero values take the defaults.
type ServeOptions struct {
	// TLS of the connections; nil for none.
	TLS *tls.Config
	// Ready reports whether the picker takes requests; nil for always.
	Ready func() bool
	// MaxMessage is the largest message of a gateway in bytes: above the largest request body that any pool takes,
	// because some gateways send it as one; 257 MiB. What is larger ends the stream.
	MaxMessage int
	// ConnectionAge is the maximum age of a connection: the gateway is then asked to open another one, so that
	// its requests spread over the current replicas; 5 min, give or take a tenth. Open streams continue.
	ConnectionAge time.Duration
	// MaxConnections is the most connections of gateways; one address can have as many as are free; 1024.
	MaxConnections int
	// RequestIdle is how long a stream can have no traffic until its request is complete, and the time over which a request must arrive at
	// 1 KiB/s; 1 min.
	RequestIdle time.Duration
	// Grace is how long streams can continue after the context has ended; 30 s.
	Grace time.Duration
	Log   logr.Logger
}

// Serve serves gateways on a listener until ctx ends. Then gateways get a GOAWAY, open streams can continue for
// at most the grace period, and the rest are aborted. It closes the listener. The error is nil after an orderly
// end.
func (s *Server) Serve(ctx context.Context, listener net.Listener, o ServeOptions) error {
	o.MaxMessage = cmp.Or(o.MaxMessage, 257<<20)
	o.ConnectionAge = cmp.Or(o.ConnectionAge, 5*time.Minute)
	o.Grace = cmp.Or(o.Grace, 30*time.Second)
	o.RequestIdle = cmp.Or(o.RequestIdle, time.Minute)
	streams := h2stream.New(h2stream.Options{
		Open: func(call *h2stream.Call, out *h2stream.Stream) h2stream.Handler {
			if call.Method == pb.ExternalProcessor_Process_FullMethodName {
				return s.open(call, out, o.Ready)
			}
			return Health{Ready: o.Ready}.open(call.Method, out)
		},
		TLS: o.TLS, MaxMessage: o.MaxMessage, MaxPending: s.options.MaxPending, Budget: s.options.Budget,
		Overload: s.options.Overload, MaxConnections: o.MaxConnections,
		ConnectionAge: o.ConnectionAge, RequestIdle: o.RequestIdle, Keepalive: min(30*time.Second, o.RequestIdle/2), Log: o.Log,
	})
	cut, err := streams.Serve(ctx, listener, o.Grace)
	s.probes.running.Wait()
	if cut > 0 {
		logging.Warn(o.Log, "Streams aborted at the end of the grace period", "grace", o.Grace.String(), "connections", cut)
	}
	if err != nil {
		return fmt.Errorf("serving gateways on %s: %w", listener.Addr(), err)
	}
	return nil
}

// TLS makes the configuration of a server: with the certificate of the files, which are read again when they change, or
// without files with one made now for names. TLS 1.2 is accepted, because it is the newest version that Envoy uses as a
// client by default.
func TLS(f certs.Files, names []string, now time.Time) (*tls.Config, error) {
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"},
		DynamicRecordSizingDisabled: true, // small records are for clients that are far away
	}
	if f.Cert == "" && f.Key == "" {
		own, err := certs.SelfSigned(names, now)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{*own}
		return config, nil
	}
	source := certs.NewSource(f)
	if _, _, err := source.Load(); err != nil {
		return nil, err
	}
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, _, err := source.Load()
		return cert, err
	}
	return config, nil
}

package extproc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/experimental"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"

	"github.com/kvasir-dev/kvasir/internal/certs"
)

// ServeOptions bound what a server takes. Zero values take the defaults.
type ServeOptions struct {
	// TLS of the connections; nil for none.
	TLS *tls.Config
	// Ready tells whether the picker takes requests; nil for always.
	Ready func() bool
	// MaxMessage is the largest message of a gateway in bytes: above the largest request body that any pool takes,
	// because some gateways send it as one; 257 MiB. What is larger ends the stream.
	MaxMessage int
	// ConnectionAge is how old a connection may become before the gateway is told to open another one, so that its
	// requests spread over the replicas there are; 5 min, give or take a tenth. Streams that are open go on.
	ConnectionAge time.Duration
	// Grace is how long streams may go on after the context has ended; 30 s.
	Grace time.Duration
	Log   logr.Logger
}

const (
	// streamWindow and connectionWindow are how many bytes a gateway may send ahead: enough for a long prompt without
	// waiting.
	streamWindow     = 1 << 20
	connectionWindow = 16 << 20
)

// gRPC takes the buffer of a message from pools of a few sizes, the next one above 32 KiB being a mebibyte: too much for
// the pieces of bodies, which have up to 64 KiB. A pool of every power of two costs no more than twice a message.
func init() {
	pool, err := mem.NewBinaryTieredBufferPool(8, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24)
	if err != nil {
		panic(err) // the sizes are constants
	}
	experimental.SetDefaultBufferPool(pool)
}

// Serve serves gateways on a listener until ctx ends. Then gateways are told to go elsewhere, streams that are open may
// go on for at most the grace, and the rest is broken off. It closes the listener. The error is nil after an orderly
// end. There is no limit on streams: each is an HTTP request with its answer.
func (s *Server) Serve(ctx context.Context, listener net.Listener, o ServeOptions) error {
	set(&o.MaxMessage, 257<<20)
	set(&o.ConnectionAge, 5*time.Minute)
	set(&o.Grace, 30*time.Second)
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(o.MaxMessage),
		grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connectionWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: o.ConnectionAge, Time: 30 * time.Second, Timeout: 10 * time.Second,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
	if o.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(o.TLS)))
	}
	server := grpc.NewServer(options...)
	pb.RegisterExternalProcessorServer(server, s)
	healthpb.RegisterHealthServer(server, Health{Ready: o.Ready})

	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		server.Stop()
		return fmt.Errorf("serving gateways on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); server.GracefulStop() }()
	select {
	case <-stopped:
	case <-time.After(o.Grace):
		o.Log.Info("Streams broken off at the end of the grace", "grace", o.Grace.String(), "streams", s.Streams())
		server.Stop()
		<-stopped
	}
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("shutting down on %s: %w", listener.Addr(), err)
	}
	return nil
}

// TLS makes the configuration of a server: with the certificate of the files, which are read again when they change,
// or without files with one made now for names. TLS 1.2 is taken, because it is the most that Envoy speaks as a client
// unless it is told otherwise.
func TLS(f certs.Files, names []string, now time.Time) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}
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

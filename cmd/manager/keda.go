package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/gateway/accept"
	"github.com/kvasir-dev/kvasir/internal/operator/keda"
	"github.com/kvasir-dev/kvasir/internal/rpc"
)

// kedaEvery is how often KEDA's streams look whether a pool has become active.
const kedaEvery = time.Second

// Bounds of what serves KEDA, whose clients are not authenticated without certificates. KEDA's operator and its metrics server have a
// connection each, with a stream for each pool and short calls.
const (
	kedaConnections = 32
	kedaStreams     = 512
	kedaMessage     = 64 << 10 // bytes
	kedaHeader      = 16 << 10 // bytes of a call
	// kedaConnect is the time until a connection can be used. A connection without a call for kedaIdle is closed, and one that answers no
	// ping for kedaTimeout, after kedaSilence.
	kedaConnect, kedaIdle    = 10 * time.Second, 10 * time.Minute
	kedaSilence, kedaTimeout = 30 * time.Second, 10 * time.Second
	// kedaPings is the shortest time between pings of a client.
	kedaPings = 5 * time.Second
)

// bounded are the options of a server with these bounds at a listener, which counts streams as work: idle connections give way.
func bounded(listener *accept.Listener) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxConcurrentStreams(kedaStreams), grpc.MaxRecvMsgSize(kedaMessage), grpc.MaxHeaderListSize(kedaHeader),
		grpc.ConnectionTimeout(kedaConnect),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: kedaIdle, Time: kedaSilence, Timeout: kedaTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: kedaPings, PermitWithoutStream: true}),
		grpc.StreamInterceptor(func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			if from, ok := peer.FromContext(stream.Context()); ok {
				defer listener.Stream(from.Addr)()
			}
			return handler(server, stream)
		}),
	}
}

// kedaServer serves KEDA. It is a manager's Runnable, in every replica: a Service sends calls to any of them.
type kedaServer struct {
	address string
	// certificates is a directory with tls.crt and tls.key; empty for none. With clientCA, a file, clients must show a
	// certificate of it.
	certificates, clientCA string
	sizes                  keda.Sizes
}

// NeedLeaderElection makes it run in all replicas.
func (*kedaServer) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (k *kedaServer) Start(ctx context.Context) error {
	var options []grpc.ServerOption
	if k.certificates != "" {
		credentials, err := rpc.ServerTLS(rpc.Files{
			Cert: filepath.Join(k.certificates, "tls.crt"), Key: filepath.Join(k.certificates, "tls.key"), CA: k.clientCA,
		}, k.clientCA != "")
		if err != nil {
			return fmt.Errorf("serving KEDA: %w", err)
		}
		options = append(options, grpc.Creds(credentials))
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", k.address)
	if err != nil {
		return fmt.Errorf("serving KEDA: %w", err)
	}
	limited := accept.Limit(listener, kedaConnections, nil)
	server := grpc.NewServer(append(options, bounded(limited)...)...)
	keda.RegisterExternalScalerServer(server, &keda.Scaler{Sizes: k.sizes, Every: kedaEvery})
	stopped := context.AfterFunc(ctx, server.Stop)
	defer stopped()
	if err := server.Serve(limited); err != nil {
		return fmt.Errorf("serving KEDA: %w", err)
	}
	return nil
}

// recommended are the sizes that the leader has written into the status of pools. So every replica gives the same answer, and a
// new leader repeats the last one until it has decided.
type recommended struct{ reader client.Reader }

// Size implements keda.Sizes.
func (r recommended) Size(ctx context.Context, name types.NamespacedName) (int, bool) {
	pool := &v1alpha1.InferencePool{}
	if err := r.reader.Get(ctx, name, pool); err != nil || pool.Spec.Autoscaling.MaxReplicas == 0 {
		return 0, false
	}
	size := pool.Status.Autoscaling.RecommendedReplicas
	if size == nil {
		return 0, false
	}
	return int(*size), true
}

// kedaServer is the server that the flags describe.
func (o *options) kedaServer(reader client.Reader) *kedaServer {
	return &kedaServer{address: o.kedaAddress, certificates: o.kedaCerts, clientCA: o.kedaClientCA, sizes: recommended{reader}}
}

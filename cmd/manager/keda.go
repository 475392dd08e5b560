package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/kvasir-dev/kvasir/internal/operator/keda"
)

// kedaEvery is how often KEDA's streams look whether a pool has become active.
const kedaEvery = time.Second

// kedaServer serves KEDA. It is a manager's Runnable, in the replica that leads: the others decide nothing.
type kedaServer struct {
	address string
	sizes   keda.Sizes
}

// Start implements manager.Runnable.
func (k *kedaServer) Start(ctx context.Context) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", k.address)
	if err != nil {
		return fmt.Errorf("serving KEDA: %w", err)
	}
	server := grpc.NewServer()
	keda.RegisterExternalScalerServer(server, &keda.Scaler{Sizes: k.sizes, Every: kedaEvery})
	stopped := context.AfterFunc(ctx, server.Stop)
	defer stopped()
	if err := server.Serve(listener); err != nil {
		return fmt.Errorf("serving KEDA: %w", err)
	}
	return nil
}

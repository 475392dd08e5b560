package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// Bounds of the small servers.
const (
	headerTimeout = 5 * time.Second
	maxHeader     = 8 << 10
	// maxConnections is a little more than can wait.
	maxConnections = 300
)

// serve serves HTTP until ctx ends; then it aborts running requests.
func serve(ctx context.Context, addr string, handler http.Handler, log logr.Logger) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	log.Info("Serving", "address", l.Addr().String())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: maxHeader, IdleTimeout: headerTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(limit(l, maxConnections)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving on %s: %w", addr, err)
	}
	return nil
}

// limit bounds the connections that a listener has accepted and that are open.
func limit(l net.Listener, most int) net.Listener {
	return &limited{Listener: l, free: make(chan struct{}, most), closed: make(chan struct{})}
}

type limited struct {
	net.Listener
	free   chan struct{}
	once   sync.Once
	closed chan struct{}
}

// Accept implements net.Listener. It waits for a place first.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.free <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.free
		return nil, err
	}
	return &place{Conn: c, free: l.free}, nil
}

// Close implements net.Listener.
func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// place is a connection that frees its place when it is closed.
type place struct {
	net.Conn
	once sync.Once
	free chan struct{}
}

// Close implements net.Conn.
func (p *place) Close() error {
	p.once.Do(func() { <-p.free })
	return p.Conn.Close()
}

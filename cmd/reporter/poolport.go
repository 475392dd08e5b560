package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/reporter"
	"github.com/kvasir-dev/kvasir/internal/sidecar"
)

// poolPort is the part of the options that is about the pool's port in front of an engine that decodes.
type poolPort struct {
	address   string
	engine    string // URL
	certs     certs.Files
	memory    int // MiB
	requests  int
	host      string // host:port of engine
	engineTLS bool
}

// needs is how much more memory the process needs for it, MiB: of bodies, and of what is garbage before it is collected.
func (p *poolPort) needs() int {
	if p.address == "" {
		return 0
	}
	return 2 * p.memory
}

// check settles where the engine is.
func (p *poolPort) check() error {
	switch {
	case p.address == "" && p.engine != "":
		return errors.New("--serve-engine needs --serve-address")
	case p.address == "" && p.certs != (certs.Files{}):
		return errors.New("--serve-cert and --serve-key need --serve-address")
	case p.address == "":
		return nil
	case p.engine == "":
		return errors.New("--serve-address needs --serve-engine")
	case (p.certs.Cert == "") != (p.certs.Key == ""):
		return errors.New("--serve-cert and --serve-key need each other")
	case p.memory < 1 || p.requests < 1:
		return errors.New("--serve-memory and --serve-requests must be at least 1")
	}
	if _, _, err := net.SplitHostPort(p.address); err != nil {
		return fmt.Errorf("--serve-address: %w", err)
	}
	u, err := url.Parse(p.engine)
	if err != nil || u.Hostname() == "" || u.Port() == "" || u.Scheme != "http" && u.Scheme != "https" || u.Path != "" && u.Path != "/" {
		return fmt.Errorf("--serve-engine %q is not http://HOST:PORT", p.engine)
	}
	p.host, p.engineTLS = u.Host, u.Scheme == "https"
	return nil
}

// wires are how engines are spoken to. Their CA is read again from time to time.
type wires struct{ engine, peers endpoint.Wire }

func (o *options) readWires() (*wires, error) {
	w := o.engineTLS
	if o.engineCA != "" {
		ca, err := os.ReadFile(o.engineCA)
		if err != nil {
			return nil, fmt.Errorf("reading the CA of the engine: %w", err)
		}
		w.CA = string(ca)
	}
	w.TLS = true
	out := &wires{}
	if o.poolPort.engineTLS {
		out.engine = w
	}
	if o.poolPort.certs.Cert != "" { // then the pool has TLS
		out.peers = w
	}
	return out, nil
}

// wiresEvery is how often the CA of engines is read.
const wiresEvery = 10 * time.Second

// newSidecar makes the server of the pool's port.
func (o *options) newSidecar(ctx context.Context, r *reporter.Reporter, log logr.Logger) (*sidecar.Server, error) {
	first, err := o.readWires()
	if err != nil {
		return nil, err
	}
	var present atomic.Pointer[wires]
	present.Store(first)
	go func() {
		tick := time.NewTicker(wiresEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if again, err := o.readWires(); err == nil {
					present.Store(again)
				}
			}
		}
	}()
	return sidecar.New(sidecar.Options{
		Engine: o.poolPort.host, Pod: o.config.Pod, Seeds: r.Seeds, Log: log.WithName("sidecar"),
		Memory: int64(o.poolPort.memory) << 20, MaxRequests: o.poolPort.requests,
		Wires: func() (engine, peers endpoint.Wire) { w := present.Load(); return w.engine, w.peers },
	}), nil
}

// servePool serves the pool's port until ctx ends.
func (o *options) servePool(ctx context.Context, s *sidecar.Server, log logr.Logger) error {
	var config *tls.Config
	if o.poolPort.certs.Cert != "" {
		config = certs.NewServer(o.poolPort.certs, false, log).Config()
	}
	listen := func() (net.Listener, error) { return new(net.ListenConfig).Listen(ctx, "tcp", o.poolPort.address) }
	return s.Serve(ctx, listen, config, o.drainDeadline)
}

package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/dashboard"
	"github.com/kvasir-dev/kvasir/internal/gateway/extproc"
	"github.com/kvasir-dev/kvasir/internal/gateway/httpproxy"
	"github.com/kvasir-dev/kvasir/internal/metrics"
	"github.com/kvasir-dev/kvasir/internal/oidc"
	"github.com/kvasir-dev/kvasir/internal/overload"
	"github.com/kvasir-dev/kvasir/internal/version"
)

// listeners of the process.
type listeners struct {
	proxy, health, metrics, reports net.Listener
	gateways                        []net.Listener // one per port
}

func (l *listeners) close() {
	for _, one := range append(l.gateways, l.proxy, l.health, l.metrics, l.reports) {
		if one != nil {
			_ = one.Close()
		}
	}
}

// addressOf a listener, for people.
func addressOf(l net.Listener) string {
	if l == nil {
		return "none"
	}
	return l.Addr().String()
}

// listen opens all listeners, or none.
func listen(ctx context.Context, o *options) (*listeners, error) {
	l := &listeners{}
	for _, one := range []struct {
		flag, address string
		into          *net.Listener
	}{
		{"proxy-address", o.proxyAddress, &l.proxy},
		{"health-address", o.healthAddress, &l.health},
		{"metrics-address", o.metricsAddress, &l.metrics},
		{"report-address", o.reports.address, &l.reports},
	} {
		if one.into == &l.reports && !o.reports.served() && !o.peers.wanted() {
			continue
		}
		if one.into == &l.proxy && one.address == "" {
			continue
		}
		listener, err := listenAt(ctx, one.flag, one.address)
		if err != nil {
			l.close()
			return nil, err
		}
		*one.into = listener
	}
	for _, port := range o.gateways.ports {
		flag := "ext-proc-address"
		if port.pool != "" {
			flag = "ext-proc " + port.pool
		}
		listener, err := listenAt(ctx, flag, port.address)
		if err != nil {
			l.close()
			return nil, err
		}
		l.gateways = append(l.gateways, listener)
	}
	return l, nil
}

// listenAt listens at the address of a flag.
func listenAt(ctx context.Context, flag, address string) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	wrong := (*net.AddrError)(nil)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("--%s: another program listens at %s: end it, or choose another port", flag, address)
	case errors.As(err, &wrong):
		return nil, fmt.Errorf("--%s: %q is not HOST:PORT, such as 127.0.0.1:8080, or :8080 for all addresses: %s", flag, address, wrong.Err)
	case err != nil:
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return listener, nil
}

// serving is what serves requests, and the limits for them.
type serving struct {
	plan     plan
	budget   *budget.Budget // of everything that clients make the picker hold
	mirrors  *budget.Budget // of copies of their requests for mirrors
	overload *overload.Manager
	proxy    *httpproxy.Proxy
	proxyTLS *proxyTLS         // nil without TLS
	issuers  *oidc.Registry    // of clients' tokens
	gateways []*extproc.Server // one per port
	ready    *readiness
	// informed is closed by inform, at the latest when the first objects have been applied.
	informed chan struct{}
	inform   func()
}

// run serves until ctx ends and the requests under way have ended, or the time for them has. It closes the listeners.
//
// The order of the end: not ready, while requests are still accepted from clients that have not noticed yet; the proxy accepts
// no more and waits; then health and metrics end, and the streams.
func run(ctx context.Context, o *options, l *listeners, log logr.Logger) error {
	defer l.close()
	log.Info("Starting", "version", version.Get().String())
	root, random, err := keyRoot(o.keyFile)
	if err != nil {
		return err
	}
	if random && o.source.inCluster() {
		root = nil // replicas must share it: the pool's Secret has it
	} else if random {
		log.Info("No --key-file: pools without a Secret get a random key root, which replicas do not share")
	}
	if err := checkModelRoot(o.modelRoot); err != nil {
		log.Error(err, "Tokenizers of pools cannot be read") // a volume can be mounted later
	}
	cluster, err := o.source.config(log)
	if err != nil {
		return err
	}
	// it reads what is embedded
	settings, issuers := o.settings(root), oidc.NewRegistry(log.WithName("tokens"))
	settings.Tokens = issuers.Checkers
	source, err := o.source.open(cluster, settings, log.WithName("watch"))
	if err != nil {
		return err
	}
	kept, closeRecords, err := openRecords(ctx, o, log)
	if err != nil {
		return err
	}
	defer closeRecords()
	tracer, closeTracing, err := openTracing(ctx, &o.tracing, log)
	if err != nil {
		return err
	}
	defer closeTracing()
	a := newApp(log, o, kept, tracer)
	a.issuers = issuers
	defer a.close()
	if err := a.newSync(o); err != nil {
		return err
	}
	guard, err := newGuard(o, cluster, a.reporters, log.WithName("metrics"))
	if err != nil {
		return err
	}
	metricsTLS, err := o.metricsTLS()
	if err != nil {
		return err
	}
	if metricsTLS != nil {
		l.metrics = tls.NewListener(l.metrics, metricsTLS)
	}
	if a.proxyTLS, err = newProxyTLS(o, log.WithName("http")); err != nil {
		return err
	}
	a.newGateways(&o.gateways)
	gatewayTLS, err := o.gateways.serveTLS()
	if err != nil {
		return fmt.Errorf("gateways: %w", err)
	}
	registry, err := metrics.NewRegistry(a.collectors()...)
	if err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	log.Info("Serving", "proxy", addressOf(l.proxy), "health", l.health.Addr().String(), "metrics", l.metrics.Addr().String(),
		"tls", a.proxyTLS != nil)
	for i, port := range o.gateways.ports {
		log.Info("Serving gateways", "address", l.gateways[i].Addr().String(), "pool", cmp.Or(port.pool, "all"), "tls", gatewayTLS != nil)
	}

	return a.serveAll(ctx, o, l, servedParts{
		gatewayTLS: gatewayTLS,
		metrics:    dashboard.WithPage(guard.protect(a.metricsHandler(registry, o.profiles(guard)), o.metricsHosts)),
		follow:     func(ctx context.Context) { source.Follow(ctx, a.apply) },
	})
}

// servedParts are what serveAll serves besides the app itself.
type servedParts struct {
	gatewayTLS *tls.Config
	metrics    http.Handler
	follow     func(context.Context) // applies objects until its context ends
}

// serveAll serves until ctx ends, in the order that run documents.
func (a *app) serveAll(ctx context.Context, o *options, l *listeners, parts servedParts) error {
	// Each part ends a step after the one before: the signal, the proxy, what supports it.
	group, signal := errgroup.WithContext(ctx)
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	support, stopSupport := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSupport()
	group.Go(func() error {
		<-signal.Done()
		a.ready.drain()
		a.dialIn.close()
		a.log.Info("Draining", "lameDuck", o.lameDuck.String(), "timeout", o.drainTimeout.String())
		select {
		case <-time.After(o.lameDuck):
		case <-support.Done(): // the proxy has failed
		}
		stopServing()
		return nil
	})
	group.Go(func() error {
		defer stopSupport()
		// Clients that connect earlier wait: without objects the answer would be that the model does not exist.
		select {
		case <-a.informed:
		case <-serving.Done():
		}
		return a.serve(serving, l, parts.gatewayTLS, o)
	})
	small := httpproxy.ServeOptions{Grace: supportGrace, MaxConnections: supportConnections, Brief: true, MaxStreams: supportStreams,
		MaxRequests: healthRequests, Stall: supportStall, MaxHeaderBytes: supportHeader, Budget: budget.NewDivided(supportMemory, time.Now),
		Log: a.log.WithName("http")}
	health := small
	health.MaxStreams, health.Stall, health.Port = healthStreams, healthStall, a.overload.Port("health")
	health.ReadHeaderTimeout, health.IdleTimeout = healthIdle, healthIdle
	group.Go(func() error { return httpproxy.Serve(support, l.health, a.healthHandler(), health) })
	pages := small
	pages.MaxRequests, pages.Budget, pages.Port = pageRequests, budget.NewDivided(supportMemory, time.Now), a.overload.Port("metrics")
	group.Go(func() error { return httpproxy.Serve(support, l.metrics, parts.metrics, pages) })
	group.Go(func() error { return a.serveSync(support, l.reports) })
	group.Go(func() error { a.publishToPeers(support); return nil })
	group.Go(func() error { parts.follow(support); return nil })
	group.Go(func() error { a.keepStatus(support); return nil })
	group.Go(func() error { a.keepOverload(support); return nil })
	group.Go(func() error { a.followSources(support); return nil })
	group.Go(func() error { a.keepDoubt(support); return nil })
	if a.reach != nil {
		group.Go(func() error { a.followReach(support); return nil })
	}
	err := group.Wait()
	a.log.Info("Stopped")
	return err
}

// serve serves requests, of clients and of gateways, until ctx ends and those under way have ended.
func (a *app) serve(ctx context.Context, l *listeners, gatewayTLS *tls.Config, o *options) error {
	group, ctx := errgroup.WithContext(ctx)
	if l.proxy == nil && len(l.gateways) == 0 {
		<-ctx.Done()
	}
	if l.proxy != nil {
		group.Go(func() error {
			return httpproxy.Serve(ctx, l.proxy, a.proxy, httpproxy.ServeOptions{Grace: o.drainTimeout, MaxConnections: a.plan.connections,
				Budget: a.budget, Overload: a.overload, Port: a.overload.Port("proxy"), TLS: a.proxyTLS.of(), Log: a.log.WithName("http")})
		})
	}
	for i := range l.gateways {
		group.Go(func() error { return a.serveGateways(ctx, i, l.gateways[i], gatewayTLS, o) })
	}
	return group.Wait()
}

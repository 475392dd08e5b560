package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/gateway/extproc"
	"github.com/kvasir-dev/kvasir/internal/gateway/request"
)

// gatewayOptions are the flags about gateways.
type gatewayOptions struct {
	// ports where gateways are served.
	ports []gatewayPort
	// address is where they are served for all pools.
	address    string
	plaintext  bool
	tls        certs.Files
	service    string
	maxMessage int
	age        time.Duration
	// compat shows metrics under other names, too.
	compat bool
}

// gatewayPort is where gateways are served for one pool, or for all.
type gatewayPort struct {
	pool    string // namespace/name; empty for all
	address string
}

// add takes a value of --ext-proc.
func (o *gatewayOptions) add(value string) error {
	pool, address, ok := strings.Cut(value, "=")
	if namespace, name, slash := strings.Cut(pool, "/"); !ok || !slash || namespace == "" || name == "" {
		return errors.New("want NAMESPACE/POOL=ADDRESS")
	}
	o.ports = append(o.ports, gatewayPort{pool: pool, address: address})
	return nil
}

func (o *gatewayOptions) check() error {
	switch {
	case (o.tls.Cert == "") != (o.tls.Key == ""):
		return errors.New("--ext-proc-cert and --ext-proc-key need each other")
	case o.plaintext && o.tls.Cert != "":
		return errors.New("--ext-proc-plaintext excludes a certificate")
	case o.maxMessage < 1<<20:
		return fmt.Errorf("--ext-proc-max-message %d: want at least 1 MiB", o.maxMessage)
	case o.age <= 0:
		return fmt.Errorf("--ext-proc-connection-age %s: want more than 0", o.age)
	}
	if o.address != "" {
		o.ports = append(o.ports, gatewayPort{address: o.address})
	}
	return nil
}

// names are those of a certificate made at the start.
func (o *gatewayOptions) names() []string {
	names := []string{"localhost", "127.0.0.1", "::1"}
	if service, namespace, ok := strings.Cut(o.service, "."); ok {
		names = append(names, certs.ServiceNames(service, namespace)...)
	} else if o.service != "" {
		names = append(names, o.service)
	}
	return names
}

// serveTLS makes the configuration of the ports; nil for none.
func (o *gatewayOptions) serveTLS() (*tls.Config, error) {
	if o.plaintext {
		return nil, nil // nil is a configuration
	}
	return extproc.TLS(o.tls, o.names(), time.Now())
}

// newGateways makes a server for each port.
func (a *app) newGateways(o *gatewayOptions) {
	observer := request.Observer(a.requests.Gateways())
	if a.compat != nil {
		observer = a.compat.Watch(observer)
	}
	for _, port := range o.ports {
		a.gateways = append(a.gateways, extproc.New(extproc.Options{
			Picker: a.picker, Budget: a.budget, Overload: a.overload, Pool: port.pool, Observer: observer,
			Spans: a.tracer, Usage: a.usageLog(), Log: a.log.WithName("extproc"),
		}))
	}
}

// serveGateways serves on one port until ctx ends.
func (a *app) serveGateways(ctx context.Context, i int, l net.Listener, config *tls.Config, o *options) error {
	return a.gateways[i].Serve(ctx, l, extproc.ServeOptions{
		TLS: config, Ready: a.isReady, MaxMessage: o.gateways.maxMessage, MaxConnections: max(1, a.plan.gateways/len(a.gateways)),
		ConnectionAge: o.gateways.age,
		Grace:         o.drainTimeout, Log: a.log.WithName("extproc"),
	})
}

func (a *app) isReady() bool { return a.ready.status() == "" }

// withHealthChecks answers gRPC's health checks on the same port as the others.
func withHealthChecks(server *grpc.Server, others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			server.ServeHTTP(w, r)
			return
		}
		others.ServeHTTP(w, r)
	})
}

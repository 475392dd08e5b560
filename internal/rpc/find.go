package rpc

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/kvasir-dev/kvasir/internal/hosts"
)

// Finder finds the addresses (host:port) of all picker replicas: reporters report to each of them, and they to each other.
type Finder func(ctx context.Context) ([]string, error)

// maxPickers bounds the replicas.
const maxPickers = 64

// List is a Finder that always finds the same.
func List(addrs ...string) Finder {
	return func(context.Context) ([]string, error) { return addrs, nil }
}

// findTimeout bounds one look-up.
const findTimeout = 5 * time.Second

// Lookup is a Finder that asks the name service for all addresses behind a name, such as that of a headless Service: those of IPv4,
// or of IPv6 if there are none.
func Lookup(resolver *net.Resolver, addr string) (Finder, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("address %q of pickers: %w", addr, err)
	}
	return func(ctx context.Context) ([]string, error) {
		ctx, cancel := context.WithTimeout(ctx, findTimeout)
		defer cancel()
		ips, err := hosts.Lookup(ctx, resolver, host)
		if err != nil {
			return nil, err
		}
		var addrs []string
		for _, ip := range ips {
			addrs = append(addrs, net.JoinHostPort(ip.String(), port))
		}
		return addrs[:min(len(addrs), maxPickers)], nil
	}, nil
}

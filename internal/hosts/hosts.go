// Package hosts resolves host names whose addresses are followed over time: of engines, and of pickers behind a headless Service.
package hosts

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
)

// Lookup returns the addresses of a host, sorted. Where a name has addresses of both kinds, those of IPv4 count: they are other
// ways to the same processes.
//
// It fails if the name has no address, and also if the name service does not answer about one kind before it is known that there is
// none of IPv4: an answer about IPv6 alone would replace all known addresses by others of the same processes.
func Lookup(ctx context.Context, resolver *net.Resolver, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip.Unmap()}, nil
	}
	found, err := resolver.LookupNetIP(ctx, "ip4", host)
	if none := (*net.DNSError)(nil); errors.As(err, &none) && none.IsNotFound || isAddrError(err) {
		found, err = resolver.LookupNetIP(ctx, "ip6", host)
	}
	if err != nil {
		return nil, err
	}
	for i := range found {
		found[i] = found[i].Unmap()
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return slices.Compact(found), nil
}

// isAddrError reports whether a name has addresses, and none of the kind that was asked for.
func isAddrError(err error) bool {
	none := (*net.AddrError)(nil)
	return errors.As(err, &none)
}

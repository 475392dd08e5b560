package hosts

import (
	"errors"
	"net/netip"
	"syscall"
)

// metadata are addresses of metadata services that are not link-local: of AWS over IPv6, Alibaba, Oracle and Azure.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("192.0.0.192"),
	netip.MustParseAddr("168.63.129.16"),
}

var (
	nat64   = netip.MustParsePrefix("64:ff9b::/96")   // has an address of IPv4 in its last four bytes
	nat64To = netip.MustParsePrefix("64:ff9b:1::/48") // likewise, in private networks
)

// Plain is an address without its zone, and as one of IPv4 where it stands for one.
func Plain(ip netip.Addr) netip.Addr {
	ip = ip.Unmap().WithZone("")
	if nat64.Contains(ip) || nat64To.Contains(ip) {
		b := ip.As16()
		ip = netip.AddrFrom4([4]byte(b[12:]))
	}
	return ip
}

// Forbidden reports whether a service that a user names is not connected to at an address: link-local ones, and those at which clouds
// serve credentials.
func Forbidden(ip netip.Addr) bool {
	ip = Plain(ip)
	for _, one := range metadata {
		if ip == one {
			return true
		}
	}
	return ip.IsUnspecified() || ip.IsMulticast() || ip.IsLinkLocalUnicast()
}

// Control is for net.Dialer: it refuses connections to forbidden addresses, also where a name leads there.
func Control(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err == nil && Forbidden(to.Addr()) {
		return errors.New("a link-local address, or one of a metadata service, is not connected to")
	}
	return err
}

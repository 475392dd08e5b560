package budget

import (
	"net"
	"net/netip"
)

// Client is the owner of what a client holds whose tenant is not known: its address, without the port. Of IPv6 it is the network of 64
// bits, in which each machine can have as many addresses as it likes. Addresses that are none are owners as they are.
func Client(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if ip = ip.Unmap(); ip.Is4() {
		return ip.String()
	}
	network, err := ip.WithZone("").Prefix(64)
	if err != nil {
		return host
	}
	return network.String()
}

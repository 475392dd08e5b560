package budget

import (
	"net"
	"net/netip"
)

// translated are IPv4 addresses as a stateless translator shows them (RFC 6052).
var translated = netip.MustParsePrefix("64:ff9b::/96")

// Host is an address without the port.
func Host(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

// Client is the owner of what a client holds whose tenant is not known, connections, requests and memory: its address, without the port.
// Of IPv6 it is the network of 64 bits, in which each machine can have as many addresses as it likes. Addresses that are none are owners
// as they are.
func Client(address string) string {
	host := Host(address)
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if ip = ip.Unmap(); ip.Is4() {
		return ip.String()
	}
	if translated.Contains(ip) {
		bytes := ip.As16()
		return netip.AddrFrom4([4]byte(bytes[12:])).String()
	}
	network, err := ip.WithZone("").Prefix(64)
	if err != nil {
		return host
	}
	return network.String()
}

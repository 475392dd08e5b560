package freeport

import (
	"net"
	"strconv"
	"testing"
)

// TestPortsAreFreeAndGivenOnce: what is listened on, or was given before, is not given.
func TestPortsAreFreeAndGivenOnce(t *testing.T) {
	seen := map[int]bool{}
	for range 200 {
		const n = 3
		from, err := Consecutive("127.0.0.1", n)
		if err != nil {
			t.Fatal(err)
		}
		for port := from; port < from+n; port++ {
			if seen[port] || port < first || port >= end {
				t.Fatalf("port %d", port)
			}
			seen[port] = true
		}
	}
	addresses, err := Addresses("127.0.0.1", 200)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(port)
		if err != nil || seen[n] {
			t.Fatal(address, err)
		}
		seen[n] = true
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		if isFree("127.0.0.1", n) {
			t.Errorf("%s is listened on", address)
		}
	}
	if _, err := Addresses("192.0.2.1", 1); err == nil {
		t.Error("ports of an address that this machine does not have")
	}
}

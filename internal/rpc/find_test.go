package rpc

import (
	"context"
	"net"
	"testing"
)

func TestPickersAreFoundByName(t *testing.T) {
	find, err := Lookup(net.DefaultResolver, "localhost:9004")
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := find(context.Background())
	if err != nil || len(addrs) == 0 {
		t.Fatalf("%v, %v", addrs, err)
	}
	for _, addr := range addrs {
		if host, port, err := net.SplitHostPort(addr); err != nil || port != "9004" || net.ParseIP(host) == nil {
			t.Errorf("found %q", addr)
		}
	}
	if _, err := Lookup(net.DefaultResolver, "localhost"); err == nil {
		t.Error("a name without a port was taken")
	}
}

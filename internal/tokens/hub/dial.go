package hub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvasir-dev/kvasir/internal/hosts"
)

// dialTimeout bounds the opening of a connection, and its TLS handshake.
const dialTimeout = 10 * time.Second

// reach is how near an address is to the picker.
type reach int32

const (
	public reach = iota
	private
	loopback
	// forbidden addresses are no hub's: link-local ones, and those at which clouds serve credentials.
	forbidden
)

var carrier = netip.MustParsePrefix("100.64.0.0/10") // of providers, and of pods in some clusters

func reachOf(ip netip.Addr) reach {
	if hosts.Forbidden(ip) {
		return forbidden
	}
	switch ip = hosts.Plain(ip); {
	case ip.IsLoopback():
		return loopback
	case ip.IsPrivate(), carrier.Contains(ip):
		return private
	}
	return public
}

// dialer connects to the hub, and to hosts to which it redirects: to those only if their address is not nearer to the picker than the
// hub's own. A public hub can thus not make the picker ask what is in its network.
type dialer struct {
	endpoint string       // host:port
	hub      atomic.Int32 // the least reach of the hub's addresses that were connected to, and 1; 0 before the first
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	one := net.Dialer{Timeout: dialTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		return d.allow(strings.ToLower(address))
	}}
	if !strings.EqualFold(address, d.endpoint) {
		return one.DialContext(ctx, network, address)
	}
	one.Control = func(_, address string, _ syscall.RawConn) error { return toHub(address) }
	conn, err := one.DialContext(ctx, network, address)
	if err == nil {
		d.reached(conn.RemoteAddr())
	}
	return conn, err
}

// reached keeps how near the hub is. A name that leads to another address later does not bring it nearer.
func (d *dialer) reached(hub net.Addr) {
	to, err := netip.ParseAddrPort(hub.String())
	if err != nil {
		return
	}
	now := int32(reachOf(to.Addr())) + 1
	for before := d.hub.Load(); before == 0 || now < before; before = d.hub.Load() {
		if d.hub.CompareAndSwap(before, now) {
			return
		}
	}
}

var errForbidden = errors.New("a link-local address, or one of a metadata service, is not connected to")

// toHub checks an address of the hub itself.
func toHub(address string) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if reachOf(to.Addr()) == forbidden {
		return errForbidden
	}
	return nil
}

// throughProxy checks a host to which the hub has redirected and that a proxy connects to. The addresses of names are the proxy's to
// judge: it alone resolves them.
func throughProxy(host string) error {
	if ip, err := netip.ParseAddr(host); err == nil && reachOf(ip) != public {
		return fmt.Errorf("a redirect to an address that is not public (%s) is not followed through a proxy", ip)
	}
	return nil
}

// allow checks an address of a host to which the hub has redirected.
func (d *dialer) allow(address string) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	switch r := reachOf(to.Addr()); {
	case r == forbidden:
		return errForbidden
	case r > reach(d.hub.Load()-1):
		return fmt.Errorf("a redirect from a hub elsewhere to an address of this network or machine (%s) is not followed", to.Addr())
	}
	return nil
}

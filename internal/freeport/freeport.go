// Package freeport finds ports for programs that are about to be started.
package freeport

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are taken from below those that kernels give to outgoing connections, so that no connection takes one between its being found
// and its being used, nor while a program that has it is restarted.
const first, end = 10_000, 32_000

// drawn are the ports that this process was given. At each a UDP socket stays bound until the process ends, so that no other process is
// given the port before a program listens on it.
var drawn = struct {
	sync.Mutex
	ports map[int]net.PacketConn // guarded by Mutex
}{ports: map[int]net.PacketConn{}}

// Consecutive returns the first of n consecutive TCP ports that no process listens on at the host, an IP address. A port is given only
// once, and to one of the processes that ask for it here. Others might still take it before it is used.
func Consecutive(host string, n int) (int, error) {
	return consecutive(host, n, first+rand.IntN(end-first))
}

// consecutive tries a port and then those behind it.
func consecutive(host string, n, at int) (int, error) {
	drawn.Lock()
	defer drawn.Unlock()
	for tried := 0; tried < end-first; tried++ {
		if at+n > end {
			at = first
		}
		free := 0
		for free < n && drawn.ports[at+free] == nil && isFree(host, at+free) {
			bound := bind(host, at+free)
			if bound == nil {
				break
			}
			drawn.ports[at+free] = bound
			free++
		}
		if free == n {
			return at, nil
		}
		for port := at; port < at+free; port++ {
			_ = drawn.ports[port].Close()
			delete(drawn.ports, port)
		}
		at += free + 1
	}
	return 0, fmt.Errorf("no %d consecutive ports of %s from %d to %d are free", n, host, first, end-1)
}

// Addresses returns n addresses of the host at which no process listens, each with a port.
func Addresses(host string, n int) ([]string, error) {
	all := make([]string, n)
	for i := range all {
		port, err := Consecutive(host, 1)
		if err != nil {
			return nil, err
		}
		all[i] = net.JoinHostPort(host, strconv.Itoa(port))
	}
	return all, nil
}

func isFree(host string, port int) bool {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	return err == nil && l.Close() == nil
}

// bind returns a UDP socket at a port, or nil if there is one already.
func bind(host string, port int) net.PacketConn {
	bound, err := new(net.ListenConfig).ListenPacket(context.Background(), "udp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil
	}
	return bound
}

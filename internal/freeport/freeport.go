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

// drawn are the ports that this process was given.
var drawn = struct {
	sync.Mutex
	ports map[int]bool // guarded by Mutex
}{ports: map[int]bool{}}

// Consecutive returns the first of n consecutive TCP ports that no process listens on at the host, an IP address. A process is given
// a port only once. Another process might still take it before it is used.
func Consecutive(host string, n int) (int, error) {
	drawn.Lock()
	defer drawn.Unlock()
	at := first + rand.IntN(end-first)
	for tried := 0; tried < end-first; tried++ {
		if at+n > end {
			at = first
		}
		free := 0
		for free < n && !drawn.ports[at+free] && isFree(host, at+free) {
			free++
		}
		if free == n {
			for port := at; port < at+n; port++ {
				drawn.ports[port] = true
			}
			return at, nil
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

package main

import (
	"net"
	"sync"
)

// limit bounds the connections that a listener has accepted and that are open.
func limit(l net.Listener, most int) net.Listener {
	return &limited{Listener: l, free: make(chan struct{}, most), closed: make(chan struct{})}
}

type limited struct {
	net.Listener
	free   chan struct{}
	once   sync.Once
	closed chan struct{}
}

// Accept implements net.Listener. It waits for a place first.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.free <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.free
		return nil, err
	}
	return &place{Conn: c, free: l.free}, nil
}

// Close implements net.Listener.
func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// place is a connection that frees its place when it is closed.
type place struct {
	net.Conn
	once sync.Once
	free chan struct{}
}

// Close implements net.Conn.
func (p *place) Close() error {
	p.once.Do(func() { <-p.free })
	return p.Conn.Close()
}

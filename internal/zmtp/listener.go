package zmtp

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// listener accepts connections, shakes hands with each in its own goroutine, and hands it to serve.
type listener struct {
	cfg Config
	ln  net.Listener
	// serve owns a connection until it returns; then the connection is closed.
	serve func(*conn)

	// accepting ends first: no new connections and no unfinished handshakes. serving ends last.
	accepting, serving         context.Context
	stopAccepting, stopServing context.CancelFunc
	closing                    sync.Once
	workers                    sync.WaitGroup

	mu    sync.Mutex
	peers int            // guarded by mu
	hosts map[string]int // guarded by mu; peers by address, without the port
}

// listen binds addr. Serving begins with start.
func (c Config) listen(addr string) (*listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	addr = tcpAddress(addr)
	ln, err := lc.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", addr, err)
	}
	l := &listener{cfg: c.withDefaults(), ln: ln, hosts: map[string]int{}}
	l.accepting, l.stopAccepting = context.WithCancel(context.Background())
	l.serving, l.stopServing = context.WithCancel(context.Background())
	return l, nil
}

func (l *listener) start(socketType string, serve func(*conn)) {
	l.serve = serve
	l.workers.Go(func() { l.accept(socketType) })
}

func (l *listener) addr() string { return l.ln.Addr().String() }

func (l *listener) accept(socketType string) {
	for {
		nc, err := l.ln.Accept()
		switch {
		case l.accepting.Err() != nil:
			if err == nil {
				_ = nc.Close()
			}
			return
		case err != nil:
			// Out of file descriptors, most likely: wait until some are free.
			select {
			case <-l.accepting.Done():
			case <-time.After(50 * time.Millisecond):
			}
		case l.cfg.Allow != nil && !l.cfg.Allow(nc.RemoteAddr().String()):
			_ = nc.Close()
		case !l.admit(budget.Host(nc.RemoteAddr().String())):
			_ = nc.Close()
			if l.cfg.Full != nil {
				l.cfg.Full(nc.RemoteAddr().String())
			}
		default:
			l.workers.Go(func() { l.work(nc, socketType) })
		}
	}
}

func (l *listener) admit(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.peers >= l.cfg.MaxPeers || l.cfg.MaxPeersOfHost > 0 && l.hosts[host] >= l.cfg.MaxPeersOfHost {
		return false
	}
	l.peers++
	l.hosts[host]++
	return true
}

// leave is the end of admit.
func (l *listener) leave(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.peers--
	if l.hosts[host]--; l.hosts[host] == 0 {
		delete(l.hosts, host)
	}
}

func (l *listener) work(nc net.Conn, socketType string) {
	defer l.leave(budget.Host(nc.RemoteAddr().String()))
	k, err := l.cfg.handshake(l.accepting, nc, socketType)
	if err != nil {
		return
	}
	k.attach(l.serving)
	defer k.close()
	l.serve(k)
}

// stop ends accepting and waits for nothing.
func (l *listener) stop() {
	l.stopAccepting()
	l.closing.Do(func() { _ = l.ln.Close() })
}

// close ends everything and waits for it.
func (l *listener) close() {
	l.stop()
	l.stopServing()
	l.workers.Wait()
}

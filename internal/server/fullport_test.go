package server

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestHealthAnswersWhileItsPortIsFull, and so do metrics: however many addresses hold connections, and whatever they have sent.
func TestHealthAnswersWhileItsPortIsFull(t *testing.T) {
	for name, sent := range map[string]string{
		"nothing":         "",
		"half a header":   "GET /healthz HTTP/1.1\r\nHost: x\r\n",
		"half a preface":  "PRI * HTTP/2.0\r\n\r\n",
		"no body":         "GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
		"a whole request": "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			p := runOn(t, t.TempDir())
			p.eventually("it is healthy", func() bool { status, _ := p.get(p.listeners.health, "/healthz"); return status == http.StatusOK })
			for _, l := range []net.Listener{p.listeners.health, p.listeners.metrics} {
				path := "/healthz"
				if l == p.listeners.metrics {
					path = "/metrics"
				}
				for i := range 3 * supportConnections {
					// Each address holds as many as it can.
					from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i/24))}, Timeout: patience}
					c, err := from.Dial("tcp", l.Addr().String())
					if err != nil {
						t.Skip("no other addresses of the loopback network: ", err)
					}
					t.Cleanup(func() { _ = c.Close() })
					_, _ = io.WriteString(c, sent)
				}
				for i := range 20 {
					client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
					r, err := client.Get(fmt.Sprintf("http://%s%s", l.Addr(), path))
					if err != nil {
						t.Fatalf("probe %d of %s: %v", i+1, path, err)
					}
					_ = r.Body.Close()
				}
			}
		})
	}
}

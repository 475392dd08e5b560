package httpproxy

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestAServerTakesSoManyConnections with a request under way: further ones are closed, and taken when others have ended.
func TestAServerTakesSoManyConnections(t *testing.T) {
	address, _, _ := served(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "ok")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}, ServeOptions{MaxConnections: 4})
	var open []net.Conn
	works := func() bool {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return false
		}
		open = append(open, c)
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return false
		}
		_, err = c.Read(make([]byte, 1))
		return err == nil
	}
	for i := range 5 {
		if got := works(); got != (i < 2) {
			t.Errorf("connection %d works: %v", i, got)
		}
	}
	for _, c := range open {
		_ = c.Close()
	}
	eventually(t, "there is room again", works)
	for _, c := range open {
		_ = c.Close()
	}
}

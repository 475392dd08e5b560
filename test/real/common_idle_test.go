package real

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// keepsIdle is what the operator adds to an engine's environment, so that gateways close idle connections before engines do.
const keepsIdle = "VLLM_HTTP_TIMEOUT_KEEP_ALIVE=3900"

// TestIdleConnectionsOutliveTheDefault: an engine with the operator's setting still answers on a connection that was idle for as
// long as an engine without it takes to close one. There, a gateway's next request can meet a connection that is just closing.
func TestIdleConnectionsOutliveTheDefault(t *testing.T) {
	engines := sharedEngines(t) // the first has keepsIdle
	first, second := connect(t, engines[0]), connect(t, engines[1])
	verdict(t, errors.Join(first.health(), second.health()))
	if err := second.conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := second.read.ReadByte(); !errors.Is(err, io.EOF) {
		verdict(t, fmt.Errorf("without the setting, an idle connection ends with %w, not because the engine closes it", err))
	}
	verdict(t, first.health())
}

// connection is one to an engine, which sends nothing unless a test does.
type connection struct {
	conn net.Conn
	read *bufio.Reader
}

func connect(t *testing.T, e *engine) *connection {
	t.Helper()
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", e.http))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &connection{conn, bufio.NewReader(conn)}
}

// health asks for the engine's health on the connection.
func (c *connection) health() error {
	if err := c.conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if _, err := io.WriteString(c.conn, "GET /health HTTP/1.1\r\nHost: engine\r\n\r\n"); err != nil {
		return fmt.Errorf("asking on an idle connection: %w", err)
	}
	r, err := http.ReadResponse(c.read, nil)
	if err != nil {
		return fmt.Errorf("reading an answer on a connection that was idle: %w", err)
	}
	_ = r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("/health answers %d", r.StatusCode)
	}
	return nil
}

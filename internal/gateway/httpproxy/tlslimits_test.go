package httpproxy

import (
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/gateway/accept"
)

// TestHeadersInsideTLSDrawOnTheBudget while they arrive, by their fields, and no more when the client has gone.
func TestHeadersInsideTLSDrawOnTheBudget(t *testing.T) {
	room := budget.New(8<<20, time.Now)
	s := overTLS(t, func(http.ResponseWriter, *http.Request) {}, nil, false, ServeOptions{Budget: room})
	c, err := s.dial(&tls.Config{NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const fields = 60
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n"+strings.Repeat("a: b\r\n", fields))
	eventually(t, "the header is counted", func() bool { return room.Stats().Held > accept.Cost+accept.SecureCost+100*fields })
	_ = c.Close()
	eventually(t, "nothing is held", func() bool { return room.Stats().Held == 0 })
}

// TestAFloodOfFieldsInsideTLSEndsConnections: all of an address draw on one credit, which some of these exceed.
func TestAFloodOfFieldsInsideTLSEndsConnections(t *testing.T) {
	const clients, fields = 64, 8000
	s := overTLS(t, func(http.ResponseWriter, *http.Request) {}, nil, false, ServeOptions{Budget: budget.New(1<<30, time.Now)})
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "localhost"}, {":path", "/"}} {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	for range fields {
		_ = block.WriteByte(0x90) // accept-encoding: gzip, deflate
	}
	ended, together := make(chan error, clients), make(chan struct{})
	for range clients {
		c, err := s.dial(&tls.Config{NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		go func() {
			<-together
			_, _ = io.WriteString(c, http2.ClientPreface)
			framer := http2.NewFramer(c, c)
			_ = framer.WriteSettings()
			err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true})
			for err == nil {
				_, err = framer.ReadFrame()
			}
			ended <- err
		}()
	}
	close(together)
	if err := await(t, "a connection ends", ended); err == nil {
		t.Error("it ends without an error")
	}
}

// TestATLSClientThatTakesNothingIsClosed in both versions of HTTP.
func TestATLSClientThatTakesNothingIsClosed(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		ended := make(chan error, 1)
		s := overTLS(t, func(w http.ResponseWriter, _ *http.Request) {
			var err error
			for piece := make([]byte, 1<<20); err == nil; {
				_, err = w.Write(piece)
			}
			ended <- err
		}, nil, false, ServeOptions{Stall: 50 * time.Millisecond})
		answer, err := s.client(h2).Get("https://" + strings.Replace(s.address, "127.0.0.1", "localhost", 1))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		if err := await(t, "the handler ends", ended); err == nil {
			t.Error("writing ends without an error")
		}
	}
}

package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

const patience = 20 * time.Second

// engine says how it was spoken to.
func engine(t *testing.T, over *tls.Config, network string) *endpoint.Endpoint {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "e n.sock")
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s tls=%v %s", r.Proto, r.TLS != nil, r.URL.RequestURI())
	}))
	_ = s.Listener.Close()
	s.Listener = listener
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	if over != nil {
		s.TLS = over
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	if network == "unix" {
		return &endpoint.Endpoint{Socket: address}
	}
	return &endpoint.Endpoint{Address: listener.Addr().String()}
}

func transports(t *testing.T) *Transports {
	t.Helper()
	all := NewTransports((&net.Dialer{Timeout: patience}).DialContext, func() *http.Transport { return &http.Transport{} })
	t.Cleanup(all.Close)
	return all
}

func ask(t *testing.T, all *Transports, ep *endpoint.Endpoint) (string, error) {
	t.Helper()
	r := (&http.Request{Method: http.MethodGet, Header: http.Header{}, URL: &url.URL{Path: "/a b", RawQuery: "x=1"}}).WithContext(t.Context())
	answer, err := all.RoundTrip(r, ep)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

// signed is a certificate for a name, and the PEM of its issuer.
func signed(t *testing.T, name string) (*tls.Config, string) {
	t.Helper()
	cert, err := certs.SelfSigned([]string{name}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{*cert}},
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}))
}

func TestEveryWayToSpeakToAnEngine(t *testing.T) {
	own, ca := signed(t, "engine.llm")
	_, otherCA := signed(t, "engine.llm")
	for name, tc := range map[string]struct {
		over    *tls.Config
		network string
		wire    endpoint.Wire
		want    string // empty: it must fail
		fails   func(error) bool
	}{
		"plain":                     {nil, "tcp", endpoint.Wire{}, "HTTP/1.1 tls=false", nil},
		"a socket":                  {nil, "unix", endpoint.Wire{}, "HTTP/1.1 tls=false", nil},
		"h2c":                       {nil, "tcp", endpoint.Wire{H2C: true}, "HTTP/2.0 tls=false", nil},
		"h2c over a socket":         {nil, "unix", endpoint.Wire{H2C: true}, "HTTP/2.0 tls=false", nil},
		"TLS that is not checked":   {own, "tcp", endpoint.Wire{TLS: true, Unchecked: true}, "HTTP/1.1 tls=true", nil},
		"TLS by its CA and name":    {own, "tcp", endpoint.Wire{TLS: true, CA: ca, ServerName: "engine.llm"}, "HTTP/1.1 tls=true", nil},
		"TLS over a socket":         {own, "unix", endpoint.Wire{TLS: true, CA: ca, ServerName: "engine.llm"}, "HTTP/1.1 tls=true", nil},
		"another name":              {own, "tcp", endpoint.Wire{TLS: true, CA: ca, ServerName: "other.llm"}, "", is[x509.HostnameError]},
		"another CA":                {own, "tcp", endpoint.Wire{TLS: true, CA: otherCA, ServerName: "engine.llm"}, "", is[x509.UnknownAuthorityError]},
		"the system's CAs":          {own, "tcp", endpoint.Wire{TLS: true, ServerName: "engine.llm"}, "", is[x509.UnknownAuthorityError]},
		"a CA that is none":         {own, "tcp", endpoint.Wire{TLS: true, CA: "x", ServerName: "engine.llm"}, "", is[x509.UnknownAuthorityError]},
		"TLS where there is none":   {nil, "tcp", endpoint.Wire{TLS: true, Unchecked: true}, "", nil},
		"no TLS where there is TLS": {own, "tcp", endpoint.Wire{}, "400", nil},
	} {
		t.Run(name, func(t *testing.T) {
			all, ep := transports(t), engine(t, tc.over, tc.network)
			ep.Wire = tc.wire
			for range 2 { // the second time over the same connection
				text, err := ask(t, all, ep)
				switch {
				case tc.want == "400":
					if err == nil && !strings.Contains(text, "HTTPS") {
						t.Errorf("it has answered %q", text)
					}
				case tc.want == "" && err == nil:
					t.Errorf("it has answered %q", text)
				case tc.want == "" && tc.fails != nil && !tc.fails(err):
					t.Errorf("it fails with %v", err)
				case tc.want != "" && (err != nil || text != tc.want+" /a%20b?x=1"):
					t.Errorf("%q, %v, want %s", text, err, tc.want)
				}
			}
		})
	}
}

// is reports whether an error is, or wraps, one of a type.
func is[T error](err error) bool {
	var one T
	return errors.As(err, &one)
}

// Certificates change, and with them the wire: old transports must not pile up, and connections of one wire never serve
// another.
func TestWiresAreBoundedAndApart(t *testing.T) {
	own, ca := signed(t, "engine.llm")
	all, ep := transports(t), engine(t, own, "tcp")
	ep.Wire = endpoint.Wire{TLS: true, CA: ca, ServerName: "engine.llm"}
	if _, err := ask(t, all, ep); err != nil {
		t.Fatal(err)
	}
	other := *ep
	other.Wire.ServerName = "other.llm"
	if text, err := ask(t, all, &other); err == nil {
		t.Errorf("over the connection of another wire it answers %q", text)
	}
	for i := range 3 * maxKept {
		other.Wire.ServerName = fmt.Sprint(i)
		all.of(other.Wire)
		if n := len(all.others); n > maxKept {
			t.Fatalf("%d transports are kept", n)
		}
	}
	if text, err := ask(t, all, ep); err != nil {
		t.Errorf("%q, %v", text, err)
	}
}

// An engine that is spoken to plainly costs no look into a map.
func TestThePlainWireDoesNotAllocate(t *testing.T) {
	all := transports(t)
	if n := testing.AllocsPerRun(100, func() { all.of(endpoint.Wire{}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestSocketsThatAreNone(t *testing.T) {
	dial := dialer(func(context.Context, string, string) (net.Conn, error) { t.Error("dialed"); return nil, net.ErrClosed })
	if _, err := dial(t.Context(), "tcp", "xyz"+socketSuffix+":80"); err == nil {
		t.Error("a path that is no hexadecimal number is dialed")
	}
}

// An engine closes idle connections after 5 s: a request on a connection that is older meets its end.
func TestIdleConnectionsEndBeforeEnginesCloseThem(t *testing.T) {
	const engines = 5 * time.Second
	for _, w := range []endpoint.Wire{{}, {TLS: true}, {H2C: true}} {
		for asked, want := range map[time.Duration]time.Duration{0: IdleTimeout, time.Second: time.Second, time.Minute: IdleTimeout} {
			if got := Transport(&http.Transport{IdleConnTimeout: asked}, w).IdleConnTimeout; got != want || got >= engines {
				t.Errorf("%+v: %s asked for, %s kept, want %s", w, asked, got, want)
			}
		}
	}
}

// TestEnginesCanSendLittleThatIsNotRead: an engine that speaks HTTP/2 is allowed to send little of an answer that nothing reads, so that a client
// that takes nothing makes the picker hold no more than over HTTP/1.1.
func TestEnginesCanSendLittleThatIsNotRead(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	all, asked := transports(t), sync.WaitGroup{}
	defer asked.Wait()
	asked.Go(func() {
		r := (&http.Request{Method: http.MethodGet, Header: http.Header{}, URL: &url.URL{Path: "/"}}).WithContext(t.Context())
		answer, err := all.RoundTrip(r, &endpoint.Endpoint{Address: listener.Addr().String(), Wire: endpoint.Wire{H2C: true}})
		if err == nil {
			_ = answer.Body.Close()
		}
	})
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
		t.Fatal(err)
	}
	frame, err := http2.NewFramer(io.Discard, conn).ReadFrame()
	if err != nil {
		t.Fatal(err)
	}
	settings, ok := frame.(*http2.SettingsFrame)
	if !ok {
		t.Fatalf("the first frame is %v", frame.Header())
	}
	if n, ok := settings.Value(http2.SettingInitialWindowSize); !ok || n > maxUnread {
		t.Errorf("the engine can send %d bytes of each answer that are not read, want %d", n, maxUnread)
	}
}

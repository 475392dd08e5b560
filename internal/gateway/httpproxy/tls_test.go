package httpproxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/gateway/accept"
	"github.com/kvasir-dev/kvasir/internal/overload"
	"github.com/kvasir-dev/kvasir/test/certstest"
)

// secured is a server over TLS whose files are in dir.
type secured struct {
	t       *testing.T
	ca      *certstest.CA
	dir     string
	server  *certs.Server
	shakes  *accept.Handshakes
	reasons chan error // why handshakes failed
	address string
	end     context.CancelFunc
	wait    func() error
}

// overTLS serves a handler over TLS. clients is what clients' certificates are signed by; nil for none.
func overTLS(t *testing.T, handler http.HandlerFunc, clients *certstest.CA, required bool, o ServeOptions) *secured {
	t.Helper()
	s := &secured{t: t, ca: certstest.New(t), dir: t.TempDir(), reasons: make(chan error, 1<<15)}
	files := certs.Files{}
	files.Cert, files.Key = certstest.Write(t, s.dir, s.ca.Server())
	if clients != nil {
		files.CA = s.dir + "/ca.crt"
		certstest.Replace(t, files.CA, clients.PEM())
	}
	s.server = certs.NewServer(files, required, logr.Discard())
	s.shakes = &accept.Handshakes{Config: s.server.Config(), Failed: func(_ net.Addr, err error) { s.reasons <- err }}
	o.TLS = s.shakes
	s.address, s.end, s.wait = served(t, handler, o)
	return s
}

// client speaks one version of HTTP over TLS.
func (s *secured) client(h2 bool, own ...*tls.Certificate) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!h2)
	protocols.SetHTTP2(h2)
	config := &tls.Config{RootCAs: s.ca.Pool()}
	for _, c := range own {
		config.Certificates = append(config.Certificates, *c)
	}
	transport := &http.Transport{Protocols: protocols, TLSClientConfig: config, DisableCompression: true}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

func (s *secured) dial(config *tls.Config) (*tls.Conn, error) {
	config.RootCAs, config.ServerName = s.ca.Pool(), "localhost"
	return tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", s.address, config)
}

func (s *secured) raw() net.Conn {
	s.t.Helper()
	c, err := net.Dial("tcp", s.address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

func TestTLSServesBothVersions(t *testing.T) {
	s := overTLS(t, func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || r.TLS.ServerName != "localhost" {
			t.Errorf("the handler sees %+v", r.TLS)
		}
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	}, nil, false, ServeOptions{Budget: budget.New(1<<30, time.Now)})
	url := "https://" + strings.Replace(s.address, "127.0.0.1", "localhost", 1)
	for _, h2 := range []bool{false, true} {
		answer, err := s.client(h2).Post(url, "text/plain", strings.NewReader("over TLS"))
		if err != nil {
			t.Fatal(err)
		}
		if got := read(t, answer); got != "over TLS" || (answer.ProtoMajor == 2) != h2 {
			t.Errorf("HTTP/2 %v: HTTP/%d, %q", h2, answer.ProtoMajor, got)
		}
	}
	if done, failed := s.shakes.Counts(); done != 2 || failed != 0 {
		t.Errorf("%d handshakes succeeded, %d failed", done, failed)
	}
}

func TestTLSVersionsAndNames(t *testing.T) {
	s := overTLS(t, func(http.ResponseWriter, *http.Request) {}, nil, false, ServeOptions{})
	for name, tc := range map[string]struct {
		config *tls.Config
		fails  bool
	}{
		"TLS 1.3":           {&tls.Config{MinVersion: tls.VersionTLS13}, false},
		"TLS 1.2":           {&tls.Config{MaxVersion: tls.VersionTLS12}, false},
		"TLS 1.1":           {&tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, true},
		"HTTP/2":            {&tls.Config{NextProtos: []string{"h2"}}, false},
		"HTTP/1.1":          {&tls.Config{NextProtos: []string{"http/1.1"}}, false},
		"no protocol":       {&tls.Config{}, false},
		"another protocol":  {&tls.Config{NextProtos: []string{"smtp"}}, true},
		"a name of another": {&tls.Config{ServerName: strings.Repeat("a.", 100) + "example"}, false},
		"no name":           {&tls.Config{ServerName: "127.0.0.1"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			tc.config.InsecureSkipVerify = true // the certificate is for localhost
			c, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", s.address, tc.config)
			if (err != nil) != tc.fails {
				t.Fatalf("error %v", err)
			}
			if err != nil {
				return
			}
			defer c.Close()
			if p := c.ConnectionState().NegotiatedProtocol; len(tc.config.NextProtos) > 0 && p != tc.config.NextProtos[0] {
				t.Errorf("protocol %q", p)
			}
		})
	}
}

// TestPlainRequestsOnTheTLSPort are answered in clear words, and counted.
func TestPlainRequestsOnTheTLSPort(t *testing.T) {
	s := overTLS(t, func(http.ResponseWriter, *http.Request) { t.Error("served without TLS") }, nil, false, ServeOptions{})
	for name, request := range map[string]string{
		"HTTP/1.1":         "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"with a long body": "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n" + strings.Repeat("x", 2000),
		"HTTP/2":           "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := s.raw()
			if _, err := io.WriteString(c, request); err != nil {
				t.Fatal(err)
			}
			answer := make([]byte, 12)
			if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "HTTP/1.0 400" {
				t.Errorf("answer %q, %v", answer, err)
			}
			if err := await(t, "the reason", s.reasons); !strings.Contains(err.Error(), "does not speak TLS") {
				t.Errorf("reason %v", err)
			}
		})
	}
	c := s.raw()
	_, _ = io.WriteString(c, "\x00\x01\x02\x03\x04\x05\x06")
	if answer, _ := io.ReadAll(c); strings.HasPrefix(string(answer), "HTTP") {
		t.Errorf("what is no request is answered with %q", answer)
	}
}

// TestStalledHandshakesEnd: of clients that send nothing, half a handshake, or read nothing.
func TestStalledHandshakesEnd(t *testing.T) {
	s := overTLS(t, func(http.ResponseWriter, *http.Request) {}, nil, false, ServeOptions{ReadHeaderTimeout: 200 * time.Millisecond})
	for name, send := range map[string]string{
		"nothing": "", "a byte": "\x16", "half a record": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
	} {
		t.Run(name, func(t *testing.T) {
			c := s.raw()
			_, _ = io.WriteString(c, send)
			if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection stays")
			}
			if err := await(t, "the failure is counted", s.reasons); err == nil {
				t.Error("a failure without a reason")
			}
		})
	}
}

// TestHalfOpenHandshakesAreBounded in number and memory, and give way to clients that speak.
func TestHalfOpenHandshakesAreBounded(t *testing.T) {
	const most, clients = 64, 10_000
	room := budget.New(1<<30, time.Now)
	port := new(overload.Port)
	s := overTLS(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }, nil, false,
		ServeOptions{MaxConnections: most, Budget: room, Port: port})
	for i := range clients {
		c := s.raw()
		_, _ = io.WriteString(c, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
		if i%50 == 0 {
			if held := room.Stats().Held; held > most*(accept.Cost+accept.SecureCost+1<<10) {
				t.Fatalf("%d half-open handshakes hold %d bytes", i+1, held)
			}
		}
	}
	url := "https://" + strings.Replace(s.address, "127.0.0.1", "localhost", 1)
	eventually(t, "a client is served", func() bool {
		answer, err := s.client(true).Get(url)
		if err == nil {
			_ = answer.Body.Close()
		}
		return err == nil
	})
}

// TestHandshakesDrawOnTheBudget: what clients send for one is counted until it ends.
func TestHandshakesDrawOnTheBudget(t *testing.T) {
	room := budget.New(8<<20, time.Now)
	s := overTLS(t, func(http.ResponseWriter, *http.Request) {}, nil, false, ServeOptions{Budget: room})
	c := s.raw()
	// A record of a client's hello that says it has 60,000 bytes.
	_, _ = io.WriteString(c, "\x16\x03\x01\x40\x00\x01\x00\xea\x60\x03\x03"+strings.Repeat("x", 16<<10-6))
	eventually(t, "the hello is counted", func() bool { return room.Stats().Held >= accept.Cost+accept.SecureCost+16<<10 })
	_ = c.Close()
	eventually(t, "nothing is held", func() bool { return room.Stats().Held == 0 })
}

// TestRenegotiationIsRefused: by OpenSSL's client, which asks for it.
func TestRenegotiationIsRefused(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is not installed")
	}
	var requests atomic.Int64
	s := overTLS(t, func(http.ResponseWriter, *http.Request) { requests.Add(1) }, nil, false, ServeOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, "openssl", "s_client", "-connect", s.address, "-tls1_2")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = c.Stdout
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	text, asked := "", false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		text += lines.Text() + "\n"
		if !asked && strings.Contains(text, "Extended master secret") { // the last line about the session
			asked = true
			_, _ = io.WriteString(in, "R\n")
		}
	}
	_ = c.Wait()
	if ctx.Err() != nil || !strings.Contains(text, "RENEGOTIATING") {
		t.Errorf("the connection stays, or no renegotiation was asked for:\n%s", text)
	}
	if requests.Load() != 0 {
		t.Error("a request was served")
	}
}

// TestClientCertificates: those of the authority are shown to the handler, others end the handshake.
func TestClientCertificates(t *testing.T) {
	clients, strangers := certstest.New(t), certstest.New(t)
	good := clients.Issue(&x509.Certificate{DNSNames: []string{"client.example"}})
	expired := clients.Issue(&x509.Certificate{NotAfter: time.Now().Add(-time.Minute)})
	foreign := strangers.Issue(&x509.Certificate{DNSNames: []string{"client.example"}})
	long := clients.Issue(&x509.Certificate{DNSNames: []string{"client.example"}})
	for range 20 {
		long.Certificate = append(long.Certificate, good.Certificate[0])
	}
	for name, tc := range map[string]struct {
		required bool
		own      *tls.Certificate
		want     string // what the handler sees; empty for a failure
	}{
		"good, optional":      {false, good, "client.example"},
		"good, required":      {true, good, "client.example"},
		"none, optional":      {false, nil, "none"},
		"none, required":      {true, nil, ""},
		"expired":             {false, expired, ""},
		"of another":          {false, foreign, ""},
		"with a long chain":   {false, long, ""},
		"of another, require": {true, foreign, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := overTLS(t, func(w http.ResponseWriter, r *http.Request) {
				seen := "none"
				if len(r.TLS.VerifiedChains) > 0 {
					seen = r.TLS.PeerCertificates[0].DNSNames[0]
				}
				_, _ = io.WriteString(w, seen)
			}, clients, tc.required, ServeOptions{Budget: budget.New(1<<30, time.Now)})
			var own []*tls.Certificate
			if tc.own != nil {
				own = append(own, tc.own)
			}
			for _, h2 := range []bool{false, true} {
				client := s.client(h2, own...)
				// Clients leave out certificates that the server does not ask for.
				client.Transport.(*http.Transport).TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
					if tc.own == nil {
						return new(tls.Certificate), nil
					}
					return tc.own, nil
				}
				answer, err := client.Get("https://" + strings.Replace(s.address, "127.0.0.1", "localhost", 1))
				if (err != nil) != (tc.want == "") {
					t.Fatalf("error %v", err)
				}
				if err == nil {
					if got := read(t, answer); got != tc.want {
						t.Errorf("the handler sees %q", got)
					}
				}
			}
		})
	}
}

// TestResumptionDoesNotOutliveTheAuthority: a client whose certificate the present CA has not signed cannot resume a session.
func TestResumptionDoesNotOutliveTheAuthority(t *testing.T) {
	before, after := certstest.New(t), certstest.New(t)
	s := overTLS(t, func(http.ResponseWriter, *http.Request) {}, before, true, ServeOptions{})
	own := before.Issue(&x509.Certificate{DNSNames: []string{"client.example"}})
	client := func() *http.Client {
		c := s.client(false, own)
		c.Transport.(*http.Transport).DisableKeepAlives = true
		return c
	}()
	client.Transport.(*http.Transport).TLSClientConfig.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	url := "https://" + strings.Replace(s.address, "127.0.0.1", "localhost", 1)
	answer, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	certstest.Replace(t, s.dir+"/ca.crt", append(after.PEM(), '\n'))
	if answer, err := client.Get(url); err == nil {
		_ = answer.Body.Close()
		t.Error("served with a certificate of the authority before")
	}
}

// TestCertificatesChangeUnderStreams: no stream ends when the certificate is replaced, and the next handshake has the new one. A pair that
// does not match, or is gone, leaves the one before in use.
func TestCertificatesChangeUnderStreams(t *testing.T) {
	const streams = 100
	var begun atomic.Int64
	step := make(chan struct{})
	s := overTLS(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "before ")
		_ = http.NewResponseController(w).Flush()
		begun.Add(1)
		<-step
		_, _ = io.WriteString(w, "after")
	}, nil, false, ServeOptions{Budget: budget.New(1<<30, time.Now)})
	url := "https://" + strings.Replace(s.address, "127.0.0.1", "localhost", 1)
	type result struct {
		text string
		err  error
	}
	results := make(chan result, streams)
	shared := s.client(true)
	for i := range streams {
		client := shared
		if i%2 == 0 {
			client = s.client(false)
		}
		go func() {
			answer, err := client.Get(url)
			if err != nil {
				results <- result{err: err}
				return
			}
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			results <- result{string(text), err}
		}()
	}
	eventually(t, "all streams have begun", func() bool { return begun.Load() == streams })
	shown := func() string {
		t.Helper()
		c, err := s.dial(&tls.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		names := c.ConnectionState().PeerCertificates[0].DNSNames
		return names[len(names)-1]
	}
	certstest.Write(t, s.dir, s.ca.Server("second.example"))
	if name := shown(); name != "second.example" {
		t.Errorf("certificate of %s", name)
	}
	cert, _ := certstest.PEM(t, s.ca.Server("third.example"))
	certstest.Replace(t, s.dir+"/tls.crt", cert)
	if name := shown(); name != "second.example" {
		t.Errorf("certificate of %s after one whose key is another's", name)
	}
	if state := s.server.State(); state.Failures != 1 || !strings.Contains(state.Err, "private key") || state.NotAfter.IsZero() {
		t.Errorf("the failure shows as %+v", state)
	}
	if err := os.Remove(s.dir + "/tls.key"); err != nil {
		t.Fatal(err)
	}
	if name := shown(); name != "second.example" {
		t.Errorf("certificate of %s without a key", name)
	}
	certstest.Write(t, s.dir, s.ca.Server("fourth.example"))
	if name := shown(); name != "fourth.example" {
		t.Errorf("certificate of %s", name)
	}
	if state := s.server.State(); state.Err != "" {
		t.Errorf("the failure stays: %+v", state)
	}
	close(step)
	for range streams {
		if r := await(t, "a stream ends", results); r.err != nil || r.text != "before after" {
			t.Errorf("stream: %q, %v", r.text, r.err)
		}
	}
}

// TestAnExpiredCertificateIsServed: clients refuse it with that reason, and the state shows it.
func TestAnExpiredCertificateIsServed(t *testing.T) {
	s := overTLS(t, func(http.ResponseWriter, *http.Request) {}, nil, false, ServeOptions{})
	end := time.Now().Add(-time.Minute)
	certstest.Write(t, s.dir, s.ca.Issue(&x509.Certificate{DNSNames: []string{"localhost"}, NotAfter: end}))
	var invalid x509.CertificateInvalidError
	if _, err := s.dial(&tls.Config{}); !errors.As(err, &invalid) || invalid.Reason != x509.Expired {
		t.Errorf("error %v", err)
	}
	if state := s.server.State(); state.NotAfter.Unix() != end.Unix() || state.Err != "" {
		t.Errorf("state %+v", state)
	}
}

// TestFilesThatComeLater: until they are there handshakes fail, and plain text is not served instead.
func TestFilesThatComeLater(t *testing.T) {
	ca, dir := certstest.New(t), t.TempDir()
	server := certs.NewServer(certs.Files{Cert: dir + "/tls.crt", Key: dir + "/tls.key"}, false, logr.Discard())
	s := &secured{t: t, ca: ca}
	s.address, _, _ = served(t, func(http.ResponseWriter, *http.Request) {},
		ServeOptions{TLS: &accept.Handshakes{Config: server.Config()}})
	if _, err := s.dial(&tls.Config{}); err == nil {
		t.Error("a handshake without a certificate")
	}
	c := s.raw()
	_, _ = io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
	if answer, _ := io.ReadAll(c); !strings.HasPrefix(string(answer), "HTTP/1.0 400") {
		t.Errorf("answer %q", answer)
	}
	certstest.Write(t, dir, ca.Server())
	conn, err := s.dial(&tls.Config{})
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

// TestIdleTLSConnectionsTakeWhatIsCounted, their clients included, after a record of the largest size.
func TestIdleTLSConnectionsTakeWhatIsCounted(t *testing.T) {
	const clients = 100
	s := overTLS(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }, nil, false,
		ServeOptions{Budget: budget.New(1<<30, time.Now)})
	body := strings.Repeat("x", 32<<10)
	request := "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 32768\r\n\r\n" + body
	before := heap()
	for range clients {
		c, err := s.dial(&tls.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, request)
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Read(make([]byte, 4<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if took := (heap() - before) / clients; took > accept.Cost+accept.SecureCost {
		t.Errorf("an idle connection takes %d bytes", took)
	}
}

package server

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/kvasir-dev/kvasir/internal/certs"
)

// frames are those of a connection of HTTP/2 with one request.
func frames(method, path string, body []byte, last bool) []byte {
	var out, header bytes.Buffer
	out.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&out, nil)
	_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	coder := hpack.NewEncoder(&header)
	for _, h := range [][2]string{{":method", method}, {":scheme", "http"}, {":path", path}, {":authority", "localhost"},
		{"content-type", "application/grpc"}, {"te", "trailers"}} {
		_ = coder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: header.Bytes(), EndHeaders: true})
	_ = f.WriteData(1, last, body)
	return out.Bytes()
}

// publisher is what an engine's event publisher sends: greeting, READY, and messages.
func publisher(messages []byte) string {
	greeting := "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL" + strings.Repeat("\x00", 48)
	return greeting + "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB" + string(messages)
}

// fuzzed is a port that bytes are played at: as they are, or as what TLS carries.
type fuzzed struct {
	of     *instance
	at     string
	inside bool
}

// dial connects to the port. closeWrite ends what is sent.
func (p *fuzzed) dial(t *testing.T) (c net.Conn, closeWrite func() error) {
	t.Helper()
	raw, err := net.Dial("tcp", p.at)
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.SetDeadline(time.Now().Add(patience))
	if !p.inside {
		return raw, raw.(*net.TCPConn).CloseWrite
	}
	encrypted := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) //nolint:gosec // it is this process
	if err := encrypted.Handshake(); err != nil {
		t.Fatal(err)
	}
	return encrypted, encrypted.CloseWrite
}

// ports of three pickers that run: the second has TLS for gateways and reporters, engines dial the third.
func ports(f *testing.F) (all []fuzzed) {
	dir, dials, keys := f.TempDir(), f.TempDir(), f.TempDir()
	e := engine(f, "m")
	put(f, filepath.Join(dir, "pool.yaml"), poolText("m", "m", ""))
	put(f, filepath.Join(dir, "slice.yaml"), sliceText(f, "m", "m-0", e))
	file := func(name, text string) string {
		put(f, filepath.Join(keys, name), text)
		return filepath.Join(keys, name)
	}
	var leaf certs.Pair
	if _, _, err := new(certs.Authority).Renew(&leaf, []string{"localhost"}, time.Now()); err != nil {
		f.Fatal(err)
	}
	args := []string{"--report-address", "127.0.0.1:0", "--report-secret-file", file("secret", "0123456789abcdef0123456789abcdef")}
	plain := runOn(f, dir, append(args, "--ext-proc-plaintext", "--report-insecure")...)
	cert, key := file("tls.crt", string(leaf.Cert)), file("tls.key", string(leaf.Key))
	encrypted := runOn(f, dir, append(args, "--report-cert", cert, "--report-key", key)...)
	put(f, filepath.Join(dials, "pool.yaml"), strings.Replace(poolText("m", "m", ""), "spec: {", "spec: {engine: {events: {source: Listen}}, ", 1))
	put(f, filepath.Join(dials, "slice.yaml"), sliceText(f, "m", "m-0", e))
	listening := runOn(f, dials, "--events-address", "127.0.0.1:0")
	for _, i := range []*instance{plain, encrypted, listening} {
		i.awaitReady()
		i.eventually("an answer", func() bool { status, _ := i.complete("m"); return status == http.StatusOK })
	}
	l := plain.listeners
	for _, at := range append([]net.Listener{l.proxy, l.health, l.metrics, l.reports}, l.gateways...) {
		all = append(all, fuzzed{plain, at.Addr().String(), false})
	}
	for _, at := range append([]net.Listener{encrypted.listeners.reports}, encrypted.listeners.gateways...) {
		all = append(all, fuzzed{encrypted, at.Addr().String(), false}, fuzzed{encrypted, at.Addr().String(), true})
	}
	return append(all, fuzzed{listening, listening.listening(), false})
}

// FuzzPorts plays bytes at each port of a picker that runs, and at those with TLS also inside of it: whatever they are, the picker
// serves others, nothing panics, and nothing is left of the client.
func FuzzPorts(f *testing.F) {
	ports := ports(f)
	body := `{"model":"m","prompt":"x","max_tokens":2}`
	head := "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	for _, seed := range []string{
		head + "Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body,
		head + "Transfer-Encoding: chunked\r\n\r\n" + strconv.FormatInt(int64(len(body)), 16) + "\r\n" + body + "\r\n0\r\n\r\n",
		head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
		head + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
		head + "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
		"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\nGET /status HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"GET http://elsewhere/ HTTP/1.0\r\n\r\n", "CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03",
		string(frames("POST", "/envoy.service.ext_proc.v3.ExternalProcessor/Process", []byte("\x00\x00\x00\x00\x02\x12\x00"), false)),
		string(frames("POST", "/grpc.health.v1.Health/Check", []byte("\x00\x00\x00\x00\x00"), true)),
		string(frames("POST", "/kvasir.report.v1.Report/Push", []byte("\x00\x00\x00\x00\x02\x0a\x00"), false)),
		string(frames("GET", "/v1/models", nil, true)), http2.ClientPreface + strings.Repeat("\x00\x00\x00\x04\x00\x00\x00\x00\x00", 100),
		publisher(nil), publisher([]byte{1, 2, 'k', 'v', 1, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0x92, 0, 0x91, 0x90}),
		publisher([]byte{1, 9, 'k', 'v', '@', 'm', '-', '0', '@', 'm', 'x', 1}), publisher([]byte{3, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 'k'}),
	} {
		for port := range ports {
			f.Add(uint8(port), uint16(len(seed)/2), []byte(seed))
		}
	}
	before := map[*instance]left{}
	for _, p := range ports {
		before[p.of] = p.of.held()
	}
	f.Fuzz(func(t *testing.T, port uint8, cut uint16, input []byte) {
		p := ports[int(port)%len(ports)]
		i := &instance{t: t, listeners: p.of.listeners, logs: p.of.logs, client: p.of.client}
		c, closeWrite := p.dial(t)
		at := min(int(cut), len(input))
		_, _ = c.Write(input[:at])
		_, _ = c.Write(input[at:])
		_ = closeWrite()
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) // of an answer that has no end
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
		if status, text := i.complete("m"); status != http.StatusOK {
			t.Errorf("another client got %d: %s", status, text)
		}
		if log := i.logs.String(); strings.Contains(log, "panic") {
			t.Errorf("a panic: %s", log)
		}
		var now left
		before := before[p.of]
		for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
			if now = i.held(); now.bytes <= before.bytes && now.goroutines <= before.goroutines+20 {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("left of the client: %+v, and before %+v", now, before)
			}
		}
	})
}

// left is what a picker holds, by its own account.
type left struct{ bytes, goroutines float64 }

func (i *instance) held() (l left) {
	_, text := i.get(i.listeners.metrics, "/metrics")
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseFloat(value, 64)
		if family, _, _ := strings.Cut(name, "{"); err == nil && family == "kvasir_client_memory_bytes" {
			l.bytes += n
		} else if err == nil && family == "go_goroutines" {
			l.goroutines = n
		}
	}
	return l
}

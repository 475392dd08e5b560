package main

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/freeport"
	"github.com/kvasir-dev/kvasir/test/certstest"
)

// TestThePoolsPortWithTLS: the program serves the port with its certificate, and checks that of the engine by --engine-ca and --engine-name.
func TestThePoolsPortWithTLS(t *testing.T) {
	ca, others := certstest.New(t), certstest.New(t)
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) }))
	engine.TLS = &tls.Config{Certificates: []tls.Certificate{*ca.Server("engine.llm")}}
	engine.StartTLS()
	defer engine.Close()
	dir := t.TempDir()
	cert, key := certstest.Write(t, dir, ca.Server("pod.llm"))
	write := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, tc := range map[string]struct {
		ca, server string
		good       bool
	}{
		"as it is":          {write("ca.crt", ca.PEM()), "engine.llm", true},
		"of another name":   {write("ca.crt", ca.PEM()), "other.llm", false},
		"of another issuer": {write("others.crt", others.PEM()), "engine.llm", false},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := freeport.Addresses("127.0.0.1", 2)
			if err != nil {
				t.Fatal(err)
			}
			o, err := parse([]string{"--pod", "p", "--events-listen", "127.0.0.1:0", "--pickers", all[1], "--insecure", "--status-address", "",
				"--serve-address", all[0], "--serve-engine", "https://" + engine.Listener.Addr().String(), "--serve-cert", cert, "--serve-key", key,
				"--engine-ca", tc.ca, "--engine-name", tc.server, "--drain-address", "127.0.0.1:0", "--drain-deadline", "1s"}, io.Discard, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			over := make(chan error, 1)
			go func() { over <- run(ctx, o, logr.Discard()) }()
			defer func() {
				stop()
				if err := <-over; err != nil {
					t.Error(err)
				}
			}()
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: "pod.llm"}}}
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
				if c, err := new(net.Dialer).DialContext(ctx, "tcp", all[0]); err == nil {
					_ = c.Close()
					break
				} else if time.Now().After(end) {
					t.Fatal("the port is not opened")
				}
			}
			answer, err := client.Get("https://" + all[0] + "/v1/models")
			if err != nil {
				if tc.good {
					t.Error(err)
				}
				return
			}
			defer func() { _ = answer.Body.Close() }()
			if body, _ := io.ReadAll(answer.Body); string(body) != "/v1/models" || !tc.good {
				t.Errorf("status %d: %s", answer.StatusCode, body)
			}
		})
	}
}

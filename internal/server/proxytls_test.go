package server

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/test/certstest"
)

// oneEngine is a directory with the sample pool and an engine.
func oneEngine(t *testing.T) (args []string) {
	t.Helper()
	e := engine(t, "demo-model")
	return []string{"--engines", "http://" + e.Addr(), "--model", "demo-model"}
}

// TestThePickerServesOverTLS: HTTP/1.1 and HTTP/2, to Go's client and to curl; and a certificate that cannot be read shows in the status, the
// metrics and the log, while the one before is used.
func TestThePickerServesOverTLS(t *testing.T) {
	ca, dir := certstest.New(t), t.TempDir()
	cert, key := certstest.Write(t, dir, ca.Server())
	p, o := listenWith(t, append(oneEngine(t), "--proxy-cert", cert, "--proxy-key", key)...)
	p.run(o)
	p.awaitReady()
	url := "https://" + strings.Replace(p.listeners.proxy.Addr().String(), "127.0.0.1", "localhost", 1)
	post := func(h2 bool) (*http.Response, string) {
		t.Helper()
		protocols := new(http.Protocols)
		protocols.SetHTTP1(!h2)
		protocols.SetHTTP2(h2)
		transport := &http.Transport{Protocols: protocols, TLSClientConfig: &tls.Config{RootCAs: ca.Pool()}}
		defer transport.CloseIdleConnections()
		answer, err := (&http.Client{Transport: transport, Timeout: patience}).Post(url+"/v1/completions", "application/json",
			strings.NewReader(`{"model":"demo-model","prompt":"one two three","max_tokens":2,"stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer, string(body)
	}
	for _, h2 := range []bool{false, true} {
		answer, body := post(h2)
		if answer.StatusCode != http.StatusOK || (answer.ProtoMajor == 2) != h2 || !strings.HasSuffix(body, "data: [DONE]\n\n") {
			t.Errorf("HTTP/2 %v: HTTP/%d, status %d, %q", h2, answer.ProtoMajor, answer.StatusCode, body)
		}
	}
	if _, err := exec.LookPath("curl"); err == nil {
		authority := filepath.Join(dir, "authority.crt")
		certstest.Replace(t, authority, ca.PEM())
		for version, want := range map[string]string{"--http1.1": "1.1 200", "--http2": "2 200"} {
			out, err := exec.CommandContext(t.Context(), "curl", "-sS", version, "--cacert", authority, "-o", os.DevNull,
				"-w", "%{http_version} %{http_code}", url+"/v1/models").CombinedOutput()
			if err != nil || string(out) != want {
				t.Errorf("curl %s: %s %v", version, out, err)
			}
		}
	}

	text, _ := certstest.PEM(t, ca.Server("other.example"))
	certstest.Replace(t, cert, text)
	if answer, _ := post(true); answer.StatusCode != http.StatusOK {
		t.Errorf("status %d while the key is another's", answer.StatusCode)
	}
	p.eventually("the status has the problem", func() bool {
		_, status := p.get(p.listeners.metrics, "/status?output=json")
		return strings.Contains(status, "The certificate for clients is not the present one of the files")
	})
	_, page := p.get(p.listeners.metrics, "/metrics")
	for _, want := range []string{"kvasir_tls_certificate_failing 1", "kvasir_tls_certificate_failures_total 1", "kvasir_tls_handshakes_total "} {
		if !strings.Contains(page, want) {
			t.Errorf("the metrics lack %q", want)
		}
	}
	if !strings.Contains(p.logs.String(), "Reading the certificate failed") {
		t.Error("the log lacks the failure")
	}
}

// TestTheEndIsOrderlyOverTLS: a stream under way ends whole after the signal.
func TestTheEndIsOrderlyOverTLS(t *testing.T) {
	ca, dir := certstest.New(t), t.TempDir()
	cert, key := certstest.Write(t, dir, ca.Server())
	p, o := listenWith(t, append(oneEngine(t), "--proxy-cert", cert, "--proxy-key", key)...)
	p.run(o)
	p.awaitReady()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool()}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport, Timeout: patience}).Post("https://localhost:"+portOf(t, p.listeners.proxy.Addr().String())+
		"/v1/completions", "application/json", strings.NewReader(`{"model":"demo-model","prompt":"one two","max_tokens":50,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	p.stop()
	body, err := io.ReadAll(answer.Body)
	if err != nil || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
		t.Errorf("the stream ends with %v, %q", err, body)
	}
}

// TestClientCertificatesAreChecked as the flags say.
func TestClientCertificatesAreChecked(t *testing.T) {
	ca, clients, dir := certstest.New(t), certstest.New(t), t.TempDir()
	cert, key := certstest.Write(t, dir, ca.Server())
	authority := filepath.Join(dir, "ca.crt")
	certstest.Replace(t, authority, clients.PEM())
	own := clients.Issue(&x509.Certificate{DNSNames: []string{"client.example"}})
	for name, tc := range map[string]struct {
		args         []string
		with, served bool
	}{
		"required by default":        {nil, false, false},
		"required, shown":            {nil, true, true},
		"optional":                   {[]string{"--proxy-client-certs", "optional"}, false, true},
		"required in so many words ": {[]string{"--proxy-client-certs", "required"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"--engines", "http://127.0.0.1:1", "--model", "m", "--proxy-cert", cert, "--proxy-key", key,
				"--proxy-client-ca", authority}, tc.args...)
			p, o := listenWith(t, args...)
			p.run(o)
			config := &tls.Config{RootCAs: ca.Pool()}
			if tc.with {
				config.Certificates = []tls.Certificate{*own}
			}
			transport := &http.Transport{TLSClientConfig: config}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport, Timeout: patience}
			answer, err := client.Get("https://localhost:" + portOf(t, p.listeners.proxy.Addr().String()) + "/health")
			if (err == nil) != tc.served {
				t.Errorf("error %v", err)
			}
			if err == nil {
				_ = answer.Body.Close()
			}
		})
	}
}

func TestFlagsOfTLSAreChecked(t *testing.T) {
	for name, args := range map[string][]string{
		"a certificate without a key": {"--proxy-cert", "x"},
		"a key without a certificate": {"--proxy-key", "x"},
		"a CA without a certificate":  {"--proxy-client-ca", "x"},
		"a use that there is not":     {"--proxy-cert", "x", "--proxy-key", "y", "--proxy-client-certs", "none"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parse(append([]string{"--engines", "http://127.0.0.1:1", "--model", "m"}, args...), io.Discard, io.Discard); err == nil {
				t.Error("no error")
			}
		})
	}
	_, o := listenWith(t, "--engines", "http://127.0.0.1:1", "--model", "m", "--proxy-cert", "none.crt", "--proxy-key", "none.key")
	if _, err := newProxyTLS(o, logr.Discard()); err == nil || !strings.Contains(err.Error(), "none.crt") {
		t.Errorf("files that are not there: error %v", err)
	}
}

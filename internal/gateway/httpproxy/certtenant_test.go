package httpproxy

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tenant"
	"github.com/kvasir-dev/kvasir/test/certstest"
)

// certified is a pool of tenants that certificates name: acme can use all models, small can use m alone.
func certified(t *testing.T, addresses ...string) picker.Spec {
	t.Helper()
	var entries []tenant.Entry
	for name, value := range map[string]string{
		"acme":  `{"class":"all","certificates":["URI:spiffe://cluster.local/ns/acme/sa/client","CN:acme"]}`,
		"small": `{"class":"some","certificates":["DNS:small.example"]}`,
	} {
		e, err := tenant.Parse(name, []byte(value))
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	s := keyed(t, addresses...)
	known, problems := tenant.NewDirectory(entries)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	s.Policy.Admission.Tenants.Known, s.Policy.Admission.Tenants.Certificate = known, true
	return s
}

// TestACertificateNamesTheTenant by the one name that counts, over both versions of HTTP.
func TestACertificateNamesTheTenant(t *testing.T) {
	clients := certstest.New(t)
	s := certified(t, engine(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer of-the-engine" {
			t.Errorf("the engine gets the key %q", got)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "{}")
	}))
	h := newHouse(t, Options{}, s)
	server := overTLS(t, h.proxy.ServeHTTP, clients, false, ServeOptions{})
	spiffe := func(paths ...string) (all []*url.URL) {
		for _, path := range paths {
			all = append(all, &url.URL{Scheme: "spiffe", Host: "cluster.local", Path: path})
		}
		return all
	}
	for name, tc := range map[string]struct {
		cert *x509.Certificate // nil for none
		m, x int               // the status for these models
	}{
		"a URI":                         {&x509.Certificate{URIs: spiffe("/ns/acme/sa/client")}, 200, 200},
		"a common name":                 {&x509.Certificate{Subject: pkix.Name{CommonName: "acme"}}, 200, 200},
		"a DNS name":                    {&x509.Certificate{DNSNames: []string{"SMALL.example"}}, 200, 403},
		"a DNS name before the CN":      {&x509.Certificate{DNSNames: []string{"small.example"}, Subject: pkix.Name{CommonName: "acme"}}, 200, 403},
		"two URIs":                      {&x509.Certificate{URIs: spiffe("/ns/acme/sa/client", "/ns/other/sa/client")}, 401, 401},
		"another URI, and a known CN":   {&x509.Certificate{URIs: spiffe("/ns/other"), Subject: pkix.Name{CommonName: "acme"}}, 401, 401},
		"a CN like a URI":               {&x509.Certificate{Subject: pkix.Name{CommonName: "URI:spiffe://cluster.local/ns/acme/sa/client"}}, 401, 401},
		"the DNS name as a common name": {&x509.Certificate{Subject: pkix.Name{CommonName: "small.example"}}, 401, 401},
		"no name":                       {&x509.Certificate{}, 401, 401},
		"no certificate":                {nil, 401, 401},
	} {
		t.Run(name, func(t *testing.T) {
			var own []*tls.Certificate
			if tc.cert != nil {
				own = append(own, clients.Issue(tc.cert))
			}
			for _, h2 := range []bool{false, true} {
				client := server.client(h2, own...)
				for model, want := range map[string]int{"m": tc.m, "lora": tc.x} {
					r, err := http.NewRequest(http.MethodPost, "https://"+strings.Replace(server.address, "127.0.0.1", "localhost", 1)+"/v1/completions",
						strings.NewReader(`{"model":"`+model+`","prompt":"hi"}`))
					if err != nil {
						t.Fatal(err)
					}
					r.Header.Set("Authorization", "Bearer of-the-engine")
					// What proxies in front of others tell of their clients is not believed.
					r.Header.Set("X-Forwarded-Client-Cert", "URI=spiffe://cluster.local/ns/acme/sa/client")
					r.Header.Set("Client-Certificate", "CN:acme")
					r.Header.Set("X-Api-Key", "CN:acme")
					answer, err := client.Do(r)
					if err != nil {
						t.Fatal(err)
					}
					if text := read(t, answer); answer.StatusCode != want {
						t.Errorf("model %s, HTTP/%d: status %d, want %d: %s", model, answer.ProtoMajor, answer.StatusCode, want, text)
					}
				}
			}
		})
	}
}

// TestNoClientSetsTheNameOfACertificate: a header of the name under which servers pass it is not one of HTTP, so that the request ends.
func TestNoClientSetsTheNameOfACertificate(t *testing.T) {
	h := newHouse(t, Options{}, certified(t, engine(t, func(http.ResponseWriter, *http.Request) { t.Error("a request has come to the engine") })))
	server := overTLS(t, h.proxy.ServeHTTP, nil, false, ServeOptions{})
	t.Run("HTTP/1.1", func(t *testing.T) {
		c, err := server.dial(&tls.Config{NextProtos: []string{"http/1.1"}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		_, _ = fmt.Fprintf(c, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n%s: CN:acme\r\n\r\n", picker.CertificateHeader)
		answer, _ := io.ReadAll(io.LimitReader(c, 12))
		if string(answer) != "HTTP/1.1 400" {
			t.Errorf("answer %q", answer)
		}
	})
	t.Run("HTTP/2", func(t *testing.T) {
		c, err := server.dial(&tls.Config{NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		var block bytes.Buffer
		encoder := hpack.NewEncoder(&block)
		for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "localhost"}, {":path", "/v1/models"},
			{picker.CertificateHeader, "CN:acme"}} {
			_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
		}
		_, _ = io.WriteString(c, http2.ClientPreface)
		framer := http2.NewFramer(c, c)
		_ = framer.WriteSettings()
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if _, answered := frame.(*http2.HeadersFrame); answered {
				t.Fatal("the request is answered")
			}
			if reset, ok := frame.(*http2.RSTStreamFrame); ok {
				if reset.ErrCode != http2.ErrCodeProtocol {
					t.Errorf("the stream ends with %s", reset.ErrCode)
				}
				return
			}
		}
	})
}

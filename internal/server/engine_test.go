package server

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/certs"
)

// guarded is an engine that reports the protocol and key of each request, path by path.
type guarded struct {
	server *httptest.Server
	mu     sync.Mutex
	asked  map[string]string // by path; guarded by mu
}

func newGuarded(t *testing.T, cert *tls.Certificate) *guarded {
	t.Helper()
	g := &guarded{asked: map[string]string{}}
	g.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		g.mu.Lock()
		g.asked[r.URL.Path] = fmt.Sprintf("%s tls=%v %s", r.Proto, r.TLS != nil, r.Header.Get("Authorization"))
		g.mu.Unlock()
		switch r.URL.Path {
		case "/metrics":
			_, _ = io.WriteString(w, "vllm:num_requests_running 0\n")
		case "/v1/models":
			_, _ = io.WriteString(w, `{"data":[{"id":"m","root":"/models/m","max_model_len":8192},{"id":"lora","parent":"m"}]}`)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"choices":[]}`)
		}
	}))
	g.server.Config.Protocols = new(http.Protocols)
	g.server.Config.Protocols.SetHTTP1(true)
	g.server.Config.Protocols.SetUnencryptedHTTP2(true)
	if cert != nil {
		g.server.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}}
		g.server.StartTLS()
	} else {
		g.server.Start()
	}
	t.Cleanup(g.server.Close)
	return g
}

func (g *guarded) how(path string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked[path]
}

func (g *guarded) slice(t *testing.T) string {
	t.Helper()
	return `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: m-a, labels: {kvasir.dev/pool: m}}
addressType: IPv4
ports: [{name: http, port: ` + portOf(t, g.server.Listener.Addr().String()) + `}]
endpoints:
- {addresses: [127.0.0.1], targetRef: {kind: Pod, name: m-0}}
`
}

// All that the picker asks an engine, for clients and for itself, goes by the pool's protocol, TLS and API key, and a
// new key is in force as soon as the Secret has it.
func TestEnginesAreSpokenToAsThePoolSays(t *testing.T) {
	cert, err := certs.SelfSigned([]string{"engine.llm"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}))
	secret := func(key string) string {
		return "apiVersion: v1\nkind: Secret\nmetadata: {name: k}\nstringData: {token: " + strconv.Quote(key+"\n") + ", ca.crt: " + strconv.Quote(ca) + "}\n"
	}
	for name, tc := range map[string]struct {
		cert   *tls.Certificate
		engine string
		want   string
	}{
		"plain": {nil, "", "HTTP/1.1 tls=false"},
		"h2c":   {nil, "protocol: H2C, ", "HTTP/2.0 tls=false"},
		"TLS":   {cert, "tls: {serverName: engine.llm, caSecretRef: {name: k, key: ca.crt}}, ", "HTTP/1.1 tls=true"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, e := t.TempDir(), newGuarded(t, tc.cert)
			put(t, filepath.Join(dir, "secret.yaml"), secret("one"))
			put(t, filepath.Join(dir, "pool.yaml"), poolText("m", "m", "}, engine: {"+tc.engine+"events: {source: None}, clientAuth: PoolKey, apiKey: {name: k, key: token}"))
			put(t, filepath.Join(dir, "pods.yaml"), e.slice(t))
			p := runOn(t, dir)
			p.awaitReady()
			for _, key := range []string{"one", "two"} {
				put(t, filepath.Join(dir, "secret.yaml"), secret(key))
				want := tc.want + " Bearer " + key
				p.eventually("the engine is asked with the key "+key, func() bool {
					if status, body := p.complete("m"); status != http.StatusOK {
						t.Fatalf("status %d, %s", status, body)
					}
					return e.how("/v1/completions") == want
				})
				for _, path := range []string{"/metrics", "/v1/models", "/version"} { // scraper, adapters, proof of tokens
					p.eventually(path+" is asked with the key "+key, func() bool { return e.how(path) == want || path == "/version" && e.how(path) != "" })
				}
			}
			p.eventually("the adapter is served", func() bool { status, _ := p.complete("lora"); return status == http.StatusOK })
			if _, list := p.get(p.listeners.proxy, "/v1/models"); !strings.Contains(list, `"id":"lora"`) || !strings.Contains(list, `"id":"m"`) {
				t.Errorf("models %s", list)
			}
			if _, m := p.get(p.listeners.proxy, "/v1/models/m"); !strings.Contains(m, `"root":"/models/m"`) || !strings.Contains(m, `"max_model_len":8192`) {
				t.Errorf("the model is not as the engine says: %s", m)
			}
		})
	}
}

// Clusters that migrate from vllm --api-key keep its check: by default the engine sees the client's key, while the picker
// sends the pool's in its own requests.
func TestEnginesGoOnCheckingTheKeysOfClients(t *testing.T) {
	dir, e := t.TempDir(), newGuarded(t, nil)
	put(t, filepath.Join(dir, "secret.yaml"), "apiVersion: v1\nkind: Secret\nmetadata: {name: k}\nstringData: {token: one}\n")
	put(t, filepath.Join(dir, "pool.yaml"), poolText("m", "m", "}, engine: {events: {source: None}, apiKey: {name: k, key: token}"))
	put(t, filepath.Join(dir, "pods.yaml"), e.slice(t))
	p := runOn(t, dir)
	p.awaitReady()
	p.complete("m")
	if how := e.how("/v1/completions"); strings.Contains(how, "Bearer") {
		t.Errorf("a request without a key has come with one: %s", how)
	}
	for _, path := range []string{"/metrics", "/v1/models"} {
		p.eventually(path+" is asked with the pool's key", func() bool { return strings.HasSuffix(e.how(path), "Bearer one") })
	}
}

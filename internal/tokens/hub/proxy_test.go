package hub

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

// connector is a proxy: it connects those that ask to the address that it has for a name.
type connector struct {
	hosts  map[string]string // host:port to address; it does not change
	closed atomic.Bool       // it refuses all

	mu   sync.Mutex
	seen []string // guarded by mu; method and target of each request, with what would be secrets in it
}

func (p *connector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.seen = append(p.seen, r.Method+" "+r.Host+" "+r.Header.Get("Authorization"))
	p.mu.Unlock()
	to := p.hosts[r.Host]
	if r.Method != http.MethodConnect || to == "" || p.closed.Load() {
		http.Error(w, "not through here", http.StatusForbidden)
		return
	}
	there, err := net.Dial("tcp", to)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer there.Close()
	here, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer here.Close()
	if _, err := io.WriteString(here, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	go func() { _, _ = io.Copy(there, here); _ = there.Close() }()
	_, _ = io.Copy(here, there)
}

// proxyOf is the proxy of settings.
func proxyOf(set func(*Config)) *url.URL {
	var c Config
	set(&c)
	return c.Proxy
}

// throughProxyOf starts a hub of names that only a proxy knows.
func throughProxyOf(t *testing.T) (w *world, p *connector, set func(*Config)) {
	t.Helper()
	w = newWorld(t)
	w.hub.Close()
	w.cdn.Close()
	w.hub, w.cdn = httptest.NewTLSServer(http.HandlerFunc(w.serve)), httptest.NewTLSServer(http.HandlerFunc(w.serveLarge))
	t.Cleanup(w.hub.Close)
	t.Cleanup(w.cdn.Close)
	authorities, err := certs.ParseAuthorities(pemOf(w.hub.Certificate()))
	if err != nil {
		t.Fatal(err)
	}
	p = &connector{hosts: map[string]string{"example.com:443": w.hub.Listener.Addr().String(), "example.com:8443": w.cdn.Listener.Addr().String()}}
	w.cdn.URL = "https://example.com:8443"
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	proxy, err := ParseProxy(server.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	return w, p, func(c *Config) { c.Authorities, c.Proxy = authorities, proxy }
}

// TestAHubBehindAProxy: all requests go through it, and it sees names of hosts, and nothing else.
func TestAHubBehindAProxy(t *testing.T) {
	w, p, set := throughProxyOf(t)
	h := open(t, "https://example.com", t.TempDir(), set)
	h.Keep([]modelfiles.Repository{model})
	has(t, h.await(model, "files through the proxy", func(f Files) bool { return f.Err == nil && f.Dir != "" }).Dir, w.commits[first])
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, host := range []string{"example.com:443", "example.com:8443"} {
		if !slices.Contains(p.seen, "CONNECT "+host+" ") {
			t.Errorf("the proxy has seen %q, and nothing to %s", p.seen, host)
		}
	}
	for _, one := range p.seen {
		if !strings.HasPrefix(one, "CONNECT example.com:") || !strings.HasSuffix(one, " ") {
			t.Errorf("the proxy was asked for %q", one)
		}
	}
}

// TestAProxyThatRefuses: the message says so, nothing goes around the proxy, and when it admits the picker the files are there.
func TestAProxyThatRefuses(t *testing.T) {
	w, p, set := throughProxyOf(t)
	p.closed.Store(true)
	h := open(t, "https://example.com", t.TempDir(), set)
	h.Keep([]modelfiles.Repository{model})
	h.await(model, "the proxy's refusal", func(f Files) bool {
		return f.Dir == "" && f.Err != nil && strings.Contains(f.Err.Error(), "the proxy "+proxyOf(set).Host+" answers 403 Forbidden")
	})
	if asked := w.asked(); len(asked) > 0 {
		t.Errorf("the hub was asked for %q around the proxy", asked)
	}
	p.closed.Store(false)
	has(t, h.await(model, "files after the refusal", func(f Files) bool { return f.Err == nil && f.Dir != "" }).Dir, w.commits[first])
}

// TestRedirectsThroughAProxy: a hub cannot use a proxy to reach addresses of its network.
func TestRedirectsThroughAProxy(t *testing.T) {
	for _, to := range []string{"https://127.0.0.1:1", "https://10.0.0.1", "https://169.254.169.254", "https://[fd00:ec2::254]", "https://[::1]:443"} {
		w, p, set := throughProxyOf(t)
		w.cdn.URL = to
		h := open(t, "https://example.com", t.TempDir(), set)
		h.Keep([]modelfiles.Repository{model})
		h.await(model, "the redirect is refused", func(f Files) bool { return f.Err != nil && strings.Contains(f.Err.Error(), "not public") })
		p.mu.Lock()
		if slices.ContainsFunc(p.seen, func(s string) bool { return !strings.HasPrefix(s, "CONNECT example.com:443") }) {
			t.Errorf("redirected to %s, the proxy was asked for %q", to, p.seen)
		}
		p.mu.Unlock()
	}
}

func TestWhatIsNoProxy(t *testing.T) {
	for text, good := range map[string]bool{
		"http://proxy:3128": true, "https://proxy": true, "http://[::1]:3128/": true,
		"": false, "proxy:3128": false, "socks5://proxy:1080": false, "http://": false, "http://proxy/path": false, "http://user:secret@proxy": false,
	} {
		u, err := ParseProxy(text)
		if (err == nil) != good || err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q is %v, %v", text, u, err)
		}
		if err == nil && u.Path != "" {
			t.Errorf("%q has the path %q", text, u.Path)
		}
	}
}

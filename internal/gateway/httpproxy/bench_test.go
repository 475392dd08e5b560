package httpproxy

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// cpu is the process's CPU time so far.
func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// promptOf is a completion request of so many token ids.
func promptOf(ids int) []byte {
	b := []byte(`{"model":"m","stream":true,"prompt":[`)
	for i := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(i*7919%128000), 10)
	}
	return append(b, `]}`...)
}

// trivial answers with a few events, or with a small JSON.
func trivial(events int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if events == 0 {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(bytes.Repeat([]byte(" "), 1<<10))
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for range events {
			say(w, token("word"))
		}
	}
}

// BenchmarkRequest is one request through the proxy, beside the same through net/http/httputil.ReverseProxy and
// straight to the engine. Client and engine are in the process: cpu-µs/op is that of all three, and the proxy's own
// part is what is more than via=nothing.
func BenchmarkRequest(b *testing.B) {
	for _, work := range []struct {
		name        string
		ids, events int
	}{
		{"1KB-json", 180, 0},
		{"1KB-16events", 180, 16},
		{"12k-ids-16events", 12000, 16},
	} {
		engine := httptest.NewServer(trivial(work.events))
		defer engine.Close()
		body := promptOf(work.ids)
		for _, via := range []string{"nothing", "reverseproxy", "kvasir"} {
			b.Run(fmt.Sprintf("%s/via=%s", work.name, via), func(b *testing.B) {
				base, stop := front(b, via, engine.URL)
				defer stop()
				transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 100}
				defer transport.CloseIdleConnections()
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				begin := cpu()
				for b.Loop() {
					r, err := http.NewRequest("POST", base+"/v1/completions", bytes.NewReader(body))
					if err != nil {
						b.Fatal(err)
					}
					answer, err := transport.RoundTrip(r)
					if err != nil {
						b.Fatal(err)
					}
					if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != 200 {
						b.Fatal(err, answer.Status)
					}
					_ = answer.Body.Close()
				}
				b.ReportMetric(float64((cpu()-begin).Microseconds())/float64(b.N), "cpu-µs/op")
			})
		}
	}
}

// front starts what stands before the engine.
func front(b *testing.B, via, engine string) (base string, stop func()) {
	b.Helper()
	target, err := url.Parse(engine)
	if err != nil {
		b.Fatal(err)
	}
	switch via {
	case "reverseproxy":
		transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 100}
		s := httptest.NewServer(&httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
			Transport:     transport,
			FlushInterval: -1,
		})
		return s.URL, func() { s.Close(); transport.CloseIdleConnections() }
	case "kvasir":
		p := picker.New(picker.Options{Log: logr.Discard()})
		s := spec()
		s.NoEvents = false
		s.Policy.Strategy = policy.Config{Type: policy.MarginalCost}
		_, port, err := net.SplitHostPort(target.Host)
		if err != nil {
			b.Fatal(err)
		}
		for i := range 8 { // addresses of one engine
			s.Endpoints = append(s.Endpoints, spec(fmt.Sprintf("127.0.0.%d:%s", 1, port)).Endpoints[0])
			s.Endpoints[i].ID.Rank = i
		}
		if err := p.Apply([]picker.Spec{s}); err != nil {
			b.Fatal(err)
		}
		proxy := New(Options{Picker: p, Log: logr.Discard()})
		server := httptest.NewServer(proxy)
		return server.URL, func() { server.Close(); proxy.Close() }
	}
	return engine, func() {}
}

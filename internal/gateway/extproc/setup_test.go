package extproc

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// patience is how long a condition can take to become true before a test fails.
const patience = 20 * time.Second

// spec is a pool of engines at the given addresses, tried in their order: the strategy RoundRobin begins with the
// first.
func spec(addresses ...string) picker.Spec {
	s := picker.Spec{
		Namespace: "default", Name: "pool", Model: "m", Aliases: []string{"alias"}, Adapters: []string{"lora"},
		Engine: "VLLM", NoEvents: true, BlockTokens: 16, MaxRequestBody: 8 << 20,
		Policy: picker.PolicySpec{
			Strategy: policy.Config{Type: policy.RoundRobin}, SpeculationMax: time.Minute, MaxKVUsage: 0.95,
			CircuitFailures: 1000, CircuitOpen: time.Second, Attempts: 3, AnswerHeaders: "Never",
		},
	}
	for i, a := range addresses {
		s.Endpoints = append(s.Endpoints, endpoint.Endpoint{
			ID: endpoint.ID{Pod: fmt.Sprintf("uid-%d", i)}, Pod: fmt.Sprintf("pod-%d", i), Namespace: "default",
			Address: a, RankHeader: -1, Ready: true, Serving: true,
		})
	}
	return s
}

// house is a picker that serves gateways on a real socket.
type house struct {
	t       *testing.T
	picker  *picker.Picker
	server  *Server
	address string
	seen    *recorder
	// stop ends the server and waits for it. It is called by the test's cleanup at the latest.
	stop func()
}

func newHouse(t *testing.T, o Options, so ServeOptions, specs ...picker.Spec) *house {
	t.Helper()
	p := picker.New(picker.Options{Log: logr.Discard()})
	if err := p.Apply(specs); err != nil {
		t.Fatal(err)
	}
	h := &house{t: t, picker: p, seen: new(recorder)}
	o.Picker, o.Observer = p, h.seen
	h.server = New(o)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	so.Grace = cmp.Or(so.Grace, patience)
	go func() { done <- h.server.Serve(ctx, listener, so) }()
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(h.stop)
	return h
}

var (
	plain     = grpc.WithTransportCredentials(insecure.NewCredentials())
	unchecked = grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})) // as gateways do
)

// standIn is a stand-in for Envoy before the picker.
type standIn struct {
	t       *testing.T
	gateway *envoytest.Gateway
	url     string
	close   func()
}

func (h *house) envoy(o envoytest.Options) *standIn {
	h.t.Helper()
	if o.Pickers == nil {
		o.Pickers = []string{h.address}
	}
	return newGate(h.t, o)
}

func newGate(t *testing.T, o envoytest.Options) *standIn {
	t.Helper()
	o.MessageTimeout = cmp.Or(o.MessageTimeout, patience) // Envoy's 200 ms would judge how busy the machine is
	if o.Dial == nil {
		o.Dial = []grpc.DialOption{plain}
	}
	g, err := envoytest.New(o)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(g)
	one := &standIn{t: t, gateway: g, url: server.URL}
	one.close = sync.OnceFunc(func() {
		server.Close()
		g.Close()
		for _, v := range g.Violations() {
			t.Errorf("a rule of Envoy's is broken: %s", v)
		}
	})
	t.Cleanup(one.close)
	return one
}

// engine starts a stand-in engine and returns its address.
func engine(t *testing.T, f http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// says answers every request with a text.
func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, text)
	}
}

const completion = `{"model":"m","prompt":[1,2,3],"stream":false}`

func (g *standIn) post(path, body string, header ...string) *http.Response {
	g.t.Helper()
	r, err := http.NewRequestWithContext(g.t.Context(), http.MethodPost, g.url+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	return g.do(r, header...)
}

func (g *standIn) do(r *http.Request, header ...string) *http.Response {
	g.t.Helper()
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}, Timeout: patience}
	g.t.Cleanup(client.CloseIdleConnections)
	answer, err := client.Do(r)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = answer.Body.Close() })
	return answer
}

func read(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatalf("reading the answer: %v", err)
	}
	return string(b)
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("not within %v: %s\n%s", patience, what, buf[:runtime.Stack(buf, true)])
		}
	}
}

// outcomes waits until as many requests have ended as want says, compares, and waits until nothing is left of any.
func (h *house) outcomes(want map[picker.Outcome]int64) {
	h.t.Helper()
	total := int64(0)
	for _, n := range want {
		total += n
	}
	eventually(h.t, fmt.Sprintf("outcomes %v", want), func() bool {
		got := h.picker.Stats()[0].Outcomes
		sum := int64(0)
		for _, n := range got {
			sum += n
		}
		if sum < total {
			return false
		}
		for o, n := range got {
			if n != want[o] {
				h.t.Fatalf("outcomes: got %v, want %v", got, want)
			}
		}
		return true
	})
	if want[picker.Unreported] == 0 {
		h.idle()
	}
}

// idle waits until nothing of any request is left.
func (h *house) idle() {
	h.t.Helper()
	eventually(h.t, "no load, no speculation, no body held, no stream", func() bool {
		for _, s := range h.picker.Stats() {
			if s.Speculating != 0 || s.Speculative > s.Proven {
				return false
			}
			for _, ep := range s.Endpoints {
				if ep.Load.InFlight != 0 || ep.Load.PendingTokens != 0 {
					return false
				}
			}
		}
		return h.server.Buffered() == 0 && h.server.Streams() == 0
	})
	h.seen.mu.Lock()
	defer h.seen.mu.Unlock()
	ended := 0
	for _, n := range h.seen.ended {
		ended += n
	}
	if h.seen.picked != ended {
		h.t.Errorf("%d requests picked for, %d ended", h.seen.picked, ended)
	}
}

// recorder is an Observer.
type recorder struct {
	mu      sync.Mutex
	refused map[string]int
	picked  int
	first   int
	targets []string
	models  []string
	ended   map[picker.Outcome]int
}

func (r *recorder) Refused(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refused == nil {
		r.refused = map[string]int{}
	}
	r.refused[reason]++
}

func (r *recorder) Picked(d *picker.Decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.picked++
	r.targets = append(r.targets, d.Targets[0].Endpoint.Address)
	r.models = append(r.models, d.Model)
}

func (r *recorder) FirstToken(*picker.Decision, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.first++
}

func (r *recorder) Ended(_ *picker.Decision, outcome picker.Outcome, _ time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended == nil {
		r.ended = map[picker.Outcome]int{}
	}
	r.ended[outcome]++
}

func (r *recorder) count(f func(*recorder) int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return f(r)
}

func readRequest(r *http.Request) string {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return "error: " + err.Error()
	}
	return string(b)
}

// await waits for an engine's report.
func await[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("the engine was not reached")
		panic("unreachable")
	}
}

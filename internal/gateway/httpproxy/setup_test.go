package httpproxy

import (
	"context"
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

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// patience is how long a condition can take to become true before a test fails.
const patience = 20 * time.Second

// inTime is within what an engine answers that does so at once, with the race detector and on a busy machine.
const inTime = 3 * time.Second

// spec is a pool of engines at the given addresses, tried in their order: the strategy RoundRobin begins with the
// first.
func spec(addresses ...string) picker.Spec {
	s := picker.Spec{
		Namespace: "default", Name: "pool", Model: "m", Aliases: []string{"alias"}, Adapters: []string{"lora"},
		Engine: "VLLM", NoEvents: true, BlockTokens: 16, MaxRequestBody: 1 << 20,
		Policy: picker.PolicySpec{
			Strategy: policy.Config{Type: policy.RoundRobin}, SpeculationMax: time.Minute, MaxKVUsage: 0.95,
			CircuitFailures: 1000, CircuitOpen: time.Second, Attempts: 3, RetryConnect: true, RetryReset: true, RetryServerError: true,
			FirstByte: time.Minute, AnswerHeaders: "Never",
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

// house is a proxy with its picker behind a real socket.
type house struct {
	t      *testing.T
	picker *picker.Picker
	proxy  *Proxy
	url    string
	seen   *recorder
	// stop ends the server and waits for it. It is called by the test's cleanup at the latest.
	stop func()
}

func newHouse(t *testing.T, o Options, specs ...picker.Spec) *house {
	t.Helper()
	return houseOf(t, picker.Options{}, o, specs...)
}

// houseOf is newHouse with a picker of these options.
func houseOf(t *testing.T, choosing picker.Options, o Options, specs ...picker.Spec) *house {
	t.Helper()
	choosing.Log = logr.Discard()
	p := picker.New(choosing)
	if err := p.Apply(specs); err != nil {
		t.Fatal(err)
	}
	h := &house{t: t, picker: p, seen: new(recorder)}
	o.Picker, o.Observer = p, h.seen
	h.proxy = New(o)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.url = "http://" + listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, listener, h.proxy, ServeOptions{Grace: patience, Log: logr.Discard()})
	}()
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		h.proxy.Close()
	})
	t.Cleanup(h.stop)
	return h
}

// engine starts a stand-in engine and returns its address.
func engine(t *testing.T, f http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// nobodyAt is an address where no process listens, nor will: a free port could become that of the proxy itself.
func nobodyAt(t *testing.T) string {
	t.Helper()
	return "127.0.0.1:1"
}

func (h *house) post(path, body string, header ...string) *http.Response {
	h.t.Helper()
	r, err := http.NewRequest(http.MethodPost, h.url+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	return h.do(r, header...)
}

func (h *house) do(r *http.Request, header ...string) *http.Response {
	h.t.Helper()
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	h.t.Cleanup(client.CloseIdleConnections)
	answer, err := client.Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = answer.Body.Close() })
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

// await waits for a signal.
func await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
		panic("unreachable")
	}
}

// outcomes waits until as many requests have ended as want says, and compares.
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
	h.idle()
}

// idle waits until nothing of any request is left.
func (h *house) idle() {
	h.t.Helper()
	eventually(h.t, "no load, no speculation, no body held", func() bool {
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
		return h.proxy.budget.Stats().Held == 0
	})
}

// recorder is an Observer.
type recorder struct {
	mu      sync.Mutex
	refused map[string]int
	picked  int
	first   int
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

func (r *recorder) Picked(*picker.Decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.picked++
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

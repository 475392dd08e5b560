package envoy

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// idHeader names a request in Envoy's access log, at the engines and in the tests.
const idHeader = "X-Test-Id"

// engine is a simulated engine behind a door that notes which requests it has served, and holds streams on demand.
type engine struct {
	*vllmsim.Engine // nil for a real one
	door            *httptest.Server
	// closeReused: connections are closed when they bring a second request.
	closeReused atomic.Bool

	mu     sync.Mutex
	served map[string]int   // guarded by mu, by id
	holds  map[string]*hold // guarded by mu, by id
	full   map[string]bool  // guarded by mu, ids of requests that are answered with 503
	asked  map[string]int   // guarded by mu, requests by the model in their bodies
}

// hold stops a streamed answer after its first piece, until the client has it or the time is over.
type hold struct {
	arrived chan struct{} // closed by the client
	most    time.Duration
	// inTime: the client had the first piece before the engine sent more.
	inTime chan bool
}

func newHold(most time.Duration) *hold {
	return &hold{arrived: make(chan struct{}), most: most, inTime: make(chan bool, 1)}
}

// engines starts simulated engines that serve the model "m", or doors to the real one.
func engines(t *testing.T, n int, configure func(*vllmsim.Config)) []*engine {
	t.Helper()
	var all []*engine
	for range n {
		if *vllm != "" {
			all = append(all, behindDoor(t, nil, *vllm))
			continue
		}
		c := vllmsim.Config{ServedModelNames: []string{"m"}, SpeedUp: 100, MaxModelLen: 8192, Events: vllmsim.EventsConfig{Disabled: true}}
		if configure != nil {
			configure(&c)
		}
		sim, err := vllmsim.Start(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sim.Close() })
		all = append(all, behindDoor(t, sim, sim.URL()))
	}
	return all
}

func behindDoor(t *testing.T, sim *vllmsim.Engine, at string) *engine {
	t.Helper()
	to, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{Engine: sim, served: map[string]int{}, holds: map[string]*hold{}, full: map[string]bool{}, asked: map[string]int{}}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport = &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 100}
	proxy.FlushInterval = -1
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) } // a dead engine answers nothing
	proxy.ModifyResponse = func(r *http.Response) error {
		id := r.Request.Header.Get(idHeader)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.served[id]++
		if h := e.holds[id]; h != nil {
			r.Body = &held{ReadCloser: r.Body, hold: h}
		}
		return nil
	}
	e.door = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if used := r.Context().Value(requests{}).(*atomic.Int64); used.Add(1) > 1 && e.closeReused.Load() {
			panic(http.ErrAbortHandler)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		e.notes(body)
		if e.refuses(r.Header.Get(idHeader)) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"error":{"message":"too many requests wait","code":503}}`)
			return
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		proxy.ServeHTTP(w, r)
	}))
	e.door.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, requests{}, new(atomic.Int64))
	}
	e.door.Start()
	t.Cleanup(e.kill)
	return e
}

// requests is the key of a connection's number of requests.
type requests struct{}

// address is where gateways reach the engine.
func (e *engine) address() string { return e.door.Listener.Addr().String() }

// kill ends the engine as SIGKILL does.
func (e *engine) kill() {
	_ = e.door.Config.Close()
	if e.Engine != nil {
		e.Kill()
	}
}

func (e *engine) hold(id string, h *hold) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.holds[id] = h
}

// refuse has the engine answer a request with 503, as one does whose queue is full.
func (e *engine) refuse(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.full[id] = true
}

func (e *engine) refuses(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.full[id]
}

// notes counts the model that a request has come with.
func (e *engine) notes(body []byte) {
	var q struct{ Model string }
	if json.Unmarshal(body, &q) != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked[q.Model]++
}

// askedFor is how many requests have come with a model, and with others.
func (e *engine) askedFor(model string) (of, others int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, n := range e.asked {
		if name == model {
			of += n
		} else {
			others += n
		}
	}
	return of, others
}

// has reports whether the engine has answered a request.
func (e *engine) has(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.served[id] > 0
}

// An answer with so many tokens that takes so long counts as held back by the gateway if it arrives in one piece. An engine that
// is held up puts several tokens into one event, as vLLM does; too few events prove nothing, hence the number.
const (
	heldTokens = 64
	heldAnswer = 400 * time.Millisecond
)

// firstPiece is how many bytes of a held answer arrive first: fewer than any answer has.
const firstPiece = 64

// held is the body of an answer that is held after its first piece.
type held struct {
	io.ReadCloser
	hold  *hold
	reads int
}

func (h *held) Read(p []byte) (int, error) {
	switch h.reads++; h.reads {
	case 1:
		p = p[:min(len(p), firstPiece)]
	case 2:
		select {
		case <-h.hold.arrived:
			h.hold.inTime <- true
		case <-time.After(h.hold.most):
			h.hold.inTime <- false
		}
	}
	return h.ReadCloser.Read(p)
}

// servedBy is the address of the engine that has answered a request; empty when none has.
func servedBy(all []*engine, id string) string {
	for _, e := range all {
		if e.has(id) {
			return e.address()
		}
	}
	return ""
}

func addresses(all []*engine) []string {
	var list []string
	for _, e := range all {
		list = append(list, e.address())
	}
	return list
}

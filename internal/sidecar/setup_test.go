package sidecar

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/relay"
)

// patience is how long something that must happen can take.
const patience = 20 * time.Second

func seedOf(t testing.TB, text string) kvblock.Seed {
	t.Helper()
	s, err := kvblock.NewSeed([]byte(strings.Repeat(text, kvblock.MinSeedBytes)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// house is a sidecar, the engine behind it, and one that prefills.
type house struct {
	testing.TB
	seed            kvblock.Seed
	server          *Server
	address         string
	prefill, decode *engine
	client          *http.Client
	stop            context.CancelFunc
	over            sync.WaitGroup
}

// newHouse starts one. The engines answer as vLLM does until the test changes that.
func newHouse(t testing.TB, change func(o *Options), config *tls.Config) *house {
	t.Helper()
	h := &house{TB: t, seed: seedOf(t, "a")}
	h.prefill, h.decode = newEngine(t), newEngine(t)
	o := Options{Engine: h.decode.address(), Pod: podUID, Seeds: func() []kvblock.Seed { return []kvblock.Seed{h.seed} }}
	if change != nil {
		change(&o)
	}
	h.server = New(o)
	h.address = "127.0.0.1:0"
	opened := make(chan struct{}, 8)
	listen := func() (net.Listener, error) {
		l, err := new(net.ListenConfig).Listen(context.WithoutCancel(t.Context()), "tcp", h.address)
		if err == nil && len(opened) == 0 {
			h.address = l.Addr().String()
			opened <- struct{}{}
		}
		return l, err
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	h.stop = stop
	h.over.Go(func() {
		if err := h.server.Serve(ctx, listen, config, time.Second); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-opened:
	case <-time.After(patience):
		t.Fatal("the port is not opened")
	}
	opened <- struct{}{}
	h.client = &http.Client{Transport: &http.Transport{DisableCompression: true}}
	t.Cleanup(func() { h.client.CloseIdleConnections(); stop(); h.over.Wait() })
	return h
}

// ticket is one for the engine that prefills.
func (h *house) ticket() string {
	return sign(h.prefill.address(), h.seed, time.Now())
}

const podUID = "0b9c9a4e-pod"

var ids atomic.Uint64

// sign makes a ticket for the pod.
func sign(address string, seed kvblock.Seed, at time.Time) string {
	return (&relay.Ticket{Address: address, Pods: []string{relay.TagOf("other"), relay.TagOf(podUID)}, ID: ids.Add(1)}).Sign(at, seed)
}

const (
	streamed = `{"model":"m","stream":true,"max_tokens":3,"min_tokens":2,"seed":9007199254740993,"prompt":[1,2,3]}`
	whole    = `{"model":"m","max_tokens":3,"prompt":[1,2,3]}`
)

func (h *house) request(ctx context.Context, body string, header ...string) *http.Request {
	h.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+h.address+"/v1/completions", strings.NewReader(body))
	if err != nil {
		h.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

// reply is an answer that was read to its end.
type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

func (h *house) ask(body string, header ...string) reply {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), patience)
	defer cancel()
	return h.do(h.request(ctx, body, header...))
}

func (h *house) do(r *http.Request) reply {
	answer, err := h.client.Do(r)
	if err != nil {
		return reply{err: err}
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	return reply{answer.StatusCode, answer.Header, string(body), err}
}

// rests checks that nothing is left of any request.
func (h *house) rests() {
	h.Helper()
	until(h, "no request is under way", func() bool { s := h.server.Stats(); return s.UnderWay == 0 && s.HeldBytes == 0 })
}

func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("never: %s\n%s", what, buf[:runtime.Stack(buf, true)])
		}
	}
}

// got is a request that an engine has received.
type got struct {
	method, uri, host, body string
	header                  http.Header
	length                  int64
	coding                  []string
}

// field is a field of its body.
func (g got) field(name string) string {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal([]byte(g.body), &fields)
	return string(fields[name])
}

// engine answers requests, and keeps them.
type engine struct {
	http   *httptest.Server
	answer atomic.Pointer[http.HandlerFunc] // nil for as vLLM does
	mu     sync.Mutex
	all    []got // guarded by mu
	conns  atomic.Int64
}

func newEngine(t testing.TB) *engine {
	e := &engine{}
	e.http = httptest.NewUnstartedServer(e)
	e.http.Config.DisableGeneralOptionsHandler = true
	e.http.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			e.conns.Add(1)
		}
	}
	e.http.Start()
	t.Cleanup(func() { e.http.CloseClientConnections(); e.http.Close() })
	return e
}

func (e *engine) address() string { return e.http.Listener.Addr().String() }

// does sets how the engine answers.
func (e *engine) does(f http.HandlerFunc) { e.answer.Store(&f) }

// received are the requests so far.
func (e *engine) received() []got {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]got(nil), e.all...)
}

const parameters = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"e","new":9007199254740993}`

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	e.mu.Lock()
	e.all = append(e.all, got{r.Method, r.RequestURI, r.Host, string(body), r.Header.Clone(), r.ContentLength, r.TransferEncoding})
	e.mu.Unlock()
	if f := e.answer.Load(); f != nil {
		r.Body = io.NopCloser(bytes.NewReader(body))
		(*f)(w, r)
		return
	}
	asVLLM(w, body)
}

// asVLLM answers a leg, or a request as a whole.
func asVLLM(w http.ResponseWriter, body []byte) {
	const usage = `"usage":{"prompt_tokens":40,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":16}}`
	switch text := string(body); {
	case strings.Contains(text, `"do_remote_decode":true`):
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"choices":[{"index":0,"text":"a","finish_reason":"length"}],%s,"kv_transfer_params":%s}`, usage, parameters)
	case strings.Contains(text, `"stream":true`):
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, event := range []string{`{"choices":[{"index":0,"text":"a"}]}`, `{"choices":[{"index":0,"text":"b","finish_reason":"length"}]}`, "[DONE]"} {
			_, _ = io.WriteString(w, "data: "+event+"\n\n")
			_ = http.NewResponseController(w).Flush()
		}
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"ab","finish_reason":"length"}],`+usage+`}`)
	}
}

const wholeStream = "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n" +
	"data: {\"choices\":[{\"index\":0,\"text\":\"b\",\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n"

package envoy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/test/sidecarwire"
)

// TestTheSidecarsWireIsAsRecorded compares what the sidecar sends and answers with what is recorded of it, which other tests play against
// the picker without a sidecar. -update records.
func TestTheSidecarsWireIsAsRecorded(t *testing.T) {
	if *vllm != "" {
		t.Skip("the engines are scripted")
	}
	version, err := os.ReadFile("../../hack/sidecar/version")
	if err != nil {
		t.Fatal(err)
	}
	got := sidecarwire.Record{Version: strings.TrimSpace(string(version)), Date: time.Now().UTC().Format(time.DateOnly)}
	for _, c := range wireCases() {
		got.Exchanges = append(got.Exchanges, c.exchange(t))
	}
	if *update {
		if err := got.Write("../sidecarwire/wire.json"); err != nil {
			t.Fatal(err)
		}
		return
	}
	want := sidecarwire.Recorded()
	if want.Version != got.Version {
		t.Fatalf("%s is recorded, %s runs", want.Version, got.Version)
	}
	for i := range got.Exchanges {
		g, err := json.MarshalIndent(got.Exchanges[i], "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		w, err := json.MarshalIndent(want.Of(got.Exchanges[i].Name), "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(g, w) {
			t.Errorf("%s: the sidecar does\n%s\nrecorded is\n%s", got.Exchanges[i].Name, g, w)
		}
	}
	if len(want.Exchanges) != len(got.Exchanges) {
		t.Errorf("%d exchanges are recorded, %d were run", len(want.Exchanges), len(got.Exchanges))
	}
}

// wireCase is a request to the sidecar, and how the engines answer.
type wireCase struct {
	name, path, body string
	prefillers       []string // values of the header: "P" stands for the engine that prefills
	prefill, decode  script
	flags            []string
	leave            string // the leg during which the client leaves
	lists            bool   // the sidecar has a list of engines, and P is not on it
}

// script is how an engine answers; the zero value is that of a dead one.
type script struct {
	status int
	body   string
	stream bool
	cut    bool // it closes the connection after the body
	hang   bool // it does not answer until its client leaves
}

const (
	prefilledAnswer = `{"id":"cmpl-p","object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":"length"}],` +
		`"usage":{"prompt_tokens":40,"completion_tokens":1,"total_tokens":41,"prompt_tokens_details":{"cached_tokens":16}},` +
		`"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3]],"remote_engine_id":"e",` +
		`"remote_request_id":"r","remote_host":"10.0.0.1","remote_port":5600,"tp_size":1,"remote_num_tokens":40}}`
	decodedAnswer = `{"id":"cmpl-d","object":"text_completion","choices":[{"index":0,"text":"abc","finish_reason":"length"}],` +
		`"usage":{"prompt_tokens":40,"completion_tokens":3,"total_tokens":43,"prompt_tokens_details":{"cached_tokens":40}}}`
	decodedStream = `data: {"id":"cmpl-d","object":"text_completion","choices":[{"index":0,"text":"abc","finish_reason":"length"}]}` + "\n\n" +
		`data: {"id":"cmpl-d","object":"text_completion","choices":[],` +
		`"usage":{"prompt_tokens":40,"completion_tokens":3,"total_tokens":43,"prompt_tokens_details":{"cached_tokens":40}}}` + "\n\ndata: [DONE]\n\n"
	engineError = `{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","param":null,"code":500}}`
	badRequest  = `{"error":{"message":"min_tokens must be less than or equal to max_tokens=1, got 5.","type":"BadRequestError","param":null,"code":400}}`
	queueFull   = `{"error":{"message":"The server is overloaded: too many requests are in flight","type":"TooManyRequests","param":null,"code":429}}`
	firstEvent  = `data: {"id":"cmpl-d","object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":null}]}` + "\n\n"
)

func wireCases() []wireCase {
	prefills, decodes := script{status: 200, body: prefilledAnswer}, script{status: 200, body: decodedAnswer}
	streams := script{status: 200, body: decodedStream, stream: true}
	const path, chat = "/v1/completions", "/v1/chat/completions"
	const plain, streamed = `{"model":"m","prompt":[1,2,3],"max_tokens":3}`, `{"model":"m","prompt":[1,2,3],"stream":true,"stream_options":{"include_usage":true}}`
	p := []string{"P"}
	return []wireCase{
		{name: "completion", path: path, body: plain, prefillers: p, prefill: prefills, decode: decodes},
		{name: "stream", path: path, body: streamed, prefillers: p, prefill: prefills, decode: streams},
		{name: "chat", path: chat, prefillers: p, prefill: prefills, decode: decodes,
			body: `{"model":"m","messages":[{"role":"user","content":"x"}],"max_completion_tokens":9,"min_tokens":5}`},
		{name: "responses", path: "/v1/responses", body: `{"model":"m","input":"x","max_output_tokens":9}`, prefillers: p, prefill: prefills, decode: decodes},
		{name: "another path", path: "/v1/embeddings", body: `{"model":"m","input":"x"}`, prefillers: p, prefill: prefills, decode: decodes},
		{name: "no header", path: path, body: plain, prefill: prefills, decode: decodes},
		{name: "an empty header", path: path, body: plain, prefillers: []string{""}, prefill: prefills, decode: decodes},
		{name: "a URL", path: path, body: plain, prefillers: []string{"http://P"}, prefill: prefills, decode: decodes},
		{name: "a list", path: path, body: plain, prefillers: []string{"P,127.0.0.1:1"}, prefill: prefills, decode: decodes},
		{name: "two headers", path: path, body: plain, prefillers: []string{"P", "127.0.0.1:1"}, prefill: prefills, decode: decodes},
		{name: "no parameters", path: path, body: plain, prefillers: p, prefill: script{status: 200, body: decodedAnswer}, decode: decodes},
		{name: "prefill dead", path: path, body: streamed, prefillers: p, decode: streams},
		{name: "prefill cut", path: path, body: streamed, prefillers: p, prefill: script{cut: true}, decode: streams},
		{name: "prefill error", path: path, body: streamed, prefillers: p, prefill: script{status: 500, body: engineError}, decode: streams},
		{name: "prefill unavailable", path: path, body: streamed, prefillers: p, prefill: script{status: 503, body: engineError}, decode: streams},
		{name: "prefill retried", path: path, body: streamed, prefillers: p, prefill: script{status: 503, body: engineError}, decode: streams,
			flags: []string{"--prefill-max-retries", "1", "--prefill-retry-backoff", "1ms"}},
		{name: "prefill refused", path: path, body: streamed, prefillers: p, prefill: script{status: 400, body: badRequest}, decode: streams},
		{name: "prefill full", path: path, body: streamed, prefillers: p, prefill: script{status: 429, body: queueFull}, decode: streams},
		{name: "prefill without JSON", path: path, body: streamed, prefillers: p, prefill: script{status: 200, body: "x"}, decode: streams},
		{name: "decode dead", path: path, body: streamed, prefillers: p, prefill: prefills},
		{name: "decode dead alone", path: path, body: streamed},
		{name: "decode cut", path: path, body: streamed, prefillers: p, prefill: prefills, decode: script{cut: true}},
		{name: "decode cut in the stream", path: path, body: streamed, prefillers: p, prefill: prefills,
			decode: script{status: 200, body: firstEvent, stream: true, cut: true}},
		{name: "decode error", path: path, body: streamed, prefillers: p, prefill: prefills, decode: script{status: 500, body: engineError}},
		{name: "decode full", path: path, body: streamed, prefillers: p, prefill: prefills, decode: script{status: 429, body: queueFull}},
		{name: "target not allowed", path: path, body: streamed, prefillers: p, prefill: prefills, decode: streams, lists: true,
			flags: []string{"--enable-ssrf-protection", "--inference-pool", "ns/pool"}},
		{name: "TLS by default", path: path, body: streamed, prefillers: p, prefill: prefills, decode: streams, flags: []string{"--secure-proxy"}},
		{name: "no JSON", path: path, body: "x", prefillers: p, prefill: prefills, decode: decodes},
		{name: "client gone in prefill", path: path, body: streamed, prefillers: p, prefill: script{hang: true}, decode: streams, leave: "prefill"},
		{name: "client gone in decode", path: path, body: streamed, prefillers: p, prefill: prefills, decode: script{hang: true}, leave: "decode"},
	}
}

// wireEngine is an engine that notes what it gets.
type wireEngine struct {
	address string
	begun   chan struct{} // a request has arrived that hangs
	gone    chan struct{} // and its client has left
	got     []sidecarwire.Message
}

func (s script) engine(t *testing.T) *wireEngine {
	t.Helper()
	e := &wireEngine{begun: make(chan struct{}, 1), gone: make(chan struct{}, 1)}
	if s == (script{}) {
		e.address = freeAddress(t)
		return e
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.address = l.Addr().String()
	server := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		e.got = append(e.got, sidecarwire.Message{Path: r.URL.Path, Header: shown(r.Header), Body: sidecarwire.Body(body)})
		s.answer(w, r, e)
	})}
	served := make(chan struct{})
	go func() { _ = server.Serve(l); close(served) }()
	t.Cleanup(func() { _ = server.Close(); <-served })
	return e
}

func (s script) answer(w http.ResponseWriter, r *http.Request, e *wireEngine) {
	if s.hang {
		e.begun <- struct{}{}
		select {
		case <-r.Context().Done():
			e.gone <- struct{}{}
		case <-time.After(patience):
		}
		return
	}
	if s.status == 0 {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	if s.stream {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	}
	w.WriteHeader(s.status)
	_, _ = io.WriteString(w, s.body)
	if s.cut {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

var ids = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// shown are the headers of a request or an answer that say something.
func shown(h http.Header) map[string][]string {
	out := map[string][]string{}
	for name, values := range h {
		switch name {
		case "Accept-Encoding", "Content-Length", "Date", "User-Agent", "Traceparent", "Server":
		default:
			for _, v := range values {
				out[name] = append(out[name], ids.ReplaceAllString(v, "UUID"))
			}
		}
	}
	return out
}

// exchange runs a case.
func (c wireCase) exchange(t *testing.T) sidecarwire.Exchange {
	t.Helper()
	prefill, decode := c.prefill.engine(t), c.decode.engine(t)
	var env []string
	if c.lists {
		env = []string{"KUBECONFIG=" + kubeconfig(t)}
	}
	s := startSidecarWith(t, decode.address, env, c.flags...)
	ask, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.address+c.path, strings.NewReader(c.body))
	if err != nil {
		t.Fatal(err)
	}
	ask.Header.Set("Content-Type", "application/json")
	ask.Header.Set("X-Request-Id", "ours")
	for _, value := range c.prefillers {
		ask.Header.Add(picker.PrefillerHeader, strings.Replace(value, "P", prefill.address, 1))
	}
	out := sidecarwire.Exchange{Name: c.name, Flags: c.flags, Prefillers: c.prefillers,
		Request: sidecarwire.Message{Path: c.path, Body: sidecarwire.Body([]byte(c.body))}}
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableCompression: true}}
	t.Cleanup(client.CloseIdleConnections)
	if c.leave != "" {
		out.Left = leave(t, client, ask, map[string]*wireEngine{"prefill": prefill, "decode": decode}[c.leave], c.leave)
	} else if answer, err := client.Do(ask); err != nil {
		out.Answer.Broken = true
	} else {
		body, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		out.Answer = sidecarwire.Answer{Status: answer.StatusCode, Broken: err != nil, Message: sidecarwire.Message{Header: shown(answer.Header), Body: string(body)}}
	}
	s.kill() // nothing of it is under way when its engines are read
	replace := strings.NewReplacer(prefill.address, "P", decode.address, "D", s.address, "S")
	for _, m := range slices.Concat(prefill.got, decode.got) {
		for name, values := range m.Header {
			for i := range values {
				m.Header[name][i] = replace.Replace(values[i])
			}
		}
	}
	out.Answer.Body = replace.Replace(ids.ReplaceAllString(out.Answer.Body, "UUID"))
	out.Prefill, out.Decode = prefill.got, decode.got
	return out
}

// leave closes the client's connection while an engine has the request, and reports whether that engine learns of it.
func leave(t *testing.T, client *http.Client, ask *http.Request, at *wireEngine, leg string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		if answer, err := client.Do(ask.WithContext(ctx)); err == nil {
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
	}()
	<-at.begun
	cancel()
	<-over
	<-at.gone
	return fmt.Sprintf("%s is cancelled", leg)
}

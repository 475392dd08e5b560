package render

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

const (
	chatBody       = `{"model":"m","messages":[{"role":"user","content":"h\u00e9 <&>"}],"stream":true}`
	completionBody = `{"model":"m","prompt":"hello","max_tokens":3}`
	routeAbsent    = `{"detail":"Not Found"}`
	routeClosed    = `{"error":{"message":"Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.","type":"PermissionDeniedError","param":null,"code":403}}`
)

// wantError expects a refusal with a status, or else an error, which can be nil.
func wantError(t *testing.T, got, want error, status int) {
	t.Helper()
	var refusal *StatusError
	switch {
	case status != 0:
		if !errors.As(got, &refusal) || refusal.Status != status {
			t.Errorf("got %v, want status %d", got, status)
		}
	case !errors.Is(got, want):
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTokens(t *testing.T) {
	generate := func(ids, features string) string {
		return `{"request_id":"chatcmpl-1","token_ids":` + ids + `,"features":` + features +
			`,"sampling_params":{"stop":["\"]}"],"token_ids":[9]},"model":"m","stream":true}`
	}
	chat, completion := openai.ChatCompletions, openai.Completions
	cases := map[string]struct {
		route   openai.Route
		body    string
		answers map[string]answer
		want    []uint32 // the ids of the first prompt, and behind 0 the number of those of others
		err     error
		status  int
		asked   []string
	}{
		"a chat is rendered": {chat, chatBody, map[string]answer{chatRender: {200, generate("[1, 2,4294967295]", "null")}},
			[]uint32{1, 2, 4294967295}, nil, 0, []string{chatRender}},
		"a completion is rendered to a list of one": {completion, completionBody,
			map[string]answer{completionRender: {200, "[" + generate("[5]", "{}") + "]"}},
			[]uint32{5}, nil, 0, []string{completionRender}},
		"an empty prompt has no ids": {completion, completionBody, map[string]answer{completionRender: {200, "[" + generate("[]", "null") + "]"}},
			[]uint32{}, nil, 0, []string{completionRender}},
		"each of several prompts has ids": {completion, completionBody,
			map[string]answer{completionRender: {200, "[" + generate("[5]", "null") + "," + generate("[6,7]", "null") + "," + generate("[8]", "null") + "]"}},
			[]uint32{5, 0, 6, 7, 0, 8}, nil, 0, []string{completionRender}},
		"images in any of several prompts are refused": {completion, completionBody,
			map[string]answer{completionRender: {200, "[" + generate("[5]", `{"mm_hashes":{"image":["ab"]}}`) + "," + generate("[6]", "null") + "]"}},
			nil, ErrMultimodal, 0, []string{completionRender}},
		"several prompts of a chat are refused": {chat, chatBody,
			map[string]answer{chatRender: {200, "[" + generate("[5]", "null") + "," + generate("[6]", "null") + "]"}},
			nil, ErrPrompts, 0, []string{chatRender}},
		"messages are rendered": {openai.Messages, messagesBody, map[string]answer{"/v1/messages/render": {200, generate("[5]", "null")}},
			[]uint32{5}, nil, 0, []string{"/v1/messages/render"}},
		"responses are rendered": {openai.Responses, responsesBody, map[string]answer{"/v1/responses/render": {200, generate("[5]", "null")}},
			[]uint32{5}, nil, 0, []string{"/v1/responses/render"}},
		"nor messages with what the template decides": {openai.Messages, `{"model":"m","messages":[{"role":"user","content":"a"},{"role":"system","content":"b"}]}`,
			map[string]answer{"/v1/messages/render": {403, routeClosed}}, nil, ErrUnsupported, 0, []string{"/v1/messages/render"}},
		"nor their images": {openai.Messages, `{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"u"}}]}]}`,
			map[string]answer{"/v1/messages/render": {403, routeClosed}}, nil, ErrMultimodal, 0, []string{"/v1/messages/render"}},
		"no tokenizer knows messages":  {openai.Messages, messagesBody, nil, nil, ErrUnsupported, 0, []string{"/v1/messages/render"}},
		"no tokenizer knows responses": {openai.Responses, responsesBody, nil, nil, ErrUnsupported, 0, []string{"/v1/responses/render"}},
		"a route that is switched off is no refusal": {chat, chatBody,
			map[string]answer{chatRender: {403, routeClosed}, "/tokenize": {200, `{"tokens":[7]}`}}, []uint32{7}, nil, 0, []string{chatRender, "/tokenize"}},
		"a route that something in front forbids is no refusal": {chat, chatBody,
			map[string]answer{chatRender: {403, "RBAC: access denied"}, "/tokenize": {200, `{"tokens":[7]}`}}, []uint32{7}, nil, 0, []string{chatRender, "/tokenize"}},
		"both routes forbidden": {chat, chatBody, map[string]answer{chatRender: {403, ""}, "/tokenize": {403, ""}}, nil, nil, 403,
			[]string{chatRender, "/tokenize"}},
		"effort where the route is switched off": {chat, strings.Replace(chatBody, `"stream"`, `"reasoning_effort":"low","stream"`, 1),
			map[string]answer{chatRender: {403, routeClosed}, "/tokenize": {200, `{"tokens":[7]}`}}, []uint32{7}, nil, 0, []string{chatRender, "/tokenize"}},
		"effort where the route is forbidden, of a release unknown": {chat, strings.Replace(chatBody, `"stream"`, `"reasoning_effort":"low","stream"`, 1),
			map[string]answer{chatRender: {403, ""}}, nil, ErrUnsupported, 0, []string{chatRender}},
		"tools that must not be used, and only a tokenizer": {chat, strings.Replace(chatBody, `"stream"`, `"tools":[{}],"tool_choice":"none","stream"`, 1),
			nil, nil, ErrUnsupported, 0, []string{chatRender}},
		"a suffix and only a tokenizer": {completion, `{"model":"m","prompt":"a","suffix":"b"}`, nil, nil, ErrUnsupported, 0, []string{completionRender}},
		"a truncated chat and only a tokenizer": {chat, strings.Replace(chatBody, `"stream"`, `"truncate_prompt_tokens":2,"truncation_side":"right","stream"`, 1),
			map[string]answer{"/tokenize": {200, `{"tokens":[1,2,3]}`}}, []uint32{1, 2}, nil, 0, []string{chatRender, "/tokenize"}},
		"no prompt is refused": {completion, completionBody, map[string]answer{completionRender: {200, "[]"}},
			nil, ErrPrompts, 0, []string{completionRender}},
		"images are refused": {chat, chatBody,
			map[string]answer{chatRender: {200, generate("[1]", `{"mm_hashes":{"image":["ab"]},"kwargs_data":{"image":["x"]}}`)}},
			nil, ErrMultimodal, 0, []string{chatRender}},
		"features without items are not images": {chat, chatBody,
			map[string]answer{chatRender: {200, generate("[1]", `{"mm_hashes":{"image":[ ]},"mm_placeholders":{},"kwargs_data":null}`)}},
			[]uint32{1}, nil, 0, []string{chatRender}},
		"without a render route the tokenizer is asked": {chat, chatBody,
			map[string]answer{"/tokenize": {200, `{"count":2,"max_model_len":8,"tokens":[7,8],"token_strs":null}`}},
			[]uint32{7, 8}, nil, 0, []string{chatRender, "/tokenize"}},
		"so it is for completions": {completion, completionBody,
			map[string]answer{"/tokenize": {200, `{"tokens":[7,8]}`}}, []uint32{7, 8}, nil, 0, []string{completionRender, "/tokenize"}},
		"a route that takes no POST is no render route": {chat, chatBody,
			map[string]answer{chatRender: {405, `{"detail":"Method Not Allowed"}`}, "/tokenize": {200, `{"tokens":[7]}`}},
			[]uint32{7}, nil, 0, []string{chatRender, "/tokenize"}},
		"a route that answers in another form is no render route": {chat, chatBody,
			map[string]answer{chatRender: {200, `[[{"role":"user"}],[{"prompt_token_ids":[1]}]]`}, "/tokenize": {200, `{"tokens":[7]}`}},
			[]uint32{7}, nil, 0, []string{chatRender, "/tokenize"}},
		"the form of 0.17": {chat, chatBody,
			map[string]answer{chatRender: {200, `[[{"role":"user","content":"[x"}],[{"type":"token","prompt_token_ids":[1,2],"arrival_time":1.5}]]`}},
			[]uint32{1, 2}, nil, 0, []string{chatRender}},
		"the form of 0.17 for several prompts": {completion, completionBody,
			map[string]answer{completionRender: {200, `[{"type":"token","prompt_token_ids":[1]},{"type":"token","prompt_token_ids":[2,3]}]`}},
			[]uint32{1, 0, 2, 3}, nil, 0, []string{completionRender}},
		"the form of 0.17 with an image": {chat, chatBody,
			map[string]answer{chatRender: {200, `[[{}],[{"type":"multimodal","prompt_token_ids":[1]}]]`}, "/tokenize": {200, `{"tokens":[7]}`}},
			[]uint32{7}, nil, 0, []string{chatRender, "/tokenize"}},
		"an unknown model is not an absent route": {chat, chatBody,
			map[string]answer{chatRender: {404, `{"error":{"message":"The model does not exist.","type":"NotFoundError","code":404}}`}},
			nil, nil, 404, []string{chatRender}},
		"a refusal is the answer": {chat, chatBody, map[string]answer{chatRender: {400, `{"error":{"message":"no","type":"BadRequestError"}}`}},
			nil, nil, 400, []string{chatRender}},
		"a refusal of the tokenizer is, too": {chat, chatBody, map[string]answer{"/tokenize": {422, `{"detail":[{"msg":"no"}]}`}},
			nil, nil, 422, []string{chatRender, "/tokenize"}},
		"an engine in trouble":        {chat, chatBody, map[string]answer{chatRender: {500, "oops"}}, nil, nil, 500, []string{chatRender}},
		"a redirect is not followed":  {chat, chatBody, map[string]answer{chatRender: {302, ""}}, nil, nil, 302, []string{chatRender}},
		"neither route":               {chat, chatBody, nil, nil, nil, 404, []string{chatRender, "/tokenize"}},
		"a tokenizer without tokens":  {chat, chatBody, map[string]answer{"/tokenize": {200, `{"count":0}`}}, nil, ErrAnswer, 0, []string{chatRender, "/tokenize"}},
		"a tokenizer with HTML":       {chat, chatBody, map[string]answer{"/tokenize": {200, `<html>`}}, nil, ErrAnswer, 0, []string{chatRender, "/tokenize"}},
		"a tokenizer with a list":     {chat, chatBody, map[string]answer{"/tokenize": {200, `[]`}}, nil, ErrAnswer, 0, []string{chatRender, "/tokenize"}},
		"images and only a tokenizer": {chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]}`, nil, nil, ErrMultimodal, 0, []string{chatRender}},
		"effort and only a tokenizer": {chat, strings.Replace(chatBody, `"stream"`, `"reasoning_effort":"low","stream"`, 1), nil, nil, ErrUnsupported, 0, []string{chatRender}},
		"ids and only a tokenizer":    {completion, `{"model":"m","prompt":[1,2]}`, nil, nil, ErrPrompts, 0, []string{completionRender}},
		"two prompts and only a tokenizer": {completion, `{"model":"m","prompt":["a","b"]}`, map[string]answer{"/tokenize": {200, `{"tokens":[1,2]}`}},
			[]uint32{1, 2, 0, 1, 2}, nil, 0, []string{completionRender, "/tokenize", "/tokenize"}},
		"seventeen prompts and only a tokenizer": {completion, `{"model":"m","prompt":["a"` + strings.Repeat(`,"b"`, 16) + `]}`, nil,
			nil, ErrPrompts, 0, []string{completionRender}},
		"a truncated prompt and only a tokenizer": {completion, `{"model":"m","prompt":"a","truncate_prompt_tokens":2}`,
			map[string]answer{"/tokenize": {200, `{"tokens":[1,2,3]}`}}, []uint32{2, 3}, nil, 0, []string{completionRender, "/tokenize", "/tokenize"}},
		"a truncated prompt without special tokens": {completion, `{"model":"m","prompt":"a","truncate_prompt_tokens":2,"add_special_tokens":"no"}`,
			map[string]answer{"/tokenize": {200, `{"tokens":[1,2,3]}`}}, []uint32{2, 3}, nil, 0, []string{completionRender, "/tokenize"}},
		"a prompt truncated from a given side": {completion, `{"model":"m","prompt":"a","truncate_prompt_tokens":2,"truncation_side":"left"}`,
			map[string]answer{"/tokenize": {200, `{"tokens":[1,2,3]}`}}, []uint32{2, 3}, nil, 0, []string{completionRender, "/tokenize"}},
		"a byte order mark and only a tokenizer": {completion, "\ufeff" + `{"model":"m","prompt":"a"}`,
			map[string]answer{"/tokenize": {200, `{"tokens":[1,2,3]}`}}, []uint32{1, 2, 3}, nil, 0, []string{completionRender, "/tokenize"}},
		"what cannot be read, and only a tokenizer": {completion, `{"model":"m","prompt":`, nil, nil, ErrUnsupported, 0, []string{completionRender}},
		"a prompt truncated to the model's limit, and only a tokenizer": {completion, `{"model":"m","prompt":"a","truncate_prompt_tokens":-1}`, nil,
			nil, ErrUnsupported, 0, []string{completionRender}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			e := &engine{answers: tc.answers}
			c := newClient(t, Options{})
			answer, err := c.Tokens(t.Context(), start(t, e), tc.route, []byte(tc.body), "key")
			got := answer.IDs
			for _, ids := range answer.More {
				got = append(append(got, 0), ids...)
			}
			wantError(t, err, tc.err, tc.status)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := cmp.Diff(tc.asked, e.paths()); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
			if q := e.asked[0]; q.Body != tc.body || q.Auth != "Bearer key" {
				t.Errorf("the render route was asked %+v", q)
			}
			want := Stats{Failed: 1}
			if err == nil {
				want = Stats{Rendered: 1}
				source := Rendered
				if len(tc.asked) > 1 {
					want, source = Stats{Tokenized: 1}, Tokenized
				}
				if answer.Source != source {
					t.Errorf("the source is %d, want %d", answer.Source, source)
				}
			}
			if c.Stats() != want {
				t.Errorf("counted %+v, want %+v", c.Stats(), want)
			}
		})
	}
}

const (
	messagesBody  = `{"model":"m","max_tokens":3,"messages":[{"role":"user","content":"hi"}]}`
	responsesBody = `{"model":"m","input":"hi"}`
)

func TestAnAbsentRouteIsRememberedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answers: map[string]answer{"/tokenize": {200, `{"tokens":[1]}`}}}
		conns, done := make(chan net.Conn), make(chan struct{})
		server := &http.Server{Handler: e, ReadHeaderTimeout: time.Minute}
		served := make(chan error, 1)
		go func() { served <- server.Serve(pipes{conns, done}) }()
		c := New(Options{Dial: func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			conns <- theirs
			return ours, nil
		}})
		ask := func(address string, route openai.Route, body string) {
			t.Helper()
			if _, err := c.Tokens(t.Context(), &endpoint.Endpoint{Address: address}, route, []byte(body), ""); err != nil {
				t.Fatal(err)
			}
		}
		ask("a:1", openai.ChatCompletions, chatBody)
		ask("a:1", openai.ChatCompletions, chatBody)
		ask("a:1", openai.Completions, completionBody) // another route of the same endpoint
		ask("b:1", openai.ChatCompletions, chatBody)   // another endpoint
		time.Sleep(lackFor - time.Second)
		ask("a:1", openai.ChatCompletions, chatBody)
		time.Sleep(2 * time.Second)
		ask("a:1", openai.ChatCompletions, chatBody)
		want := []string{chatRender, "/tokenize", "/tokenize", completionRender, "/tokenize", chatRender, "/tokenize", "/tokenize",
			chatRender, "/tokenize"}
		if diff := cmp.Diff(want, e.paths()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		c.Close()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}

// pipes is a listener for connections inside the process.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error   { close(p.done); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

func TestEnginesRememberedAreBounded(t *testing.T) {
	c := newClient(t, Options{})
	at := func(i int) *endpoint.Endpoint { return &endpoint.Endpoint{Address: fmt.Sprint(i)} }
	now := time.Now()
	for i := range maxLacking {
		c.setLack(at(i), openai.Completions, Absent, now.Add(-2*lackFor))
	}
	c.setLack(at(-1), openai.Completions, SwitchedOff, now)
	if len(c.routes) != 1 || c.lack(at(-1), openai.ChatCompletions, now) != SwitchedOff {
		t.Errorf("%d engines are remembered, want the one that is still believed", len(c.routes))
	}
	for i := range 2 * maxLacking {
		c.setLack(at(i), openai.Completions, Absent, now)
	}
	if len(c.routes) > maxLacking {
		t.Errorf("%d engines are remembered", len(c.routes))
	}
}

func TestNoQuestionWaitsForOthers(t *testing.T) {
	const slots = 3
	arrived, release := make(chan struct{}, slots), make(chan struct{})
	ep := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		<-release
		_, _ = io.WriteString(w, `{"token_ids":[1]}`)
	}))
	c := newClient(t, Options{Concurrency: slots})
	ask := func() error {
		_, err := c.Tokens(t.Context(), ep, openai.ChatCompletions, []byte(chatBody), "")
		return err
	}
	var wait sync.WaitGroup
	for range slots {
		wait.Go(func() {
			if err := ask(); err != nil {
				t.Error(err)
			}
		})
	}
	for range slots {
		<-arrived
	}
	if err := ask(); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	close(release)
	wait.Wait()
	if err := ask(); err != nil {
		t.Errorf("after the others: %v", err)
	}
	if got := c.Stats(); got != (Stats{Rendered: slots + 1, Busy: 1}) {
		t.Errorf("counted %+v", got)
	}
}

func TestDeadlinesHold(t *testing.T) {
	ep := start(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		<-r.Context().Done()
	}))
	cases := map[string]struct {
		timeout, deadline time.Duration
	}{
		"the caller's":                  {time.Hour, 20 * time.Millisecond},
		"ours when the caller has none": {20 * time.Millisecond, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			if tc.deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, tc.deadline)
				defer cancel()
			}
			c := newClient(t, Options{Timeout: tc.timeout})
			if _, err := c.Tokens(ctx, ep, openai.ChatCompletions, []byte(chatBody), ""); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAnswersAreBounded(t *testing.T) {
	e := &engine{answers: map[string]answer{chatRender: {200, `{"token_ids":[` + strings.Repeat("1,", 1000) + `1]}`}}}
	ep := start(t, e)
	if _, err := newClient(t, Options{MaxAnswer: 1000}).Tokens(t.Context(), ep, openai.ChatCompletions, []byte(chatBody), ""); !errors.Is(err, ErrAnswer) {
		t.Errorf("got %v", err)
	}
	if ids, err := newClient(t, Options{MaxAnswer: 10000}).Tokens(t.Context(), ep, openai.ChatCompletions, []byte(chatBody), ""); err != nil || len(ids.IDs) != 1001 {
		t.Errorf("got %d ids, %v", len(ids.IDs), err)
	}
}

func TestRefusalsCarryTheEnginesMessage(t *testing.T) {
	cases := map[string]struct{ body, want string }{
		"an OpenAI error":  {`{"error":{"message":"too long","type":"BadRequestError","code":400}}`, "too long"},
		"an older error":   {`{"object":"error","message":"too long","type":"BadRequestError"}`, "too long"},
		"an error as text": {`{"error":"Unauthorized"}`, "Unauthorized"},
		"a detail":         {`{"detail":"no such thing"}`, "no such thing"},
		"a list of detail": {`{"detail":[{"msg":"no"}]}`, `[{"msg":"no"}]`},
		"text":             {" oops\n", "oops"},
		"too much of it":   {strings.Repeat("é", 2000), strings.Repeat("é", 512)},
		"cut in a letter":  {"x" + strings.Repeat("é", 2000), "x" + strings.Repeat("é", 511)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			e := &engine{answers: map[string]answer{chatRender: {400, tc.body}}}
			_, err := newClient(t, Options{}).Tokens(t.Context(), start(t, e), openai.ChatCompletions, []byte(chatBody), "")
			var refusal *StatusError
			if !errors.As(err, &refusal) || refusal.Message != tc.want {
				t.Fatalf("got %v, %+v", err, refusal)
			}
			if strings.Contains(err.Error(), tc.want) {
				t.Errorf("%q would end up in logs", err)
			}
		})
	}
}

func TestUnixSockets(t *testing.T) {
	dir := t.TempDir()
	c := newClient(t, Options{})
	for i := range uint32(2) {
		socket := filepath.Join(dir, fmt.Sprint("engine", i))
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := &httptest.Server{Listener: listener, Config: &http.Server{ReadHeaderTimeout: time.Minute,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Host != "localhost" {
					t.Errorf("asked for host %q", r.Host)
				}
				_, _ = fmt.Fprintf(w, `{"token_ids":[%d]}`, i)
			})}}
		server.Start()
		t.Cleanup(server.Close)
		ep := &endpoint.Endpoint{Socket: socket, Address: "ignored:1"}
		for range 2 {
			got, err := c.Tokens(t.Context(), ep, openai.ChatCompletions, []byte(chatBody), "")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]uint32{i}, got.IDs); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		}
	}
}

// The transport can read a body even after the answer has arrived.
func TestTheBodyIsTheCallersAgainAfterwards(t *testing.T) {
	src := &source{data: []byte("abcdef")}
	r, again := src.reader(), src.reader()
	buf := make([]byte, 4)
	if n, err := r.Read(buf); err != nil || string(buf[:n]) != "abcd" {
		t.Fatalf("read %q, %v", buf[:n], err)
	}
	if all, err := io.ReadAll(again); err != nil || string(all) != "abcdef" {
		t.Fatalf("read %q, %v", all, err)
	}
	src.detach()
	if n, err := r.Read(buf); n != 0 || err == nil || err == io.EOF {
		t.Errorf("read %d bytes, %v after the source was detached", n, err)
	}
}

func TestModelIsTheFirstThatIsNoAdapter(t *testing.T) {
	for name, tc := range map[string]struct{ answer, want string }{
		"a model":           {`{"data":[{"id":"m","root":"/m"}]}`, "m"},
		"behind an adapter": {`{"data":[{"id":"lora","parent":"m"},{"id":"m","parent":null},{"id":"alias"}]}`, "m"},
		"none":              {`{"data":[]}`, ""},
		"another form":      {`[1]`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/v1/models" {
					t.Errorf("asked %s", r.URL.Path)
				}
				_, _ = w.Write([]byte(tc.answer))
			}))
			defer engine.Close()
			c := New(Options{})
			defer c.Close()
			got, err := c.Model(t.Context(), &endpoint.Endpoint{Address: engine.Listener.Addr().String()}, "")
			if got != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("%q, %v; want %q", got, err, tc.want)
			}
		})
	}
}

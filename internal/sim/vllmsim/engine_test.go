package vllmsim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// fast is a model whose steps take a microsecond.
var fast = enginemodel.TimeModel{Base: 1, Overhead: 1, Linear: 1e-9, Attention: 1e-18, KVRead: 1e-18}

// start runs an engine for the length of a test.
func start(t *testing.T, cfg Config) *Engine {
	t.Helper()
	setDefault(&cfg.Time, fast)
	e, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Kill)
	return e
}

func ids(from, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(from + i)
	}
	return out
}

// post sends JSON and returns the status and the body.
func post(t *testing.T, e *Engine, path string, body any) (int, []byte) {
	t.Helper()
	resp := open(context.Background(), t, e, path, body)
	defer closeBody(t, resp)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, b
}

func open(ctx context.Context, t *testing.T, e *Engine, path string, body any) *http.Response {
	t.Helper()
	raw, ok := body.(string)
	if !ok {
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		raw = string(b)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL()+path, strings.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func closeBody(t *testing.T, resp *http.Response) {
	t.Helper()
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
}

func get(t *testing.T, e *Engine, path string) (int, string) {
	t.Helper()
	resp, err := http.Get(e.URL() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer closeBody(t, resp)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// eventually polls until ok, for at most ten seconds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// reply is what the tests read of answers and chunks.
type reply struct {
	ID      string
	Object  string
	Model   string
	Choices []struct {
		Index        int
		Text         string
		FinishReason *string  `json:"finish_reason"`
		TokenIDs     []uint32 `json:"token_ids"`
		PromptIDs    []uint32 `json:"prompt_token_ids"`
		Message      struct{ Role, Content string }
		Delta        struct{ Role, Content string }
	}
	PromptIDs []uint32 `json:"prompt_token_ids"`
	Usage     *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		TotalTokens      int `json:"total_tokens"`
		Details          *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Error *struct {
		Message, Type string
		Param         *string
		Code          int
	}
}

func complete(t *testing.T, e *Engine, path string, body any) reply {
	t.Helper()
	status, b := post(t, e, path, body)
	if status != http.StatusOK {
		t.Fatalf("status %d: %s", status, b)
	}
	return parse(t, b)
}

func parse(t *testing.T, b []byte) reply {
	t.Helper()
	var r reply
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatalf("answer %s: %v", b, err)
	}
	return r
}

// chunks reads a stream to its end.
func chunks(t *testing.T, body io.Reader) []reply {
	t.Helper()
	var out []reply
	done := false
	for s := bufio.NewScanner(body); s.Scan(); {
		line := s.Text()
		if line == "" {
			continue
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || done {
			t.Fatalf("unexpected line %q", line)
		}
		if data == "[DONE]" {
			done = true
			continue
		}
		out = append(out, parse(t, []byte(data)))
	}
	if !done {
		t.Fatal("the stream has no end")
	}
	return out
}

type object = map[string]any

func TestRepeatedPromptIsCached(t *testing.T) {
	e := start(t, Config{})
	for name, tc := range map[string]struct{ n, want int }{
		"whole blocks recompute the last": {n: 64, want: 48},
		"a rest is recomputed alone":      {n: 70, want: 64},
		"less than a block":               {n: 9, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			for i, want := range []int{0, tc.want} {
				r := complete(t, e, "/v1/completions", object{"model": DefaultModel, "prompt": ids(1000*tc.n, tc.n), "max_tokens": 4})
				u := r.Usage
				if u.Details.Cached != want || u.PromptTokens != tc.n || u.CompletionTokens != 4 || u.TotalTokens != tc.n+4 {
					t.Errorf("request %d: usage %+v, cached %d, want %d", i, u, u.Details.Cached, want)
				}
			}
		})
	}
}

func TestCompletionPlainAndStreamedAgree(t *testing.T) {
	e := start(t, Config{StreamInterval: 3})
	body := object{"prompt": ids(1, 20), "max_tokens": 8, "return_token_ids": true}
	plain := complete(t, e, "/v1/completions", body)
	if *plain.Choices[0].FinishReason != finishLength || plain.Object != "text_completion" || plain.Model != DefaultModel {
		t.Errorf("answer %+v", plain)
	}
	body["stream"], body["stream_options"] = true, object{"include_usage": true}
	resp := open(context.Background(), t, e, "/v1/completions", body)
	defer closeBody(t, resp)
	var text string
	var tokens, prompt []uint32
	all := chunks(t, resp.Body)
	last := all[len(all)-1]
	for _, c := range all[:len(all)-1] {
		text += c.Choices[0].Text
		tokens = append(tokens, c.Choices[0].TokenIDs...)
		prompt = append(prompt, c.Choices[0].PromptIDs...)
	}
	if diff := cmp.Diff(plain.Choices[0].TokenIDs, tokens); diff != "" {
		t.Errorf("token ids, plain and streamed:\n%s", diff)
	}
	if text != plain.Choices[0].Text || !slices.Equal(prompt, ids(1, 20)) || !slices.Equal(plain.Choices[0].PromptIDs, prompt) {
		t.Errorf("text %q, want %q; prompt ids %v", text, plain.Choices[0].Text, prompt)
	}
	if len(last.Choices) != 0 || last.Usage.CompletionTokens != 8 || last.Usage.Details.Cached != 16 {
		t.Errorf("last chunk %+v", last)
	}
	if fin := all[len(all)-2].Choices[0].FinishReason; fin == nil || *fin != finishLength {
		t.Error("the last tokens come without a finish reason")
	}
}

// With a step at a time, the first token comes at once and then every third.
func TestStreamInterval(t *testing.T) {
	e := start(t, Config{StreamInterval: 3})
	e.Pause()
	resp := openAsync(t, e, "/v1/completions", object{"prompt": ids(1, 20), "max_tokens": 8, "stream": true, "return_token_ids": true})
	eventually(t, "the request waits", func() bool { return e.Stats().Waiting == 1 })
	var got []int
	lines := bufio.NewReader((<-resp).Body)
	read := func() int {
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if data, ok := strings.CutPrefix(line, "data: {"); ok {
				return len(parse(t, []byte("{"+data)).Choices[0].TokenIDs)
			}
		}
	}
	for step := range 8 {
		if !e.Step() {
			t.Fatalf("nothing to do in step %d", step)
		}
		if step == 0 || step == 3 || step == 6 || step == 7 {
			got = append(got, read())
		}
	}
	if diff := cmp.Diff([]int{1, 3, 3, 1}, got); diff != "" {
		t.Errorf("tokens per chunk (-want +got):\n%s", diff)
	}
}

// openAsync sends a request whose answer begins later.
func openAsync(t *testing.T, e *Engine, path string, body any) <-chan *http.Response {
	t.Helper()
	out := make(chan *http.Response, 1)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b, err := json.Marshal(body)
		if err != nil {
			t.Error(err)
			return
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL()+path, bytes.NewReader(b))
		if err != nil {
			t.Error(err)
			return
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return // the test ended
		}
		out <- resp
		<-ctx.Done()
		if err := resp.Body.Close(); err != nil {
			t.Log(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return out
}

func TestClientAbortFreesTheRequest(t *testing.T) {
	e := start(t, Config{})
	e.Pause()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL()+"/v1/completions", strings.NewReader(`{"prompt": [1, 2, 3], "max_tokens": 1000}`))
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := http.DefaultClient.Do(req); err == nil {
			t.Error("an aborted request was answered")
		}
	}()
	eventually(t, "the request waits", func() bool { return e.Stats().Waiting == 1 })
	e.Step()
	if s := e.Stats(); s.Running != 1 || s.UsedBlocks != 1 {
		t.Fatalf("stats %+v", s)
	}
	cancel()
	<-gone
	eventually(t, "the request is gone", func() bool { s := e.Stats(); return s.Running == 0 && s.Aborted == 1 && s.UsedBlocks == 0 })
}

func TestKilledEngineBreaksStreams(t *testing.T) {
	e := start(t, Config{})
	e.Pause()
	resp := openAsync(t, e, "/v1/completions", object{"prompt": ids(1, 5), "max_tokens": 100, "stream": true})
	eventually(t, "the request waits", func() bool { return e.Stats().Waiting == 1 })
	e.Step()
	body := (<-resp).Body
	e.Kill()
	if b, err := io.ReadAll(body); err == nil && strings.Contains(string(b), "[DONE]") {
		t.Error("the stream of a killed engine came to its end")
	}
	if _, err := http.Get(e.URL() + "/health"); err == nil {
		t.Error("a killed engine answers")
	}
	e.Kill()
	if err := e.Close(); err != nil {
		t.Errorf("closing a killed engine: %v", err)
	}
	if e.Step() || fmt.Sprint(e.Blocks()) != "map[]" {
		t.Error("a killed engine still works")
	}
}
